"""One trace from client through gateway to the bundled engine, as a collector receives it."""

from pathlib import Path

import pytest
from otlp_receiver import receiver

from backend.app import create_app
from backend.settings import Settings

pytest_plugins = ["running_backend"]

MODEL = Path(__file__).parents[2] / "backend" / "demo" / "model"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
QUESTION = "How do I reset my password?"
PHASES = ["refrain.queue", "refrain.prefill", "refrain.decode"]


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        yield one


async def test_the_engines_spans_are_below_the_gateways(serve_application, start_gateway, otlp):
    engine = await serve_application(create_app(Settings(model=str(MODEL), threads=1)))
    await engine.model.load()
    upstreams = [{"url": f"{engine.url}/v1", "preset": "refrain"}]
    gateway = await start_gateway(upstreams=upstreams, upstream=())
    model = engine.model.name
    for stream in (True, False):
        question = f"{QUESTION} {stream}"
        reply = await gateway.ask(
            question, model=model, stream=stream, max_tokens=20, headers=CLIENT
        )
        assert reply.status == 200
        assert "fwd=miss" in reply.cache
    await gateway.stop()
    await engine.session.close()
    await engine.runner.cleanup()

    name = f"chat {model}"
    calls = [span for span in otlp.named(name) if span.kind == "CLIENT"]
    served = [span for span in otlp.named(name) if span.kind == "SERVER"]
    requests = otlp.named("POST /v1/chat/completions")
    assert len(calls) == len(served) == len(requests) == 2
    for request, call, engines in zip(requests, calls, served, strict=True):
        assert request.ids[::2] == (TRACE, PARENT)
        assert call.ids[::2] == (TRACE, request.ids[1])
        assert engines.ids[::2] == (TRACE, call.ids[1])
        assert request.resource["service.name"] == "refrain"
        assert engines.resource["service.name"] == "refrain-engine"
        assert call.attributes["gen_ai.provider.name"] == "refrain"
        assert engines.attributes["http.response.status_code"] == 200
        for tokens in ("input", "output"):
            attribute = f"gen_ai.usage.{tokens}_tokens"
            assert engines.attributes[attribute] == call.attributes[attribute] > 0
        assert engines.attributes["gen_ai.request.max_tokens"] == 20
        reasons = "gen_ai.response.finish_reasons"
        assert engines.attributes[reasons] == call.attributes[reasons]
        phases = [span for span in otlp.spans if span.ids[2] == engines.ids[1]]
        assert [span.name for span in phases] == PHASES
        assert all(span.ids[0] == TRACE for span in phases)
        moments = [
            moment
            for span in phases
            for moment in (span.raw.start_time_unix_nano, span.raw.end_time_unix_nano)
        ]
        assert moments == sorted(moments)
        assert engines.raw.start_time_unix_nano <= moments[0]
        assert moments[-1] <= engines.raw.end_time_unix_nano
    assert not [body for _, body in otlp.bodies if b"password" in body]


async def test_an_engine_without_an_endpoint_records_nothing(serve_application):
    server = await serve_application(create_app(Settings(model=str(MODEL), threads=1)))
    await server.model.load()
    assert (await server.chat(QUESTION, max_tokens=1)).status == 200
