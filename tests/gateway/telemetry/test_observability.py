"""What operators see: metrics as Prometheus scrapes them, spans as a collector receives them."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream


async def samples(gateway: RunningGateway) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = (await gateway.get("/metrics")).raw.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def counted(seen: dict[Any, float], name: str, **labels: str) -> float:
    return sum(
        value
        for (sample, pairs), value in seen.items()
        if sample == name and labels.items() <= dict(pairs).items()
    )


async def test_requests_are_counted_by_outcome_rule_and_reason(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await gateway.ask()
    await gateway.settle()
    for _ in range(3):
        await gateway.ask()
    await gateway.ask(store=True)
    await gateway.post("/v1/chat/completions", b"{")
    await gateway.get("/v1/models")

    seen = await samples(gateway)
    total = "refrain_requests_total"
    chat = {"endpoint": "/v1/chat/completions"}
    assert counted(seen, total, **chat, outcome="miss", rule="default") == 1
    assert counted(seen, total, **chat, outcome="hit", reason="exact", rule="default") == 3
    assert counted(seen, total, **chat, outcome="bypass", reason="store-true") == 1
    assert counted(seen, total, **chat, outcome="invalid") == 1
    assert counted(seen, total, endpoint="/v1/*", outcome="pass") == 1
    assert counted(seen, "refrain_time_to_first_token_seconds_count", outcome="hit") == 3
    assert counted(seen, "refrain_request_seconds_count", outcome="miss") == 1
    assert counted(seen, "refrain_upstream_seconds_count") == 3
    assert counted(seen, "refrain_entries") == 1
    assert counted(seen, "refrain_entry_bytes") > 100


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        (500, "error", "upstream-status"),
        (503, "error", "upstream-status"),
        (429, "error", "upstream-limited"),
        (400, "miss", ""),
        (401, "miss", ""),
    ],
)
async def test_an_upstreams_own_error_counts_as_an_error_unless_it_is_the_clients(
    gateway: RunningGateway, upstream: ScriptedUpstream, status: int, outcome: str, reason: str
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    upstream.answer = answer
    for streamed in (False, True):
        reply = await gateway.ask(stream=streamed)
        assert (reply.status, reply.cache) == (
            status,
            "refrain; fwd=miss; detail=upstream-status",
        )
    seen = await samples(gateway)
    assert counted(seen, "refrain_requests_total", outcome=outcome, reason=reason) == 2
    assert counted(seen, "refrain_declined_total", reason="upstream-status") == 2


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[bytes]]:
    """A real OTLP receiver; yields the bodies it was sent."""
    bodies: list[bytes] = []

    async def receive(request: web.Request) -> web.Response:
        raw = await request.read()
        bodies.append(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", receive)
    runner, url = await start_app(app)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    yield bodies
    await runner.cleanup()


def spans_of(bodies: list[bytes]) -> list[tuple[Any, dict[str, Any]]]:
    spans = []
    for body in bodies:
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    pairs = {}
                    for item in span.attributes:
                        kind = item.value.WhichOneof("value")
                        pairs[item.key] = getattr(item.value, str(kind))
                    spans.append((span, pairs))
    return spans


async def test_every_request_is_one_span_without_its_text(
    start_gateway: StartGateway, upstream: ScriptedUpstream, collector: list[bytes]
):
    gateway = await start_gateway()
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    question = "the question nobody may read"
    await gateway.ask(question, stream=True, headers=headers)
    await gateway.ask(question, headers=headers)
    await gateway.ask(question, store=True, stream=True)
    async with asyncio.timeout(60):  # a client may have read all before its request is over
        while counted(await samples(gateway), "refrain_requests_total") < 3:
            pass
    await gateway.stop()

    spans = spans_of(collector)
    assert len(spans) == 3
    miss, hit, bypass = spans
    assert miss[0].name == "chat m"
    assert miss[0].trace_id.hex() == trace
    assert miss[0].parent_span_id.hex() == parent
    assert miss[1]["refrain.outcome"] == "miss"
    assert miss[1]["gen_ai.request.model"] == "m"
    assert miss[1]["gen_ai.usage.input_tokens"] == 7
    assert miss[1]["gen_ai.usage.output_tokens"] == 3
    assert miss[1]["refrain.stored"] is True
    assert miss[1]["refrain.time_to_first_token"] >= 0
    assert miss[1]["refrain.decode_time"] >= 0
    assert (hit[1]["refrain.outcome"], hit[1]["refrain.reason"]) == ("hit", "exact")
    assert (bypass[1]["refrain.outcome"], bypass[1]["refrain.reason"]) == ("bypass", "store-true")
    # The upstream's parent is our span, in the client's trace.
    sent = upstream.requests[0].headers.getall("traceparent")
    assert sent == [f"00-{trace}-{miss[0].span_id.hex()}-01"]
    assert not [body for body in collector if b"nobody may read" in body]


async def test_without_an_endpoint_nothing_is_traced(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await gateway.ask()
    assert "traceparent" not in upstream.requests[0].headers
