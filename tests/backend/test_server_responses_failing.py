"""/v1/responses when the engine fails, or its client leaves."""

import pytest

from backend.ports import EngineError, QueueFullError
from backend.scheduler.request import FinishReason, TextDelta

pytest_plugins = ["running_backend"]


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error(start_server):
    async def script(request):
        yield TextDelta(0, "Hel", 1)
        raise EngineError("it broke")

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=True)
    *_, failed, error = reply.typed_events
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert error["type"] == "error"
    assert error["error"].items() >= {"code": "engine_error", "param": None}.items()
    assert error["message"] == error["error"]["message"] == "The engine failed: it broke"
    count = 'refrain_engine_requests_total{endpoint="/v1/responses",outcome="server_error"}'
    assert await server.metric(count) == 1


async def test_what_the_engine_gives_up_at_once_begins_and_fails(start_server):
    async def script(request):
        yield TextDelta(0, "", 0, FinishReason.ABORT)

    server = await start_server()
    server.generator.script = script
    events = (await server.respond(stream=True)).typed_events
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.failed", "error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_word_has_a_status_of_its_own(start_server, stream):
    async def script(request):
        raise QueueFullError("too many", 3)
        yield

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=stream)
    assert reply.status == 429
    assert reply.error["code"] == "queue_full"
    assert reply.headers["Retry-After"] == "3"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_that_ends_early_is_no_answer(start_server, stream):
    async def script(request):
        yield TextDelta(0, "Hel", 1)

    server = await start_server()
    server.generator.script = script
    reply = await server.respond(stream=stream)
    if stream:
        assert reply.typed_events[-1]["error"]["code"] == "engine_error"
    else:
        assert reply.status == 500


async def test_a_client_that_leaves_cancels_its_generation(start_server):
    async def script(request):
        yield TextDelta(0, "Hello", 1)
        await server.generator.cancelled.wait()

    server = await start_server()
    server.generator.script = script
    body = {"model": server.model.name, "input": "Hi", "stream": True}
    async with server.session.post(f"{server.url}/v1/responses", json=body) as reply:
        await reply.content.readuntil(b"output_text.delta")
        reply.close()
    await server.generator.cancelled.wait()
