import asyncio
import threading

import pytest

from backend.core.types import FinishReason, TextDelta
from backend.ports import EngineError
from backend.runtime.delivery import Outbox, Stream


async def send(outbox):
    thread = threading.Thread(target=outbox.flush)
    thread.start()
    await asyncio.to_thread(thread.join)


async def test_a_reader_who_keeps_up_sees_every_delta():
    outbox, stream = Outbox(), Stream(asyncio.get_running_loop())
    for count, text in enumerate("abc", start=1):
        outbox.put(stream, TextDelta(0, text, count))
        await send(outbox)
        assert await stream.receive() == [TextDelta(0, text, count)]


async def test_a_reader_who_falls_behind_gets_one_delta_for_each_choice():
    outbox, stream = Outbox(), Stream(asyncio.get_running_loop())
    for count, text in enumerate("abc", start=1):
        outbox.put(stream, TextDelta(0, text, count))
        outbox.put(stream, TextDelta(1, text.upper(), count))
        await send(outbox)
    outbox.put(stream, TextDelta(1, "!", 4, FinishReason.STOP))
    await send(outbox)
    assert await stream.receive() == [
        TextDelta(0, "abc", 3),
        TextDelta(1, "ABC!", 4, FinishReason.STOP),
    ]


async def test_a_failure_comes_after_the_text_before_it():
    outbox, stream = Outbox(), Stream(asyncio.get_running_loop())
    outbox.put(stream, TextDelta(0, "half an", 2))
    outbox.put(stream, EngineError("broken"))
    await send(outbox)
    assert await stream.receive() == [TextDelta(0, "half an", 2)]
    for _ in range(2):
        with pytest.raises(EngineError, match="broken"):
            await stream.receive()
