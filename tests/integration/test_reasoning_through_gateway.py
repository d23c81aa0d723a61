"""Reasoning that the engine tells apart is stored by the gateway and replayed on either wire."""

import orjson
import pytest

from backend.scheduler.request import FinishReason, TextDelta
from backend.server.tool_parsers.reasoning import FORMATS

pytest_plugins = ["running_backend"]


async def thinking(request):
    for number, piece in enumerate(("<think>\nRain", " or", " sun?\n</thi", "nk>\n\nSun."), 1):
        yield TextDelta(0, piece, number)
    yield TextDelta(0, "", 5, FinishReason.STOP)


async def ask(session, gateway, *, stream):
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Weather?"}],
        "temperature": 0,
        "stream": stream,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as reply:
        status = reply.headers["Cache-Status"]
        if not stream:
            message = (await reply.json())["choices"][0]["message"]
            return status, message["reasoning_content"], message["content"]
        text = (await reply.read()).decode()
    events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    told = (
        "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning_content", "content")
    )
    return status, *told


@pytest.mark.parametrize("streamed_first", [True, False])
async def test_reasoning_is_replayed_as_it_was_told(start_server, start_gateway, streamed_first):
    engine = await start_server(script=thinking, reasoning=FORMATS["qwen3"])
    gateway = await start_gateway(upstream=(f"{engine.url}/v1",))
    said = [
        await ask(engine.session, gateway, stream=stream)
        for stream in (streamed_first, True, False)
    ]
    assert [each[1:] for each in said] == [("Rain or sun?", "Sun.")] * 3
    assert said[0][0].startswith("refrain; fwd=miss")
    assert all(each[0].endswith("detail=exact") for each in said[1:])
    assert len(engine.generator.requests) == 1
