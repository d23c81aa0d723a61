"""Requests to ``/v1/messages`` for a server that speaks chat completions, and its replies.

Laws:
- Above this module every request and reply of the endpoint has Anthropic's form. What a server
  speaks is known here alone, so no key and no entry depends on it.
- What not every server takes fails no request: the usage of a stream, an effort, earlier thinking,
  a beginning of the answer. The reply says which of these were sent, so that they can be left out.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson

from gateway.protocol import exact_json
from gateway.protocol.anthropic.reply import Prompt, UnreadableReplyError, to_error, to_message
from gateway.protocol.anthropic.request import (
    MAY_REFUSE,
    THOUGHTS,
    UntranslatableError,
    to_chat,
    without_thoughts,
)
from gateway.protocol.anthropic.stream import MessageEvents
from gateway.protocol.endpoints.messages import VERSION_HEADERS
from gateway.protocol.errors import UpstreamError, anthropic_error
from gateway.protocol.exact_json import BodyError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields, bearer, without
from gateway.protocol.http.messages import read_whole
from gateway.protocol.streaming.decode import EventTooLargeError
from gateway.protocol.tokens import prompt_tokens
from gateway.upstream.request import SALT, Outgoing, Served, UpstreamReply, parsed
from policies.decision import Endpoint

MAX_REPLY_BYTES = 64 * 2**20
"""Of a plain reply, which must be whole before it is translated."""

MESSAGES = Endpoint.MESSAGES.value
"""Requests to this path, and to those below it, may have to be translated."""
_ANTHROPICS = (*VERSION_HEADERS, "anthropic-dangerous-direct-browser-access")
_JSON = "application/json"
_EVENTS = "text/event-stream"
_TOKENIZE = "/tokenize"
"""Where vLLM, SGLang and the bundled engine count the tokens of a conversation."""

_REFUSED = frozenset({401, 402, 403, 429})
"""Statuses that say nothing of whether a server has such a path. Nor do the statuses of faults."""

_USAGE = "stream_options"


class Translated(NamedTuple):
    """A request in the server's form; ``body`` is the client's."""

    target: str
    fields: Fields
    raw: bytes
    body: dict[str, Any]
    optional: frozenset[str] = frozenset()
    """Its fields that not every server takes."""

    @property
    def counts(self) -> bool:
        """Whether tokens are to be counted."""
        return self.target == _TOKENIZE

    @property
    def prompt(self) -> Prompt:
        """Return what a reply depends on."""
        body = self.body
        return Prompt(
            partial(prompt_tokens, Endpoint.MESSAGES, body),
            str(body.get("model") or ""),
            frozenset(tool["name"] for tool in body.get("tools") or ()),
            len(body["messages"]),
        )

    def reply(self, status: int, body: bytes) -> bytes:
        """Return the body of a plain reply. Raises UnreadableReplyError."""
        if self.counts:
            return _count(self.prompt.tokens, status, body)
        if status != HTTPStatus.OK:
            return orjson.dumps(to_error(status, body))
        try:
            return exact_json.dumps(to_message(exact_json.loads(body), self.prompt))
        except (orjson.JSONDecodeError, TypeError):
            raise UnreadableReplyError("The model's server sent no chat completion.") from None


def is_translatable(outgoing: Outgoing) -> bool:
    """Tell whether a server of chat completions can get a request."""
    try:
        to_chat(_body(outgoing))
    except (UntranslatableError, BodyError):
        return False
    return True


class Untranslatable(NamedTuple):
    """The ``error`` that the client gets in place of an answer, as JSON."""

    error: bytes


def translate(
    outgoing: Outgoing, *, model: str | None, asks_usage: bool
) -> Translated | Untranslatable:
    """Return a request as the server reads it, or why the server cannot get it.

    ``model`` is the server's name of the model, if it has another one. ``asks_usage`` tells whether
    the usage of streams is to be requested.
    """
    counts = outgoing.target.partition("?")[0] != MESSAGES
    try:
        body = _body(outgoing)
        chat = to_chat(body if model is None else {**body, "model": model})
        if outgoing.salt:
            chat[SALT] = outgoing.salt
        if counts:
            chat = {name: chat[name] for name in ("model", "messages", "tools") if name in chat}
        optional = {name for name in MAY_REFUSE if name in chat and name not in body}
        if asks_usage and outgoing.streamed and not counts:
            chat[_USAGE] = {"include_usage": True}
            optional.add(_USAGE)
        plain = without_thoughts(chat["messages"])
        if plain is not chat["messages"]:
            optional.update(THOUGHTS)
        refused = optional if outgoing.plain else optional & outgoing.refused
        if refused:
            if not refused.isdisjoint(THOUGHTS):
                chat["messages"] = plain
            chat = {name: value for name, value in chat.items() if name not in refused}
        sent = exact_json.dumps(chat)
    except UntranslatableError as error:
        return _untranslatable(str(error))
    except (BodyError, TypeError):
        return _untranslatable(
            "The JSON body of your request cannot be sent to this model's server."
        )
    target = _TOKENIZE if counts else Endpoint.CHAT.value
    fields, left = _chat_fields(outgoing.fields), frozenset(optional - refused)
    return Translated(target, fields, sent, body, left)


def _body(outgoing: Outgoing) -> dict[str, Any]:
    return parsed(outgoing.raw) if outgoing.body is None else outgoing.body


def _untranslatable(message: str) -> Untranslatable:
    return Untranslatable(orjson.dumps(anthropic_error(400, message)))


def _chat_fields(fields: Fields) -> Fields:
    """Return the headers without Anthropic's own; a key moves to where the server reads it."""
    named = {name.lower(): value for name, value in fields}
    fields = without(fields, *_ANTHROPICS)
    if (key := named.get("x-api-key")) and not named.get("authorization"):
        fields = (*without(fields, "x-api-key"), ("Authorization", f"Bearer {bearer(key)}"))
    return fields


def _counted(status: int) -> int:
    refused = status in _REFUSED or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return status if refused and status != HTTPStatus.NOT_IMPLEMENTED else 200


def _count(prompt: Callable[[], int], status: int, reply: bytes) -> bytes:
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
            return orjson.dumps({"input_tokens": prompt(), "estimated": True})


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
        reply = await self._context.__aenter__()
        self._reply = reply
        self.served, self._sent_status = reply.served, reply.status
        if self._request.optional:
            self.served = replace(reply.served, added=self._request.optional)
        self.status = _counted(reply.status) if self._request.counts else reply.status
        self.headers, self.content_type = reply.headers, reply.content_type
        if reply.status == HTTPStatus.OK and reply.content_type == _EVENTS:
            self._events = MessageEvents(self._request.prompt)
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
