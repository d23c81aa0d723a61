"""Replies of all endpoints: usage, choices, log probabilities, and server-sent events.

Log probabilities are the model's own: before temperature, bias, penalties and filters.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from backend.scheduler.request import FinishReason, TextDelta, TokenLogprobs
from backend.server.protocol.errors import ApiError
from backend.server.protocol.generation import CompletionFields, StreamOptions

Object = dict[str, Any]

TokenBytes = Callable[[int], bytes]
"""A token's text; special tokens by their names."""

WRITE_SECONDS = 30.0
"""A client that takes nothing for so long, with all buffers full, counts as gone."""

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

_LEAST = -9999.0
"""OpenAI's number for what has no probability: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts, each counted once, and of all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """So many tokens of the prompts were found in the prefix cache."""
    reasoning_tokens: int | None = None
    """So many of the choices' came before their answers; None where none is told apart."""

    def body(self) -> Object:
        used: Object = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens is not None:
            used["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return used


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One whole continuation."""

    text: str
    finish_reason: FinishReason
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class Reply(Protocol):
    """How one endpoint writes one reply, whole or as events."""

    typed: bool
    """Whether events carry their type; otherwise ``[DONE]`` ends the stream."""

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Object:
        """Return the plain reply."""

    def begin(self) -> Sequence[Object]:
        """Return the events that precede everything."""

    def push(
        self, delta: TextDelta, usage: Callable[[], Usage], *, first: bool
    ) -> Sequence[Object]:
        """Return the events of a delta; ``first``: none of its choice came before."""

    def finish(self, choices: Sequence[FinishedChoice], usage: Usage) -> Sequence[Object]:
        """Return the last events."""

    def fail(self, error: ApiError) -> Sequence[Object]:
        """Return the events of a reply that breaks off."""


class ChoicesReply:
    """A reply made of choices, each of which a subclass writes: chat's and completions'."""

    typed = False
    kind = ""
    """The ``object`` of a plain reply."""
    chunk_kind = ""

    def __init__(
        self, reply_id: str, body: CompletionFields, token_bytes: TokenBytes | None
    ) -> None:
        """``token_bytes`` is given where log probabilities are wanted."""
        after = {"created": int(time.time()), "model": body.model}
        self._head: Object = {"id": reply_id, "object": self.kind, **after}
        self._chunk_head: Object = {"id": reply_id, "object": self.chunk_kind, **after}
        self._token_bytes = token_bytes
        self._options = options = body.stream_options or StreamOptions()
        # With usage wanted, every chunk has the key. All but the last hold null, or what was used
        # so far.
        self._no_usage: Object = {"usage": None} if options.include_usage else {}

    def choice(self, index: int, choice: FinishedChoice) -> Object:
        """Return a choice of a plain reply."""
        raise NotImplementedError

    def opening(self, index: int, prompt: Sequence[TokenLogprobs]) -> list[Object]:
        """Return choices of chunks that precede the text.

        ``prompt`` are log probabilities of the prompt, where they were wanted.
        """
        raise NotImplementedError

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> list[Object]:
        """Return choices of chunks with new text."""
        raise NotImplementedError

    def ending(self, index: int, reason: FinishReason) -> list[Object]:
        """Return a choice's last chunks."""
        raise NotImplementedError

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Object:
        written = [self.choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._head, "choices": written, "usage": usage.body()}

    def begin(self) -> list[Object]:
        return []

    def push(self, delta: TextDelta, usage: Callable[[], Usage], *, first: bool) -> list[Object]:
        choices = self.opening(delta.index, delta.prompt_logprobs) if first else []
        if delta.text or delta.logprobs:
            choices += self.text(delta.index, delta.text, delta.logprobs)
        if delta.finish_reason is not None:
            choices += self.ending(delta.index, delta.finish_reason)
        used = self._no_usage
        if choices and self._options.continuous_usage_stats:
            used = {"usage": usage().body()}
        return [{**self._chunk_head, "choices": [choice], **used} for choice in choices]

    def finish(self, choices: Sequence[FinishedChoice], usage: Usage) -> list[Object]:
        del choices
        if not self._options.include_usage:
            return []
        return [{**self._chunk_head, "choices": [], "usage": usage.body()}]

    def fail(self, error: ApiError) -> list[Object]:
        return [error.body()]


def chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> Object:
    """Return the ``logprobs`` of a chat choice."""

    def describe(token: int, logprob: float) -> Object:
        text = token_bytes(token)
        return {
            "token": text.decode(errors="replace"),
            "logprob": finite(logprob),
            "bytes": list(text),
        }

    content = [
        describe(each.token, each.logprob)
        | {"top_logprobs": [describe(token, value) for token, value in each.top]}
        for each in tokens
    ]
    return {"content": content, "refusal": None}


def finite(logprob: float) -> float:
    """Return a number that JSON can hold."""
    return max(logprob, _LEAST)


class EventStream(web.StreamResponse):
    """Ends in ``[DONE]``, or in an error event, after which the connection is closed.

    ``typed``: each event carries its type, as the Responses API's do, and that of the last event
    says the end. Every write raises ConnectionResetError once the client has left, or reads no
    longer.
    """

    def __init__(self, *, typed: bool = False, headers: Mapping[str, str] = _HEADERS) -> None:
        """Nothing is sent before ``prepare``."""
        super().__init__(headers={**_HEADERS, **headers})
        self.failed = False
        self._typed = typed
        self._transport: asyncio.Transport | None = None

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        self._transport = request.transport
        return await super().prepare(request)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; a client that does not read is disconnected."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await super().write(data)
        except TimeoutError as error:
            if self._transport is not None:
                self._transport.abort()  # what it has not read would keep the socket open
            raise ConnectionResetError("the client does not read") from error

    async def send(self, events: Iterable[Object]) -> None:
        """Send events in one write."""
        if written := b"".join(map(self._write_event, events)):
            await self.write(written)

    async def finish(self, events: Iterable[Object]) -> None:
        """Send the last events of a complete answer."""
        await self.send(events)
        if not self._typed:
            await self.write(b"data: [DONE]\n\n")
        await self.write_eof()

    async def fail(self, events: Iterable[Object]) -> None:
        """Send the events of an answer that broke off."""
        self.failed = True
        self.force_close()
        await self.send(events)
        await self.write_eof()

    def _write_event(self, event: Object) -> bytes:
        data = b"data: " + orjson.dumps(event) + b"\n\n"
        return f"event: {event['type']}\n".encode() + data if self._typed else data
