"""Readiness, clients that leave, draining, models and metrics."""

import asyncio
import threading

import orjson
import pytest
from fake_models import at_once, nothing_to_close

from backend.ports import EngineError
from backend.process import in_background, is_left_behind
from backend.scheduler.request import FinishReason, TextDelta
from backend.server import replies
from backend.server.app import build_application, drain
from backend.server.served_model import LoadedModel, ServedModel

pytest_plugins = ["running_backend"]

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


async def one_then_wait(request):
    yield TextDelta(0, "Hello", 1)
    if request.request_id != "warm-up":
        await asyncio.Event().wait()


async def only_wait(request):
    if request.request_id != "warm-up":
        await asyncio.Event().wait()
    yield TextDelta(0, "", 1, FinishReason.STOP)


async def send_chat(server, **fields):
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = orjson.dumps(CHAT | fields)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    return reader, writer


STAGE = "the model is being loaded: reading the weights"
CANCELLED = 'refrain_engine_requests_total{endpoint="/v1/chat/completions",outcome="cancelled"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [one_then_wait, only_wait])
async def test_a_client_that_leaves_cancels_its_generation(start_server, stream, script):
    server = await start_server(script=script)
    reader, writer = await send_chat(server, stream=stream)
    await asyncio.wait_for(server.generator.started.wait(), 60)
    if stream and script is one_then_wait:
        await asyncio.wait_for(reader.readuntil(b"Hello"), 60)
    assert not server.generator.cancelled.is_set()
    writer.transport.abort()
    await asyncio.wait_for(server.generator.cancelled.wait(), 60)
    async with asyncio.timeout(60):
        while await server.metric(CANCELLED) != 1:
            pass


async def test_a_client_that_leaves_cancels_every_prompt(start_server):
    running = 0
    all_run, all_ended = asyncio.Event(), asyncio.Event()

    async def script(request):
        nonlocal running
        if request.request_id != "warm-up":
            running += 1
            try:
                if running == 3:
                    all_run.set()
                await asyncio.Event().wait()
            finally:
                running -= 1
                if running == 0:
                    all_ended.set()
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    asking = asyncio.create_task(server.complete(["a", "b", "c"]))
    await asyncio.wait_for(all_run.wait(), 60)
    asking.cancel()
    await asyncio.wait_for(all_ended.wait(), 60)


@pytest.fixture
async def loading(serve_application):
    """A server whose model loads once ``release`` is set."""
    from backend.scheduler.stats import EngineStats

    class Generator:
        ready = True
        detail = ()
        max_model_len = 10

        async def generate(self, request):
            yield TextDelta(0, "", 1, FinishReason.STOP)

        def stats(self):
            return EngineStats(0, 0, 0, 1, 0, 0, 0)

    release = asyncio.Event()
    generator = Generator()

    async def load(tell):
        tell("reading the weights")
        await release.wait()
        return LoadedModel(generator, None, nothing_to_close)

    server = await serve_application(build_application(ServedModel("scripted", load)), generator)
    server.release = release
    return server


async def test_while_the_model_loads(loading):
    assert (await loading.get("/readyz")).json["reasons"] == ["the model is being loaded"]
    task = asyncio.create_task(loading.model.load())
    assert (await loading.get("/healthz")).status == 200
    assert (await loading.get("/v1/models")).json["data"][0]["id"] == "scripted"
    assert (await loading.get("/metrics")).status == 200
    reply = await loading.get("/readyz")
    assert reply.status == 503
    assert reply.json == {"status": "unavailable", "reasons": [STAGE]}
    reply = await loading.chat()
    assert (reply.status, reply.error["type"]) == (503, "server_error")
    assert int(reply.headers["Retry-After"]) >= 1
    assert (await loading.chat(n=0)).status == 400
    loading.release.set()
    await asyncio.wait_for(task, 60)
    assert (await loading.get("/readyz")).json == {"status": "ready", "reasons": []}


async def test_what_the_engine_replaced_is_told_and_it_stays_ready(server):
    server.generator.detail = ("sampling: PyTorch's sampling, because of …",)
    reply = await server.get("/readyz")
    assert reply.status == 200
    assert reply.json == {
        "status": "ready",
        "reasons": [],
        "detail": ["sampling: PyTorch's sampling, because of …"],
    }


async def test_an_engine_that_stopped_is_not_ready(server):
    server.generator.ready = False
    assert (await server.get("/readyz")).json["reasons"] == ["the engine is not running"]
    assert (await server.chat()).status == 503


async def test_a_load_that_fails_is_raised_where_it_is_awaited():
    async def load(_tell):
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await ServedModel("m", load).load()


async def test_a_warm_up_that_fails_closes_the_engine():
    closed = []

    class Generator:
        async def generate(self, request):
            raise EngineError("cannot compute")
            yield

    async def close():
        closed.append(1)

    model = ServedModel("m", at_once(LoadedModel(Generator(), None, close)))
    with pytest.raises(EngineError, match="cannot compute"):
        await model.load()
    assert closed == [1]
    assert model.unready_reason


async def test_work_that_is_given_up_leaves_its_thread_and_says_so():
    began, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work():
        loop.call_soon_threadsafe(began.set)
        release.wait(10)

    task = asyncio.create_task(in_background(work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_left_behind()
    release.set()


async def test_a_client_that_does_not_read_is_let_go(start_server, monkeypatch):
    monkeypatch.setattr(replies, "WRITE_SECONDS", 0.2)

    async def endless(request):
        if request.request_id == "warm-up":
            yield TextDelta(0, "", 1, FinishReason.STOP)
            return
        for number in range(1, 1_000):
            yield TextDelta(0, "x" * 100_000, number)

    server = await start_server(script=endless)
    _, writer = await send_chat(server, stream=True)
    await asyncio.wait_for(server.generator.cancelled.wait(), 60)
    assert await server.metric(CANCELLED) == 1
    writer.close()


async def test_stopping_waits_for_open_requests(start_server):
    finish = asyncio.Event()

    async def script(request):
        yield TextDelta(0, "Hello", 1)
        if request.request_id != "warm-up":
            await finish.wait()
        yield TextDelta(0, "", 2, FinishReason.STOP)

    server = await start_server(script=script)
    asking = asyncio.create_task(server.chat())
    await asyncio.wait_for(server.generator.started.wait(), 60)
    app = server.runner.app
    stopping = asyncio.create_task(drain(server.runner, app, delay=0.0, wait=60.0))
    await asyncio.sleep(0)
    finish.set()
    assert (await asyncio.wait_for(asking, 60)).json["choices"][0]["message"]["content"] == "Hello"
    await asyncio.wait_for(stopping, 60)


async def test_stopping_cancels_requests_that_take_too_long(start_server):
    server = await start_server(script=one_then_wait)
    reader, writer = await send_chat(server, stream=True)
    await asyncio.wait_for(reader.readuntil(b"Hello"), 60)
    await asyncio.wait_for(server.runner.cleanup(), 5)
    assert server.generator.cancelled.is_set()
    assert b"[DONE]" not in await asyncio.wait_for(reader.read(), 60)
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_tells_those_whom_the_engine_gives_up(start_server, stream):
    stopped = asyncio.Event()

    async def until_stopped(request):
        yield TextDelta(0, "Hello", 1)
        if request.request_id != "warm-up":
            await stopped.wait()
            raise EngineError("the engine is shutting down")

    async def stop():
        stopped.set()

    server = await start_server(script=until_stopped, close=stop)
    reader, writer = await send_chat(server, stream=stream)
    await asyncio.wait_for(server.generator.started.wait(), 60)
    await asyncio.wait_for(server.runner.cleanup(), 5)
    answer = await asyncio.wait_for(reader.read(), 60)
    assert b"The engine failed: the engine is shutting down" in answer
    assert b"[DONE]" not in answer
    writer.close()


async def test_models(server):
    listed = (await server.get("/v1/models")).json
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model == {
        "id": "scripted",
        "object": "model",
        "created": model["created"],
        "owned_by": "refrain",
        "max_model_len": 100,
    }
    assert isinstance(model["created"], int)
    assert (await server.get("/v1/models/scripted")).json == model
    reply = await server.get("/v1/models/org/other")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_metrics(server):
    await server.chat()
    await server.chat(stream=True)
    await server.chat(n=0)
    await server.get("/nowhere")
    assert (await server.get("/metrics")).headers["Content-Type"].startswith("text/plain")
    for endpoint, outcome, count in (
        ("/v1/chat/completions", "ok", 2),
        ("/v1/chat/completions", "client_error", 1),
        ("other", "client_error", 1),
    ):
        labels = f'{{endpoint="{endpoint}",outcome="{outcome}"}}'
        assert await server.metric(f"refrain_engine_requests_total{labels}") == count
    endpoint = '{endpoint="/v1/chat/completions"}'
    assert await server.metric(f"refrain_engine_request_seconds_count{endpoint}") == 2
    for name, value in {
        "sequences_running": 1,
        "sequences_waiting": 2,
        "kv_blocks_used": 3,
        "kv_blocks": 4,
        "kv_use_ratio": 0.75,
        "preemptions_total": 5,
        "prompt_tokens_total": 6,
        "generation_tokens_total": 7,
    }.items():
        assert await server.metric(f"refrain_engine_{name}") == value


async def test_each_application_counts_for_itself(start_server):
    one, other = await start_server(), await start_server()
    await one.chat()
    sample = 'refrain_engine_requests_total{endpoint="/v1/chat/completions",outcome="ok"}'
    assert (await one.metric(sample), await other.metric(sample)) == (1, None)
