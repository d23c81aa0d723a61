"""Traces of the engine's server: outcomes, clients that leave, a collector that is down."""

import asyncio
import logging

import pytest
from otlp_receiver import receiver

from backend.app import _tracing
from backend.ports import EngineError
from backend.scheduler.request import FinishReason, TextDelta
from backend.server.tracing import Tracing

pytest_plugins = ["running_backend"]


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{one.url}/v1/traces")
        yield one


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_standard_variables_switch_traces_on(environment, wanted):
    tracing = _tracing("m", environment)
    assert (tracing is not None) == wanted
    if tracing is not None:
        tracing.close()


def traced():
    """Limits of a server whose requests are recorded."""
    return {"tracing": Tracing("scripted")}


async def failing(request):
    yield TextDelta(0, "Hel", 1, times=(1.0, 2.0))
    if request.request_id != "warm-up":
        raise EngineError("the engine broke")


async def stop(server):
    await server.session.close()
    await server.runner.cleanup()


async def test_a_generation_that_breaks_is_an_error(start_server, otlp):
    server = await start_server(script=failing, limits=traced())
    assert (await server.chat("Hi", n=0)).status == 400
    assert (await server.chat("Hi", stream=True)).status == 200
    await stop(server)
    refused, broken = otlp.named("chat scripted")
    assert broken.failed
    assert broken.attributes["error.type"] == "server_error"
    assert broken.attributes["gen_ai.usage.output_tokens"] == 1
    assert not refused.failed
    assert refused.attributes["http.response.status_code"] == 400


async def test_a_client_that_leaves_ends_its_span(start_server, otlp):
    began = asyncio.Event()

    async def endless(request):
        if request.request_id != "warm-up":
            began.set()
            await asyncio.Event().wait()
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=endless, limits=traced())
    asking = asyncio.create_task(server.chat("Hi"))
    await began.wait()
    asking.cancel()
    await server.generator.cancelled.wait()
    await stop(server)
    (span,) = otlp.named("chat scripted")
    assert span.attributes["error.type"] == "cancelled"
    assert "http.response.status_code" not in span.attributes


async def test_a_collector_that_is_down_fails_no_request(start_server, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    caplog.set_level(logging.INFO)
    server = await start_server(limits=traced())

    def lines():
        return [line for line in caplog.messages if line.startswith("OpenTelemetry: ")]

    async with asyncio.timeout(60):
        while not lines():
            assert (await server.chat("Hi")).status == 200
    for _ in range(20):
        assert (await server.chat("Hi")).status == 200
    await stop(server)
    assert len(lines()) == 1
