"""What is sent to an engine that takes nothing in is bounded."""

import asyncio
import socket

import pytest
from host_requests import Letters, request

from backend.engine import supervisor
from backend.engine.client import EngineClient
from backend.engine.messages import Abort, EngineDescription, Submit
from backend.engine.supervisor import EngineProcess
from backend.ports import OverloadedError
from backend.scheduler.request import FinishReason, GenerationRequest, SamplingParams


async def test_an_engine_that_leaves_much_lying_is_sent_no_more_requests(monkeypatch):
    monkeypatch.setattr(supervisor, "MOST_UNSENT_BYTES", 2**20)
    ours, theirs = socket.socketpair()
    link = EngineProcess(lambda _: None, lambda _: None)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    large = GenerationRequest("r", tuple(range(100_000)), SamplingParams())
    sent = []

    async def send_all():
        for number in range(100):
            link.send(Submit(number, large, 0.0))
            sent.append(number)
            await asyncio.sleep(0)

    with theirs:
        with pytest.raises(OverloadedError):
            await send_all()
        assert len(sent) > 2
        link.send(Abort(0, None, FinishReason.ABORT, 0.0))
        link.sever()
        await link.closed


async def test_a_request_that_cannot_be_sent_leaves_nothing_behind():
    def refuse(_):
        raise OverloadedError("no more", 1.0)

    client = EngineClient(refuse)
    client.open(EngineDescription(100, 50), Letters())
    with pytest.raises(OverloadedError):
        await anext(client.generate(request()))
    assert not client.has_requests
