"""A stream of chat completions as the events of a message.

Laws:
- The events come in Anthropic's order: the message begins, its blocks follow one after another, the
  message ends. Each block is closed before the next begins.
- Nothing is lost because it comes out of order. What is not for the open block waits until that one
  is closed: a call is closed once its arguments are whole and something waits.
- An event is translated when its last byte is there, however the stream was cut.
- A stream without a finish reason and without ``[DONE]`` gets no end: it broke off.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.anthropic.calls import Call, Calls
from gateway.protocol.anthropic.reply import (
    EMPTY,
    Prompt,
    as_client_reads,
    error_of,
    fault_of,
    message_id,
    message_of,
    size_of,
    stop_of,
    texts_of,
    usage_of,
)
from gateway.protocol.errors import anthropic_error
from gateway.protocol.streaming.assemble import MOST_PATTERNS, content_pattern, is_content
from gateway.protocol.streaming.decode import (
    DONE,
    Decoder,
    Event,
    EventTooLargeError,
    Run,
    encode_event,
)

_CODES = {429: 429, "rate_limit_exceeded": 429, "insufficient_quota": 429}
"""Codes of errors in streams that say more than that the server failed."""

MAX_HELD = 64 * 2**20
"""Characters of calls, and of text that waits for a call to end."""
_BEHIND = b'"}}\n\n'
"""How an event ends that brings text."""


@dataclass(slots=True)
class MessageEvents:
    """Translates one stream, piece by piece. ``feed`` may raise EventTooLargeError."""

    prompt: Prompt
    max_held: int = MAX_HELD
    _decoder: Decoder = field(default_factory=Decoder)
    _begun: bool = False
    _over: bool = False
    """Whether the last event has been written: nothing that follows counts."""
    _index: int = -1
    """Of the block that is open, or was last."""
    _open: tuple[str, Call | None] | None = None
    """Type of the open block, and which tool call it is."""
    _calls: Calls = field(init=False)
    _begun_calls: int = 0
    """Of these, the number whose blocks have begun."""
    _waiting: list[tuple[str, str]] = field(default_factory=list)
    """Text that came while a call was open, each with the type of its block."""
    _waiting_size: int = 0
    _patterns_sought: int = 0
    _before: bytes = b""
    """How an event begins that brings text of the open block."""
    _refused: bool = False
    _finish: dict[str, Any] | None = None
    """The choice that said why the message ends."""
    _usage: Any = None
    _size: int = 0
    """The bytes that the model wrote."""

    def feed(self, data: bytes) -> bytes:
        return b"".join([piece for event in self._decoder.cut(data) for piece in self._pass(event)])

    def end(self) -> bytes:
        last = self._decoder.end()
        pieces = [] if last is None else list(self._pass(last))
        return b"".join([*pieces, *self._close_message()])

    def _pass(self, event: Event | Run) -> Iterator[bytes]:
        if self._over:
            return
        if isinstance(event, Run):
            yield self._pass_run(event)
            return
        data, raw = event
        if data is None:
            yield raw if raw.endswith(b"\n\n") else b""  # a comment keeps the connection alive
            return
        if data == DONE:
            yield from self._close_message(done=True)
            return
        self._decoder.pattern = None
        try:
            chunk = exact_json.loads(data)
        except orjson.JSONDecodeError:
            chunk = data
        if chunk is None:  # some servers keep the connection alive by a null
            return
        chunk = error_of(chunk)
        if not isinstance(chunk, dict):
            yield self._fail("The model's server sent an event that is no JSON object.")
        elif chunk.get("error") is not None or "error" in (chunk.get("type"), chunk.get("object")):
            error = chunk.get("error")
            code = error.get("code") if isinstance(error, dict) else None
            status = _CODES.get(code, 500) if isinstance(code, int | str) else 500
            yield self._fail(message_of(chunk) or "The model's server failed.", status, error)
        else:
            yield from self._translate(chunk)
            self._seek_pattern(chunk, raw)

    def _pass_run(self, run: Run) -> bytes:
        self._size += sum(map(size_of, run.texts))
        parts = run.parts  # what needs no escape in one JSON string needs none in the other
        if not run.plain:
            parts = [orjson.dumps(text)[1:-1] for text in run.texts]
        if b"" in parts:
            parts = [part for part in parts if part]
        return self._before + (_BEHIND + self._before).join(parts) + _BEHIND if parts else b""

    def _seek_pattern(self, chunk: dict[str, Any], raw: bytes) -> None:
        if self._open != ("text", None) or self._patterns_sought >= MOST_PATTERNS:
            return
        if is_content(chunk) and chunk["choices"][0]["index"] == 0:
            self._patterns_sought += 1
            self._decoder.pattern = content_pattern(chunk, raw, [])
            self._before = encode_delta(self._index, "text_delta", "text", "")[: -len(_BEHIND)]

    def _fail(self, message: str, status: int = 500, error: Any = None) -> bytes:
        self._over = True
        match error:
            case {"code": int(code)} if 400 <= code < 500 and code not in _CODES:
                status = code
            case {"type": str(kind)} if "invalid_request" in kind or "BadRequest" in kind:
                status = 400
            case {"code": "context_length_exceeded"}:
                status = 400
        body = anthropic_error(status, as_client_reads(status, message, {"error": error}))
        return encode_event("error", {"error": body["error"]})

    def _translate(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        if not self._begun:
            self._begun = True
            self._calls = self.prompt.calls(chunk.get("id"))
            message: dict[str, Any] = {
                "id": message_id(chunk.get("id")),
                "type": "message",
                "role": "assistant",
                "model": chunk.get("model") or self.prompt.model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 0, "output_tokens": 0},
            }
            yield encode_event("message_start", {"message": message})
        for choice in choices:
            if isinstance(choice, dict) and not choice.get("index"):
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    yield from self._blocks(delta)
                if choice.get("usage") is not None and chunk.get("usage") is None:
                    self._usage = choice["usage"]  # Moonshot's
                if (fault := fault_of(choice)) is not None:
                    yield self._fail(fault, 500, choice.get("error"))
                    return
                if isinstance(finish := choice.get("finish_reason"), str) and finish:
                    self._finish = choice

    def _blocks(self, delta: dict[str, Any]) -> Iterator[bytes]:
        for kind, text in texts_of(delta):
            if self._open is not None and self._open[1] is not None:
                self._waiting.append((kind, text))
                self._waiting_size += len(text)
            else:
                yield from self._say(kind, text)
        self._refused = self._refused or bool(delta.get("refusal"))
        if self._calls.take(delta) or self._waiting:
            if self._calls.size + self._waiting_size > self.max_held:
                raise EventTooLargeError(f"calls of over {self.max_held} characters")
            yield from self._go_on()

    def _say(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open is None or self._open[0] != kind:
            yield from self._open_block(kind, EMPTY[kind])
        yield self._delta(f"{kind}_delta", kind, text)

    def _go_on(self, *, ended: bool = False) -> Iterator[bytes]:
        """Yield what may follow now: more of the open call, then text, then the next calls."""
        calls = self._calls.calls
        while True:
            call = None if self._open is None else self._open[1]
            if call is not None:
                if text := call.unread(ended=ended):
                    yield self._delta("input_json_delta", "partial_json", text)
                waits = self._waiting or self._begun_calls < len(calls)
                if not ended and not (waits and call.is_whole()):
                    return
                yield from self._close_block()
                for kind, text in self._waiting:
                    yield from self._say(kind, text)
                self._waiting.clear()
                self._waiting_size = 0
            if self._begun_calls == len(calls):
                return
            call = calls[self._begun_calls]
            if not (ended or call.may_begin or (call is not calls[-1] and call.is_whole())):
                return
            self._begun_calls += 1
            yield from self._open_block("tool_use", self._calls.begin(call), call)

    def _open_block(
        self, kind: str, block: Mapping[str, Any], call: Call | None = None
    ) -> Iterator[bytes]:
        yield from self._close_block()
        self._open = kind, call
        self._index += 1
        given = {"index": self._index, "content_block": {"type": kind, **block}}
        yield encode_event("content_block_start", given)

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        self._size += size_of(text)
        return encode_delta(self._index, kind, name, text)

    def _close_block(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield encode_event("content_block_stop", {"index": self._index})

    def _close_message(self, *, done: bool = False) -> Iterator[bytes]:
        """End the message if the server has; ``done`` says that its stream came to its end."""
        if self._over or not self._begun:
            return
        if self._finish is None and not (done and (self._index >= 0 or self._calls.calls)):
            return
        self._over = True
        yield from self._go_on(ended=True)
        yield from self._close_block()
        end = stop_of(self._finish or {}, calls=bool(self._calls.calls), refused=self._refused)
        delta = end | self._calls.marks()
        usage = usage_of(self._usage, self.prompt.tokens, lambda: self._size)
        yield encode_event("message_delta", {"delta": delta, "usage": usage})
        yield encode_event("message_stop", {})


def encode_delta(index: int, kind: str, name: str, text: str) -> bytes:
    """Return the event that brings a piece of a block."""
    given = {"index": index, "delta": {"type": kind, name: text}}
    return encode_event("content_block_delta", given)
