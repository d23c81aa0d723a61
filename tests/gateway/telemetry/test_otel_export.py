"""The export by OpenTelemetry's own variables, and collectors that are down, slow or refuse."""

import asyncio
import logging
import threading

import pytest
from aiohttp import web
from otlp_receiver import receiver

from gateway.server.open.telemetry import _exported
from gateway.telemetry.otel import export

QUESTION = "How do I reset my password?"


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        yield one


@pytest.mark.parametrize(
    ("variables", "signals"),
    [
        ({}, set()),
        ({"ENDPOINT": "http://c:4318"}, {"TRACES", "METRICS"}),
        ({"TRACES_ENDPOINT": "http://c:4318/v1/traces"}, {"TRACES"}),
        ({"METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, {"METRICS"}),
    ],
)
def test_an_endpoint_switches_the_export_on(variables, signals):
    given = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    assert _exported(given) == signals
    assert _exported({**given, "OTEL_SDK_DISABLED": "true"}) == set()
    without_traces = _exported({**given, "OTEL_TRACES_EXPORTER": "none"})
    assert without_traces == signals - {"TRACES"}
    assert _exported({**given, "OTEL_METRICS_EXPORTER": "otlp"}) == signals | {"METRICS"}


def test_what_is_not_spoken_is_told(caplog):
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_METRICS_EXPORTER": "console"}
    given["OTEL_EXPORTER_OTLP_PROTOCOL"] = "grpc"
    assert _exported(given) == {"TRACES"}
    assert [record.getMessage() for record in caplog.records] == [
        "OTEL_METRICS_EXPORTER=console: expected otlp or none; nothing is exported",
        "traces over grpc is not spoken here; http/protobuf is, most often at port 4318",
    ]


async def test_the_environment_names_the_service_and_has_headers(
    start_gateway, upstream, otlp, monkeypatch
):
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=x"
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "our-gateway")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=7")
    gateway = await start_gateway()
    await gateway.ask()
    await gateway.stop()
    (request,) = otlp.named("POST /v1/chat/completions")
    assert request.resource["service.name"] == "our-gateway"
    assert request.resource["deployment.environment.name"] == "test"
    assert len(request.resource["service.instance.id"]) == 36
    assert {headers["x-tenant"] for headers in otlp.headers} == {"7"}


async def test_the_name_of_the_service_may_be_a_resource_attribute(
    start_gateway, upstream, otlp, monkeypatch
):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,service.instance.id=one")
    gateway = await start_gateway()
    await gateway.ask()
    await gateway.stop()
    (request,) = otlp.named("POST /v1/chat/completions")
    assert request.resource["service.name"] == "shop"
    assert request.resource["service.instance.id"] == "one"


async def test_the_sampler_of_the_environment_decides(start_gateway, upstream, otlp, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    gateway = await start_gateway()
    await gateway.ask()
    await gateway.stop()
    assert otlp.spans == []


async def test_a_disabled_sdk_sends_nothing(start_gateway, upstream, otlp, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    gateway = await start_gateway()
    await gateway.ask()
    await gateway.stop()
    assert otlp.headers == []
    assert "traceparent" not in upstream.requests[0].headers


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_BSP_MAX_QUEUE_SIZE", "0"), ("OTEL_METRICS_EXEMPLAR_FILTER", "sometimes")],
)
@pytest.mark.usefixtures("upstream", "otlp")
async def test_a_wrong_value_leaves_one_line_a_gateway_and_no_thread(
    start_gateway, monkeypatch, caplog, variable, value
):
    monkeypatch.setenv(variable, value)
    # The receiver shares the event loop in which the exporters are closed: nothing is taken.
    monkeypatch.setattr(export, "CLOSE_SECONDS", 0.05)
    gateway = await start_gateway()
    assert (await gateway.ask()).status == 200
    (line,) = [one for one in caplog.messages if "OpenTelemetry is off" in one]
    assert "OTEL_" in line
    assert not [one.name for one in threading.enumerate() if one.name.startswith("Otel")]


async def test_a_collector_that_is_down_costs_one_line(
    start_gateway, upstream, monkeypatch, caplog
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    caplog.set_level(logging.INFO)
    gateway = await start_gateway()
    async with asyncio.timeout(60):
        while len(_lines(caplog)) < 2:
            assert (await gateway.ask()).status == 200
    for _ in range(20):
        assert (await gateway.ask()).status == 200
    await gateway.stop()
    refused = [line for line in _lines(caplog) if "does not take" in line]
    what = sorted(line.split("take ")[1].split(",")[0] for line in refused)
    assert what == ["metrics", "spans"]
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry")]


async def test_a_collector_that_comes_back_is_told(
    start_gateway, upstream, otlp, monkeypatch, caplog
):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    caplog.set_level(logging.INFO)

    async def refuse():
        return web.Response(status=401)

    otlp.answer = refuse
    gateway = await start_gateway()
    async with asyncio.timeout(60):
        while not _lines(caplog):
            await gateway.ask()
        otlp.answer = None
        while len(_lines(caplog)) < 2:
            await gateway.ask()
    await gateway.stop()  # before the receiver, which takes what is left
    refused, taken = _lines(caplog)
    assert "does not take spans" in refused
    assert taken == "OpenTelemetry: the collector takes spans again"


async def test_a_collector_that_never_answers_does_not_hold_the_stop_up(
    start_gateway, upstream, otlp, monkeypatch
):
    monkeypatch.setattr(export, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(export, "ABORT_SECONDS", 0.05)
    released = asyncio.Event()

    async def hang():
        await released.wait()
        return web.Response()

    otlp.answer = hang
    gateway = await start_gateway()
    assert (await gateway.ask(QUESTION)).status == 200
    await gateway.stop()  # with the collector's default of 10 s, the answer below would come first
    assert not released.is_set()
    released.set()


async def test_spans_that_find_the_queue_full_cost_one_line(
    start_gateway, upstream, otlp, monkeypatch, caplog
):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setattr(logging.getLogger(export._QUEUE), "filters", [])
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    hold = asyncio.Event()

    async def wait():
        await hold.wait()
        return web.Response()

    otlp.answer = wait
    gateway = await start_gateway()
    for _ in range(5):
        assert (await gateway.ask()).status == 200
    hold.set()
    await gateway.stop()
    (line,) = [one for one in caplog.messages if "more spans than the collector takes" in one]
    assert "OTEL_TRACES_SAMPLER" in line
    assert not [one for one in caplog.messages if one.startswith("Queue full")]


def test_closing_is_bounded_even_if_aborting_does_not_help(monkeypatch):
    monkeypatch.setattr(export, "CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(export, "ABORT_SECONDS", 0.01)
    aborted, over = [], threading.Event()
    export.close_in_time(over.wait, lambda: aborted.append(True))
    assert aborted == [True]
    over.set()


def _lines(caplog):
    return [one for one in caplog.messages if one.startswith("OpenTelemetry: ")]
