"""Pings in the stream of a message, which begins and goes on while its server is silent.

Laws:
- A ping is written between two events, and only after some seconds in which nothing was written.
- If there is no reply after some seconds, the stream begins without it. Nothing of an answer has
  been sent then, so retries and stale answers are as without pings. Only the status is spent: what
  fails later is an error event.
- A message begins once: if the gateway has begun it, the server's own beginning is left out.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from gateway.protocol.endpoints.messages import render_message
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus
from gateway.protocol.http.messages import Reply
from gateway.protocol.streaming.decode import encode_event
from gateway.server.http.unread import Sink
from gateway.telemetry.observation import Observation, Outcome
from gateway.upstream.sharing.follower import SSE_TYPE


class Patience(NamedTuple):
    """How long a client of Messages hears nothing."""

    silence: float = 5.0
    """Seconds in a stream before a ping."""
    head: float = 8.0
    """Seconds to wait for a reply and its status. Then the stream begins without them."""


PATIENCE = Patience()

PING = encode_event("ping", {})
_START = re.compile(rb"event: ?message_start\r?\n[^\n]*\n\r?\n")


def message_start(message_id: str, model: str) -> bytes:
    """Return the beginning of a message of which nothing else is known."""
    message: dict[str, Any] = {"id": message_id, "type": "message", "role": "assistant"}
    message |= {"model": model, "content": [], "stop_reason": None, "stop_sequence": None}
    message["usage"] = {"input_tokens": 0, "output_tokens": 0}
    return encode_event("message_start", {"message": message})


class PingedSink:
    """Writes a stream to a sink, and a ping after each ``seconds`` of silence; see ``Sink``.

    ``start`` is the beginning of the message. ``at_once`` says that the first ping is due.
    """

    def __init__(self, sink: Sink, start: bytes, seconds: float, *, at_once: bool = False) -> None:
        self._sink, self._start, self._seconds = sink, start, seconds
        self._at_once = at_once
        self._is_silent = True
        """Whether nothing was written since the timer was set."""
        self._is_writing = False
        self._has_begun = False
        """Whether anything of the message was written."""
        self._replaces = False
        """Whether the gateway began the message, and the server's own beginning is to come."""
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None
        self._writer = asyncio.current_task()

    async def begin(self) -> None:
        await self._sink.begin()
        self._set(0.0 if self._at_once else self._seconds)

    async def end(self) -> None:
        self._stop()
        await self._sink.end()

    def abort(self) -> None:
        self._stop()
        self._sink.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def write(self, data: bytes | memoryview) -> None:
        if self._replaces:
            data, found = _START.subn(b"", bytes(data), count=1)
            self._replaces = not found
        self._has_begun = self._is_writing = True
        self._is_silent = False
        try:
            await self._sink.write(data)
        finally:
            self._is_writing = False

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        if self._writer is None or self._writer.done():  # cancelled, since its client has left
            return
        if self._is_silent and (self._ping is None or self._ping.done()):
            self._ping = asyncio.create_task(self._write_ping())
        self._is_silent = True
        self._set(self._seconds)

    async def _write_ping(self) -> None:
        if self._is_writing or not self._is_silent:
            return
        event = PING
        if not self._has_begun:
            event, self._replaces, self._has_begun = self._start + PING, True, True
        with suppress(ConnectionResetError, TimeoutError):  # the next write meets the same
            await self._sink.write(event)


class LateReply(AsyncIterator[bytes]):
    """The body of a stream that began before its reply was there."""

    def __init__(
        self, answer: asyncio.Task[tuple[Reply, Outcome]], fault: Callable[[Exception], Reply]
    ) -> None:
        self._answer, self._fault = answer, fault
        self._body: AsyncIterator[bytes] | None = None

    async def __anext__(self) -> bytes:
        """Return the next events of the reply, or its error as one."""
        if self._body is not None:
            return await anext(self._body)
        try:
            reply, _ = await self._answer
        except Exception as error:  # noqa: BLE001 - each becomes a reply
            reply = self._fault(error)
        if isinstance(reply.body, bytes):
            self._body = _once(_as_events(reply, reply.body))
        else:
            self._body = reply.body
        return await anext(self._body)

    def close(self) -> None:
        """Leave the reply, or no longer wait for it."""
        if not self._answer.done():
            self._answer.cancel()
        elif not self._answer.cancelled() and self._answer.exception() is None:
            self._answer.result()[0].close()


async def _once(events: bytes) -> AsyncIterator[bytes]:
    yield events


def _as_events(reply: Reply, body: bytes) -> bytes:
    """Return a whole reply as events."""
    if SSE_TYPE in reply.headers:
        return body
    try:
        given = orjson.loads(body)
        if reply.status == HTTPStatus.OK:
            return render_message(given)
        return encode_event("error", {"error": given["error"]})
    except (ValueError, TypeError, KeyError, AttributeError):
        text = "The model's server sent a reply that is no stream."
        return encode_event("error", {"error": {"type": "api_error", "message": text}})


async def reply_in_time(
    answer: Awaitable[tuple[Reply, Outcome]],
    fault: Callable[[Exception], Reply],
    *,
    seen: Observation,
    seconds: float,
) -> tuple[Reply, Outcome | None]:
    """Return the reply, or one that begins without it. Raises as ``answer`` does, if in time.

    ``fault`` makes a reply of an error.
    """
    task = asyncio.ensure_future(answer)
    news = asyncio.Event()  # at a fraction of what asyncio.wait costs
    task.add_done_callback(lambda _: news.set())
    timer = asyncio.get_running_loop().call_later(seconds, news.set)
    try:
        await news.wait()
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        timer.cancel()
    if task.done():
        return task.result()
    body = LateReply(task, fault)
    status = seen.forward or ForwardStatus(Forwarded.MISS)
    fields = (SSE_TYPE, ("Cache-Status", status.header()))
    return Reply(200, fields, body, body.close), None
