"""Spans as a collector receives them from a real gateway: names, attributes, parents, times."""

import asyncio
import time
from types import SimpleNamespace

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import CLOSED, begins_with_an_error, says, servers, status
from otlp_receiver import receiver

from gateway.upstream.tries import MOST_SAME_RETRIES
from scripted_upstream import completion, stream_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
QUESTION = "the question nobody may read"
STALE = """
version: 1
default:
  exact: on
  semantic: off
  freshness: 100s
  grace: {while_revalidate: 50s}
  scope: tenant
  pii: bypass
"""
SERVER_SPAN = "POST /v1/chat/completions"


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        yield one


@pytest.fixture
async def server():
    async with servers() as start:
        yield start


async def test_a_miss_is_a_server_span_with_its_steps_and_the_request_to_the_upstream(
    start_gateway, upstream, otlp
):
    gateway = await start_gateway()
    fields = {"max_tokens": 9, "temperature": 0.5, "seed": 7, "stop": ["END"], "n": 1}
    reply = await gateway.ask(QUESTION, headers=CLIENT, **fields)
    assert "fwd=miss; stored" in reply.cache
    await gateway.stop()

    (request,) = otlp.named(SERVER_SPAN)
    assert request.kind == "SERVER"
    assert request.ids[0] == TRACE
    assert request.ids[2] == PARENT
    assert request.raw.trace_state == "vendor=1"
    assert request.resource["service.name"] == "refrain"
    assert request.resource["telemetry.sdk.language"] == "python"
    assert not request.failed
    host, port = gateway.url.removeprefix("http://").split(":")
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.response.body.size": len(reply.raw),
        "server.address": host,
        "server.port": int(port),
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "refrain.outcome": "miss",
        "refrain.rule": "default",
        "refrain.stored": True,
    }
    assert expected.items() <= request.attributes.items()
    # Whoever sums tokens over spans counts them once, at the request to the model.
    assert not [name for name in request.attributes if name.startswith("gen_ai.usage")]

    (call,) = otlp.named("chat m")
    assert call.kind == "CLIENT"
    assert call.ids[0] == TRACE
    assert call.ids[2] == request.ids[1]
    host, port = upstream.url.removeprefix("http://").split(":")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai_compatible",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "server.address": host,
        "server.port": int(port),
        "http.response.status_code": 200,
        "refrain.upstream": f"{host}:{port}",
    }
    assert call.attributes == expected
    # The upstream's parent is the span of the request to it.
    (sent,) = upstream.requests
    assert sent.headers.getall("traceparent") == [f"00-{TRACE}-{call.ids[1]}-01"]
    assert sent.headers.getall("tracestate") == ["vendor=1"]

    steps = otlp.named("refrain.lookup", "refrain.pii_scan", "refrain.admission")
    assert [step.name for step in steps] == [
        "refrain.lookup",
        "refrain.pii_scan",
        "refrain.admission",
    ]
    assert steps[0].attributes == {"refrain.lookup": "exact", "refrain.found": False}
    assert steps[2].attributes == {"refrain.stored": True}
    for span in (*steps, call):
        assert span.ids[2] == request.ids[1]
        assert request.raw.start_time_unix_nano <= span.raw.start_time_unix_nano
        assert span.raw.end_time_unix_nano <= request.raw.end_time_unix_nano
        assert span.raw.start_time_unix_nano <= span.raw.end_time_unix_nano
    assert call.raw.end_time_unix_nano <= steps[2].raw.start_time_unix_nano + 1_000_000
    assert not [body for _, body in otlp.bodies if b"nobody may read" in body or b"END" in body]


async def test_a_hit_has_no_request_to_an_upstream(start_gateway, upstream, otlp):
    gateway = await start_gateway()
    await gateway.ask(QUESTION)
    for _ in range(2):  # the second would be repeated without its own record, were nothing traced
        assert "; hit" in (await gateway.ask(QUESTION, stream=True)).cache
    await gateway.stop()
    _, *hits = otlp.named(SERVER_SPAN)
    assert len(hits) == 2
    for hit in hits:
        assert hit.attributes["refrain.outcome"] == "hit"
        assert hit.attributes["refrain.reason"] == "exact"
        assert hit.attributes["gen_ai.request.stream"] is True
        assert hit.attributes["gen_ai.response.model"] == "scripted"
        assert hit.attributes["gen_ai.response.finish_reasons"] == ["stop"]
        assert hit.attributes["refrain.time_to_first_token"] >= 0
        children = [span.name for span in otlp.spans if span.ids[2] == hit.ids[1]]
        assert children == ["refrain.lookup"]
    assert len(otlp.named("chat m")) == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_a_stream_has_its_time_to_the_first_chunk_and_all_usage(
    start_gateway, upstream, otlp, stored
):
    async def answer(request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        details = {"prompt_tokens_details": {"cached_tokens": 5}}
        for part in (
            {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, **details}},
        ):
            event = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "model": "m-2", **part}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = answer
    gateway = await start_gateway()
    headers = {} if stored else {"Cache-Control": "no-store"}
    assert (await gateway.ask(QUESTION, stream=True, headers=headers)).text == "Hi"
    await gateway.stop()
    (call,) = otlp.named("chat m")
    assert call.attributes["gen_ai.request.stream"] is True
    seconds = call.attributes["gen_ai.response.time_to_first_chunk"]
    duration = call.raw.end_time_unix_nano - call.raw.start_time_unix_nano
    assert 0 < seconds <= duration / 1e9
    assert call.attributes["gen_ai.response.model"] == "m-2"
    assert call.attributes["gen_ai.response.id"] == "chatcmpl-7"
    assert call.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert call.attributes["gen_ai.usage.cache_read.input_tokens"] == 5
    assert call.attributes["gen_ai.usage.input_tokens"] == 8


async def test_each_attempt_at_an_upstream_is_a_span_with_its_own_error(
    start_gateway, server, otlp
):
    busy, good = await server(status(503)), await server(says("an answer"))
    small, large = {"rename": {"m": "small"}, "probe": "off"}, {"rename": {"m": "large"}}
    gateway = await start_gateway(
        upstream=(),
        upstreams=[
            {"name": "down", "url": CLOSED, "tier": 1, **small},
            {"name": "busy", "url": f"{busy.url}/v1", "tier": 2, **small},
            {"name": "good", "url": f"{good.url}/v1", "tier": 3, "preset": "mistral", **large},
        ],
    )
    reply = await gateway.ask(QUESTION, headers=CLIENT)
    assert reply.status == 200
    await gateway.stop()
    (request,) = otlp.named(SERVER_SPAN)
    assert not request.failed
    (down, refused), (answered,) = otlp.named("chat small"), otlp.named("chat large")
    assert [one.attributes["refrain.upstream"] for one in (down, refused, answered)] == [
        "down",
        "busy",
        "good",
    ]
    assert down.attributes["error.type"] == "upstream-unreachable"
    assert refused.attributes["error.type"] == "503"
    assert refused.attributes["http.request.resend_count"] == 1
    assert down.failed
    assert refused.failed
    assert "error.type" not in answered.attributes
    assert answered.attributes["http.request.resend_count"] == 2
    assert answered.attributes["gen_ai.provider.name"] == "mistral_ai"
    assert answered.attributes["gen_ai.request.model"] == "large"
    assert request.attributes["gen_ai.request.model"] == "m"
    assert answered.attributes["gen_ai.usage.input_tokens"] == 7
    assert "gen_ai.usage.input_tokens" not in refused.attributes
    for one, span in ((busy, refused), (good, answered)):
        (sent,) = [each for each in one.requests if "traceparent" in each.headers]
        assert sent.headers["traceparent"] == f"00-{TRACE}-{span.ids[1]}-01"
    assert {span.ids[2] for span in (down, refused, answered)} == {request.ids[1]}


async def test_an_error_at_the_begin_of_a_stream_is_the_attempts_error(start_gateway, server, otlp):
    broken, good = await server(begins_with_an_error), await server(says("an answer"))
    gateway = await start_gateway(
        upstream=(),
        upstreams=[
            {"name": "broken", "url": f"{broken.url}/v1", "tier": 1},
            {"name": "good", "url": f"{good.url}/v1", "tier": 2},
        ],
    )
    assert (await gateway.ask(QUESTION, stream=True)).text == "an answer"
    await gateway.stop()
    failed, answered = otlp.named("chat m")
    assert failed.attributes["error.type"] == "upstream-status"
    assert not answered.failed


async def test_a_failed_request_says_why(start_gateway, server, otlp):
    failing = await server(status(500))
    gateway = await start_gateway(upstream=(f"{failing.url}/v1",))
    assert (await gateway.ask(QUESTION)).status == 500
    assert (await gateway.post("/v1/chat/completions", b"{")).status == 400
    await gateway.stop()
    request, invalid = otlp.named(SERVER_SPAN)
    assert request.failed
    assert request.attributes["error.type"] == "upstream-status"
    (call,) = otlp.named("chat m")
    assert call.failed
    assert call.attributes["error.type"] == "500"
    # The server did what it should: by the conventions a 4xx is no error of a server.
    assert not invalid.failed
    assert invalid.attributes["http.response.status_code"] == 400


async def test_an_unreachable_upstream_is_an_error_of_both(start_gateway, otlp):
    gateway = await start_gateway(upstream=(CLOSED,))
    assert (await gateway.ask(QUESTION)).status == 502
    await gateway.stop()
    for span in otlp.named(SERVER_SPAN, "chat m"):
        assert span.failed
        assert span.attributes["error.type"] == "upstream-unreachable"
    assert len(otlp.named("chat m")) == 1 + MOST_SAME_RETRIES


async def test_a_request_that_joins_a_call_has_a_link_to_it(start_gateway, upstream, otlp):
    let_go = asyncio.Event()
    first, *rest = stream_of("slowly does it")

    async def answer(request, _body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(first)
        await let_go.wait()
        await response.write(b"".join(rest))
        return response

    upstream.answer = answer
    gateway = await start_gateway()
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.session.post(url, json=body) as one:
        assert await one.content.readexactly(len(first)) == first
        async with gateway.session.post(url, json=body) as other:
            assert await other.content.readexactly(len(first)) == first
            let_go.set()
            assert await one.read() == await other.read()
    await gateway.stop()
    leader, follower = otlp.named(SERVER_SPAN)
    assert follower.attributes["refrain.reason"] == "collapsed"
    assert follower.attributes["gen_ai.response.model"] == "scripted"
    (call,) = otlp.named("chat m")
    assert call.ids[2] == leader.ids[1]
    assert follower.links == [call.ids[1]]
    assert leader.links == []


async def test_a_client_that_leaves_ends_all_spans(start_gateway, upstream, otlp):
    async def answer(_request, _body):
        await asyncio.Event().wait()

    upstream.answer = answer
    gateway = await start_gateway()
    asking = asyncio.create_task(gateway.ask(QUESTION))
    await upstream.arrived.wait()
    asking.cancel()
    await upstream.cancelled.wait()
    await gateway.stop()
    (request,) = otlp.named(SERVER_SPAN)
    assert request.attributes["error.type"] == "client-gone"
    (call,) = otlp.named("chat m")
    assert call.attributes["error.type"] == "CancelledError"


async def test_a_path_that_passes_through_continues_the_trace_and_is_not_named(
    start_gateway, upstream, otlp
):
    gateway = await start_gateway()
    await gateway.get("/v1/files/secret-name", headers=CLIENT)
    await gateway.stop()
    (request,) = otlp.spans
    assert request.name == "GET /v1/*"
    assert "url.path" not in request.attributes
    assert request.attributes["refrain.outcome"] == "pass"
    (sent,) = upstream.requests
    assert sent.headers.getall("traceparent") == [f"00-{TRACE}-{request.ids[1]}-01"]
    assert not [body for _, body in otlp.bodies if b"secret-name" in body]


async def test_a_trace_that_the_client_does_not_sample_is_not_sent_but_goes_on(
    start_gateway, upstream, otlp
):
    gateway = await start_gateway()
    await gateway.ask(QUESTION, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    await gateway.stop()
    assert otlp.spans == []
    (sent,) = upstream.requests
    version, trace, span, flags = sent.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "00")
    assert span != PARENT


async def test_values_of_clients_and_upstreams_never_spoil_a_batch(start_gateway, upstream, otlp):
    async def answer(_request, body):
        odd = {"id": {"no": "text"}, "model": "x" * 10_000, "finish_reason": "y" * 1_000}
        return web.json_response(completion("ok", **odd))

    upstream.answer = answer
    gateway = await start_gateway()
    await gateway.ask(QUESTION, model="é" * 900, seed=2**64 - 1, temperature=1e300)
    await gateway.ask(QUESTION, model="m", n=2, response_format={"type": "json_object"})
    await gateway.stop()
    odd, plain = otlp.named("chat " + "é" * 256, "chat m")
    assert "gen_ai.request.seed" not in odd.attributes
    assert plain.attributes["gen_ai.request.choice.count"] == 2
    assert plain.attributes["gen_ai.output.type"] == "json"
    assert plain.attributes["gen_ai.response.model"] == "x" * 256
    assert "gen_ai.response.id" not in plain.attributes


async def test_a_batch_of_many_items_has_a_bounded_number_of_spans(start_gateway, upstream, otlp):
    async def answer(_request, body):
        data = [
            {"object": "embedding", "index": place, "embedding": [0.5]}
            for place in range(len(body["input"]))
        ]
        return web.json_response({"object": "list", "model": "e", "data": data})

    upstream.answer = answer
    gateway = await start_gateway()
    body = {"model": "e", "input": [f"text {number}" for number in range(300)]}
    assert (await gateway.post("/v1/embeddings", orjson.dumps(body))).status == 200
    await gateway.stop()
    (call,) = otlp.named("embeddings e")
    assert call.kind == "CLIENT"
    assert len(otlp.spans) == 64 + 2


async def test_a_refresh_of_a_stale_entry_is_a_child_of_the_request(
    start_gateway, upstream, otlp, tmp_path, monkeypatch
):
    ahead = 0.0
    clock = SimpleNamespace(
        time=lambda: time.time() + ahead, perf_counter=time.perf_counter, monotonic=time.monotonic
    )
    monkeypatch.setattr("gateway.app.time", clock)
    policy = tmp_path / "policy.yaml"
    policy.write_text(STALE)
    gateway = await start_gateway(policy=policy)
    await gateway.ask(QUESTION)
    ahead = 112.0
    upstream.arrived.clear()
    assert "stale-while-revalidate" in (await gateway.ask(QUESTION)).cache
    await upstream.arrived.wait()
    while "stale" in (await gateway.ask(QUESTION)).cache:
        pass
    await gateway.stop()
    _, stale, *_ = otlp.named(SERVER_SPAN)
    refresh, *_ = otlp.named("refresh")
    assert refresh.kind == "INTERNAL"
    assert refresh.ids[2] == stale.ids[1]
    _, call, *_ = otlp.named("chat m")
    assert call.ids[2] == refresh.ids[1]


async def test_without_an_endpoint_nothing_is_traced(gateway, upstream):
    await gateway.ask(headers={"traceparent": CLIENT["traceparent"]})
    (sent,) = upstream.requests
    assert sent.headers["traceparent"] == CLIENT["traceparent"]
