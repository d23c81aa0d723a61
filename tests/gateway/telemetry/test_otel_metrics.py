"""Metrics as a collector receives them: the page of Prometheus, and the calls to models."""

import pytest
from faulty_upstreams import CLOSED
from otlp_receiver import receiver
from prometheus_client.parser import text_string_to_metric_families

from gateway.upstream.tries import MOST_SAME_RETRIES

QUESTION = "the question nobody may read"


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{one.url}/v1/metrics")
        yield one


def point(otlp, name, **labels):
    (found,) = [
        point for attributes, point in otlp.metrics[name] if labels.items() <= attributes.items()
    ]
    return found


async def test_the_metrics_of_the_page_are_sent_under_the_same_names(start_gateway, upstream, otlp):
    gateway = await start_gateway()
    await gateway.ask(QUESTION)
    await gateway.settle()
    for _ in range(3):  # repeated hits are counted in batches, and are here too
        assert "; hit" in (await gateway.ask(QUESTION)).cache
    page = (await gateway.get("/metrics")).raw.decode()
    await gateway.stop()

    hits = point(otlp, "refrain_requests_total", outcome="hit", reason="exact")
    assert hits.as_double == 3
    assert hits.start_time_unix_nano < hits.time_unix_nano
    (entries,) = [one for _, one in otlp.metrics["refrain_entries"]]
    assert entries.as_int == 1
    times = point(otlp, "refrain_time_to_first_token_seconds", outcome="hit")
    assert times.count == 3 == sum(times.bucket_counts)
    assert len(times.bucket_counts) == len(times.explicit_bounds) + 1
    assert times.sum > 0
    assert not times.HasField("max")
    for family in text_string_to_metric_families(page):
        if family.samples and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name in otlp.metrics, name


async def test_calls_to_models_are_counted_by_the_conventions(start_gateway, upstream, otlp):
    gateway = await start_gateway()
    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await gateway.ask(QUESTION, headers=traced)
    await gateway.ask(QUESTION, headers=traced)
    await gateway.ask(f"{QUESTION} again", stream=True)
    await gateway.stop()

    host, port = upstream.url.removeprefix("http://").split(":")
    labels = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai_compatible",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "scripted",
        "server.address": host,
        "server.port": int(port),
    }
    ((attributes, duration),) = otlp.metrics["gen_ai.client.operation.duration"]
    assert attributes == labels
    assert duration.count == 2  # the hit was no call
    assert list(duration.explicit_bounds)[:2] == [0.01, 0.02]
    ((attributes, first),) = otlp.metrics["gen_ai.client.operation.time_to_first_chunk"]
    assert attributes == labels
    assert first.count == 1  # of the stream alone
    used = point(otlp, "gen_ai.client.token.usage", **labels, **{"gen_ai.token.type": "input"})
    assert (used.count, used.sum) == (2, 14)
    made = point(otlp, "gen_ai.client.token.usage", **labels, **{"gen_ai.token.type": "output"})
    assert made.sum == 6
    # Traces are off: nothing is sent, and the client's trace goes on to the upstream unchanged.
    assert otlp.spans == []
    assert upstream.requests[0].headers["traceparent"] == traced["traceparent"]


async def test_a_call_that_fails_is_counted_with_its_error(start_gateway, otlp):
    gateway = await start_gateway(upstream=(CLOSED,))
    assert (await gateway.ask(QUESTION)).status == 502
    await gateway.stop()
    ((attributes, duration),) = otlp.metrics["gen_ai.client.operation.duration"]
    assert attributes["error.type"] == "upstream-unreachable"
    assert duration.count == 1 + MOST_SAME_RETRIES
    assert "gen_ai.client.token.usage" not in otlp.metrics


async def test_metrics_come_in_time_without_a_stop(start_gateway, upstream, otlp, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    gateway = await start_gateway()
    while "refrain_entries" not in otlp.metrics:
        otlp.came.clear()
        await otlp.came.wait()
    assert otlp.metrics["process.uptime"]
    await gateway.stop()  # before the receiver, which takes what is left


async def test_figures_that_cannot_be_read_are_left_out_of_one_export(
    start_gateway, upstream, otlp, caplog, monkeypatch
):
    def fail(_self):
        raise RuntimeError("such as a store that is closed")

    gateway = await start_gateway()
    await gateway.ask(QUESTION)
    monkeypatch.setattr("gateway.telemetry.metrics._StoreCollector.collect", fail)
    await gateway.stop()
    assert "gen_ai.client.operation.duration" in otlp.metrics
    assert "refrain_requests_total" not in otlp.metrics
    assert "the metrics could not be read" in caplog.text
