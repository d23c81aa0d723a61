"""A live session that passes through: whole messages both ways, until either side closes.

Laws:
- Neither side is read faster than the other one takes.
- What each response has used is charged when it ends. A holder with no tokens left gets no other.
- A close goes on to the other side with its code and its reason.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.exact_json import BodyError, parse_body
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.http.headers import reply_fields, with_cache_status
from gateway.protocol.named_models import models_in
from gateway.protocol.reply_usage import LiveUsage, total
from gateway.protocol.tokens import PromptUsage
from gateway.server.http.http_server import is_foreign
from gateway.server.http.middleware import (
    KEY,
    PERMIT,
    STOPPING,
    SUBPROTOCOLS,
    ResponseSink,
    subprotocols,
)
from gateway.telemetry.observation import Observation
from gateway.upstream.request import with_upstream
from gateway.upstream.wire.connection import HttpReply
from gateway.upstream.wire.websocket import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    MESSAGE_BYTES,
    UpstreamSocket,
    sendable,
)

MOST_SECONDS = 2 * 3_600.0
"""Of one session: providers end theirs before."""

_ON_LOOP_BYTES = 2**16
_CHOSEN = SUBPROTOCOLS.lower()
_HANDSHAKES = (_CHOSEN, "sec-websocket-accept", "sec-websocket-extensions")


class Close(NamedTuple):
    """How a session ends. ``fault`` is why, unless a side has closed it."""

    code: int
    reason: bytes = b""
    fault: Reason | None = None
    of_client: bool = False


@dataclass(slots=True)
class _Session:
    request: web.Request
    client: web.WebSocketResponse
    upstream: UpstreamSocket
    model: str
    seen: Observation
    seconds: float
    """Either side has so long to take a message."""
    usage: LiveUsage = field(default_factory=LiveUsage)
    used: list[PromptUsage] = field(default_factory=list)
    rests: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no response is under way."""

    async def from_client(self) -> Close:
        """Send on what the client sends, until it closes."""
        while True:
            message = await self.client.receive()
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return Close(self.client_code, _reason(message), of_client=True)
            self.usage.note_sent(len(message.data))
            if not self.usage.is_answering and (spent := self._spent()) is not None:
                return await self._end_spent(spent)
            if (refused := await self._refusal(message)) is not None:
                await self._tell(refused)
            else:
                await self.upstream.send(message, self.seconds)

    async def from_upstream(self) -> Close:
        """Send on what the upstream sends, until it closes, or the holder's tokens are used up."""
        while True:
            message = await self.upstream.receive()
            if message.type is WSMsgType.CLOSE:
                return Close(sendable(message.data), _reason(message))
            self.seen.note_sent(len(message.data))
            begun = self.usage.num_begun
            used = self.usage.feed(message.data) if message.type is WSMsgType.TEXT else None
            await self._write(message.data)
            if self.usage.is_answering:
                self.rests.clear()
            else:
                self.rests.set()
            if used is not None:
                self._charge(used)
            has_changed = used is not None or self.usage.num_begun != begun
            if has_changed and (spent := self._spent()) is not None:
                return await self._end_spent(spent)

    @property
    def client_code(self) -> int:
        """The code of the client's close, or of its end without one."""
        code = self.client.close_code
        return sendable(1006 if code is None else code)

    async def stop(self) -> Close:
        """End with the gateway, once no response is under way."""
        await self.request.app[STOPPING].wait()
        await self.rests.wait()
        return Close(WSCloseCode.GOING_AWAY, b"the gateway is stopping")

    def charge_rest(self) -> None:
        """Charge an estimate for a response that was left."""
        if (used := self.usage.end()) is not None:
            self._charge(used)
        if self.used:
            self.seen.note_call(self.seen.call._replace(usage=total(self.used)))

    def _charge(self, used: PromptUsage) -> None:
        self.used.append(used)
        if (permit := self.request.get(PERMIT)) is not None:
            permit.charge_part(used, self.model)

    def _spent(self) -> ClientError | None:
        """Return why there may be no other response, if the holder's tokens are used up."""
        permit = self.request.get(PERMIT)
        try:
            if permit is not None:
                permit.limiter.check_spent()
        except ClientError as error:
            return error
        return None

    async def _end_spent(self, error: ClientError) -> Close:
        await self._tell(error)
        why = b"this API key has used what it may"
        return Close(WSCloseCode.POLICY_VIOLATION, why, error.reason)

    async def _refusal(self, message: WSMessage) -> ClientError | None:
        """Return why a restricted key may not send a message: its models are read, as elsewhere."""
        key = self.request.get(KEY)
        if key is None or not key.models:
            return None
        if message.type is not WSMsgType.TEXT:
            return ClientError(400, "This API key sends events as text.")
        try:
            key.check_models(await _models(message.data))
        except BodyError as error:
            return ClientError(
                400, f"The event cannot be read, which this API key requires: {error}."
            )
        except ClientError as error:
            return error
        return None

    async def _tell(self, error: ClientError) -> None:
        body: dict[str, Any] = {"type": "error", "event_id": "event_refrain", **error.body()}
        await self._write(orjson.dumps(body).decode())

    async def _write(self, data: str | bytes) -> None:
        async with asyncio.timeout(self.seconds):
            await (
                self.client.send_str(data)
                if isinstance(data, str)
                else self.client.send_bytes(data)
            )


def check_handshake(request: web.Request) -> None:
    """Raise ClientError for a handshake that is malformed, or of a page that may not ask."""
    # Told what is offered, aiohttp does not log it.
    socket = web.WebSocketResponse(protocols=subprotocols(request), compress=False)
    if not socket.can_prepare(request) or request.can_read_body:
        message = (
            "The WebSocket handshake is malformed: it has 'Upgrade: websocket', "
            "'Connection: Upgrade', a Sec-WebSocket-Key of 16 bytes in base64, "
            "'Sec-WebSocket-Version: 13' and no body."
        )
        raise ClientError(400, message, code="invalid_handshake")
    if KEY not in request and is_foreign(request):
        message = (
            "A page of another origin needs a gateway key for a WebSocket, "
            "since browsers let every page open one."
        )
        raise ClientError(403, message, param="Origin", code="origin_not_allowed")


async def relay(
    request: web.Request, reply: HttpReply, seen: Observation, model: str
) -> web.StreamResponse:
    """Switch the client's connection too, and pass messages on until the session ends."""
    upstream = UpstreamSocket(reply)
    chosen = next((value for name, value in reply.headers if name.lower() == _CHOSEN), None)
    response = web.WebSocketResponse(
        timeout=CLOSE_SECONDS,
        heartbeat=HEARTBEAT_SECONDS,
        autoclose=False,  # the upstream hears of it first, since the client may leave at once
        protocols=() if chosen is None else (chosen,),
        compress=False,  # a small message could inflate to a large one
        max_msg_size=MESSAGE_BYTES,
    )
    status = ForwardStatus(Forwarded.BYPASS, Reason.REALTIME)
    fields = with_cache_status(reply_fields(reply.headers, *_HANDSHAKES), status.header())
    response.headers.extend(with_upstream(fields, reply.served))
    sink = ResponseSink(request, response)
    await sink.begin()
    seen.end("pass", Reason.REALTIME, HTTPStatus.SWITCHING_PROTOCOLS)
    session = _Session(request, response, upstream, model, seen, sink.unread.seconds)
    session.rests.set()
    try:
        end = await _first(session.from_client(), session.from_upstream(), session.stop())
        if end.fault is not None:
            is_limit = end.code == WSCloseCode.POLICY_VIOLATION
            outcome = "invalid" if is_limit else "error"
            seen.end(outcome, end.fault, HTTPStatus.SWITCHING_PROTOCOLS)
        await upstream.close(end.code, end.reason)
        await response.close(code=end.code, message=end.reason)
        await upstream.closed()
        if end.of_client and end.code == WSCloseCode.MESSAGE_TOO_BIG:
            # What the client still sends would reset the connection before it reads the close.
            await asyncio.sleep(CLOSE_SECONDS)  # its leaving cancels this
    except asyncio.CancelledError:  # the client has left without a word
        await upstream.close(session.client_code, b"")
        raise
    finally:
        session.charge_rest()
    return response


async def _first(*sides: Awaitable[Close]) -> Close:
    """Return the close of the side that ends first, or what its fault means for the other one."""
    tasks = [asyncio.ensure_future(side) for side in sides]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=MOST_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return Close(WSCloseCode.GOING_AWAY, b"the session has lasted as long as it may")
        return next(task for task in tasks if task in done).result()
    except UpstreamError as error:
        return Close(WSCloseCode.BAD_GATEWAY, error.message.encode()[:120], error.reason)
    except TimeoutError:
        return Close(WSCloseCode.GOING_AWAY, b"", Reason.CLIENT_TIMEOUT)
    except ConnectionResetError:
        return Close(WSCloseCode.GOING_AWAY, b"", Reason.CLIENT_GONE, of_client=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _models(event: str) -> list[str]:
    raw = event.encode(errors="surrogatepass")
    if len(raw) > _ON_LOOP_BYTES:
        return await asyncio.to_thread(lambda: models_in(parse_body(raw)))
    return models_in(parse_body(raw))


def _reason(message: WSMessage) -> bytes:
    """Return what a side says of its close."""
    return message.extra.encode()[:123] if isinstance(message.extra, str) else b""
