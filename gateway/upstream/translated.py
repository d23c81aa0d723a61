"""Requests to ``/v1/messages`` for a server that speaks chat completions, and its replies.

Law: above this module every request and reply of the endpoint has Anthropic's form. What a server
speaks is known here alone, so no key and no entry depends on it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson

from gateway.protocol import exact_json
from gateway.protocol.anthropic.reply import UnreadableReplyError, to_error, to_message
from gateway.protocol.anthropic.request import UntranslatableError, to_chat
from gateway.protocol.anthropic.stream import MessageEvents
from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError, anthropic_error
from gateway.protocol.headers import Fields, bearer, without
from gateway.protocol.messages import read_whole
from gateway.protocol.streaming.decode import EventTooLargeError
from gateway.protocol.tokens import prompt_tokens
from gateway.upstream.request import Served, UpstreamReply
from policies.decision import Endpoint

MAX_REPLY_BYTES = 64 * 2**20
"""Of a plain reply, which must be whole before it is translated."""

MESSAGES = Endpoint.MESSAGES.value
"""Requests to this path, and to those below it, may have to be translated."""
_ANTHROPICS = ("anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access")
_JSON = "application/json"
_EVENTS = "text/event-stream"
_TOKENIZE = "/tokenize"
"""Where vLLM, SGLang and the bundled engine count the tokens of a conversation."""

_REFUSED = frozenset({401, 402, 403, 429})
"""Statuses that say nothing of whether a server has such a path. Nor do those of faults."""

Translate = Callable[[int, bytes], bytes]
"""Makes the body of a plain reply, of the server's status and body."""


class Translated(NamedTuple):
    """A request in the server's form; ``status`` and ``reply`` are those of the plain reply."""

    target: str
    fields: Fields
    raw: bytes
    status: Callable[[int], int]
    reply: Translate


def translate(target: str, fields: Fields, raw: bytes, *, asks_usage: bool) -> Translated | bytes:
    """Return a request as the server reads it, or the error that the client gets in its place.

    ``asks_usage`` tells whether the usage of streams is to be requested.
    """
    try:
        body = exact_json.loads(raw)
        chat = to_chat(body, asks_usage=asks_usage)
        sent = exact_json.dumps(chat)
    except UntranslatableError as error:
        return _error(str(error))
    except (orjson.JSONDecodeError, TypeError):
        return _error("The JSON body of your request cannot be sent to this model's server.")
    if target.partition("?")[0] == MESSAGES:
        fields = _chat_fields(fields)
        return Translated(Endpoint.CHAT.value, fields, sent, lambda status: status, _message)
    prompt = {name: chat[name] for name in ("model", "messages", "tools") if name in chat}
    raw = exact_json.dumps(prompt)

    def count(status: int, reply: bytes) -> bytes:
        return _count(body, status, reply)

    return Translated(_TOKENIZE, _chat_fields(fields), raw, _counted, count)


def _error(message: str) -> bytes:
    return orjson.dumps(anthropic_error(400, message))


def _chat_fields(fields: Fields) -> Fields:
    """Return the headers without Anthropic's own; a key moves to where the server reads it."""
    named = {name.lower(): value for name, value in fields}
    fields = without(fields, *_ANTHROPICS)
    if (key := named.get("x-api-key")) and not named.get("authorization"):
        fields = (*without(fields, "x-api-key"), ("Authorization", f"Bearer {bearer(key)}"))
    return fields


def _message(status: int, body: bytes) -> bytes:
    if status != HTTPStatus.OK:
        return orjson.dumps(to_error(status, body))
    try:
        return exact_json.dumps(to_message(exact_json.loads(body)))
    except (orjson.JSONDecodeError, TypeError):
        raise UnreadableReplyError("The model's server sent no chat completion.") from None


def _counted(status: int) -> int:
    refused = status in _REFUSED or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return status if refused and status != HTTPStatus.NOT_IMPLEMENTED else 200


def _count(body: dict[str, Any], status: int, reply: bytes) -> bytes:
    if _counted(status) != HTTPStatus.OK:
        return orjson.dumps(to_error(status, reply))
    try:
        given = orjson.loads(reply) if status == HTTPStatus.OK else None
    except orjson.JSONDecodeError:
        given = None
    match given:
        case {"count": int(count)}:
            return orjson.dumps({"input_tokens": count})
        case _:
            estimate = prompt_tokens(Endpoint.COUNT_TOKENS, body)
            return orjson.dumps({"input_tokens": estimate, "estimated": True})


class TranslatedReply:
    """The reply to a translated request, in Anthropic's form; see the port ``UpstreamReply``."""

    served: Served
    status: int
    headers: Sequence[tuple[str, str]]
    content_type: str

    def __init__(
        self, context: AbstractAsyncContextManager[UpstreamReply], request: Translated
    ) -> None:
        self._context, self._request = context, request
        self._reply: UpstreamReply
        self._events: MessageEvents | None = None
        self._over = False
        self._sent_status = 0

    async def __aenter__(self) -> Self:
        """Wait for the head. Raises UpstreamError."""
        self._reply = reply = await self._context.__aenter__()
        self.served, self._sent_status = reply.served, reply.status
        self.status = self._request.status(reply.status)
        self.headers, self.content_type = reply.headers, reply.content_type
        if reply.status == HTTPStatus.OK and reply.content_type == _EVENTS:
            self._events = MessageEvents()
        else:
            self.content_type = _JSON
            self.headers = (*without(reply.headers, "content-type"), ("Content-Type", _JSON))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the reply."""
        await self._context.__aexit__(kind, error, traceback)

    async def read(self) -> bytes:
        """Return the next events, or the plain reply, and nothing at its end.

        Raises UpstreamError, also for a reply that cannot be translated.
        """
        try:
            return await (self._read_plain() if self._events is None else self._next(self._events))
        except (UnreadableReplyError, EventTooLargeError, TypeError) as error:
            text = str(error) if isinstance(error, UnreadableReplyError) else _TOO_LARGE
            raise UpstreamError(502, text, Reason.UPSTREAM_BROKE, answered=True) from None

    async def _read_plain(self) -> bytes:
        if self._over:
            return b""
        self._over = True
        body = await read_whole(self._reply.read, MAX_REPLY_BYTES)
        if body is None:
            raise UnreadableReplyError(_TOO_LARGE)
        return self._request.reply(self._sent_status, body)

    async def _next(self, events: MessageEvents) -> bytes:
        while not self._over:
            piece = await self._reply.read()
            self._over = not piece
            if translated := events.feed(piece) if piece else events.end():
                return translated
        return b""


_TOO_LARGE = "The model's server sent a reply that is too large to be translated."


class RefusedReply:
    """The reply to a request that cannot be translated: nothing was sent."""

    status = 400
    headers = (("Content-Type", _JSON),)
    content_type = _JSON

    def __init__(self, served: Served, body: bytes) -> None:
        self.served, self._body = served, body

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        """Return the error, and then nothing."""
        body, self._body = self._body, b""
        return body
