"""A stream of chat completions as the events of a message.

Laws:
- The events come in Anthropic's order: the message begins, its blocks follow one after another, the
  message ends. Each block is closed before the next begins.
- An event is translated when its last byte is there, however the stream was cut.
- A stream without a finish reason gets no end: it broke off.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.anthropic.reply import (
    as_client_reads,
    message_id,
    message_of,
    size_of,
    stop_of,
    thought_of,
    usage_of,
)
from gateway.protocol.errors import anthropic_error
from gateway.protocol.streaming.assemble import MOST_PATTERNS, content_pattern, is_content
from gateway.protocol.streaming.decode import DONE, Decoder, Event, Pattern, encode_event

_CODES = {429: 429, "rate_limit_exceeded": 429, "insufficient_quota": 429}
"""Codes of errors in streams that say more than that the server failed."""

_OUT_OF_ORDER = "The model's server sent pieces of tool calls out of order."
_BEHIND = b'"}}\n\n'
"""How an event ends that brings text."""


@dataclass(slots=True)
class MessageEvents:
    """Translates one stream, piece by piece. ``feed`` may raise EventTooLargeError."""

    prompt: Callable[[], int]
    """Estimates the tokens of the prompt."""
    _decoder: Decoder = field(default_factory=Decoder)
    _begun: bool = False
    _over: bool = False
    """Whether the last event has been written: nothing that follows counts."""
    _index: int = -1
    """Of the block that is open, or was last."""
    _open: tuple[str, Any] | None = None
    """Type of the open block, and which tool call it is."""
    _calls: dict[Any, str] = field(default_factory=dict)
    """The id of the tool call that last began at an index."""
    _pattern: Pattern | None = None
    """What the last event was like, if the next may bring more text of the same block."""
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
        """Return the events that the next bytes of the stream complete."""
        return b"".join(
            [piece for event in self._decoder.feed(data) for piece in self._pass(event)]
        )

    def end(self) -> bytes:
        """Return the events that the end of the stream completes."""
        last = self._decoder.end()
        pieces = [] if last is None else list(self._pass(last))
        return b"".join([*pieces, *self._close_message()])

    def _pass(self, event: Event) -> Iterator[bytes]:
        data, raw = event
        if self._over:
            return
        if data is None:
            yield raw if raw.endswith(b"\n\n") else b""  # a comment keeps the connection alive
            return
        if data == DONE:
            yield from self._close_message()
            return
        if self._pattern is not None:
            text = self._pattern.text_of(event)
            if text is not None:
                self._size += size_of(text)
                # What needs no escape in one JSON string needs none in the other.
                yield self._before + text.encode() + _BEHIND if text else b""
                return
            self._pattern = None
        try:
            chunk = exact_json.loads(data)
        except orjson.JSONDecodeError:
            chunk = None
        if not isinstance(chunk, dict):
            yield self._fail("The model's server sent an event that is no JSON object.")
        elif chunk.get("error") is not None or chunk.get("type") == "error":
            error = chunk.get("error")
            code = error.get("code") if isinstance(error, dict) else None
            status = _CODES.get(code, 500) if isinstance(code, int | str) else 500
            yield self._fail(message_of(chunk) or "The model's server failed.", status, error)
        else:
            yield from self._translate(chunk)
            self._seek_pattern(chunk, data)

    def _seek_pattern(self, chunk: dict[str, Any], data: bytes) -> None:
        if self._open != ("text", None) or self._patterns_sought >= MOST_PATTERNS:
            return
        if is_content(chunk) and chunk["choices"][0]["index"] == 0:
            self._patterns_sought += 1
            self._pattern = content_pattern(chunk, data, [])
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
        if not self._begun:
            self._begun = True
            message: dict[str, Any] = {
                "id": message_id(chunk.get("id")),
                "type": "message",
                "role": "assistant",
                "model": chunk.get("model"),
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 0, "output_tokens": 0},
            }
            yield encode_event("message_start", {"message": message})
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    yield from self._blocks(delta)
                if isinstance(choice.get("finish_reason"), str):
                    self._finish = choice

    def _blocks(self, delta: dict[str, Any]) -> Iterator[bytes]:
        if thought := thought_of(delta):
            yield from self._open_block("thinking", {"thinking": "", "signature": ""})
            yield self._delta("thinking_delta", "thinking", thought)
        for name in ("content", "refusal"):
            if isinstance(text := delta.get(name), str) and text:
                self._refused = self._refused or name == "refusal"
                yield from self._open_block("text", {"text": ""})
                yield self._delta("text_delta", "text", text)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            yield from self._call(call)

    def _call(self, call: Any) -> Iterator[bytes]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or self._over:
            return
        index, text = call.get("index", call.get("id")), function.get("arguments")
        name, given = function.get("name"), call.get("id")
        whole = isinstance(name, str) and bool(name) and isinstance(given, str)
        known = self._calls.get(index)
        # Some servers give all calls one index: another id with a name is another call.
        if known is None or (whole and given and given != known):
            if not whole:
                yield self._fail(_OUT_OF_ORDER)
                return
            self._calls[index] = known = given
            block = {"id": given, "name": name, "input": {}}
            yield from self._open_block("tool_use", block, (index, given))
        elif self._open != ("tool_use", (index, known)):
            if text:
                yield self._fail(_OUT_OF_ORDER)
            return
        if isinstance(text, str) and text:
            yield self._delta("input_json_delta", "partial_json", text)

    def _open_block(self, kind: str, block: dict[str, Any], which: Any = None) -> Iterator[bytes]:
        """Begin a block, unless it is open already."""
        if self._open == (kind, which):
            return
        yield from self._close_block()
        self._open = kind, which
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

    def _close_message(self) -> Iterator[bytes]:
        if self._over or self._finish is None:
            return
        self._over = True
        yield from self._close_block()
        reason, sequence = stop_of(self._finish, calls=bool(self._calls), refused=self._refused)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = usage_of(self._usage, self.prompt, lambda: self._size)
        yield encode_event("message_delta", {"delta": delta, "usage": usage})
        yield encode_event("message_stop", {})


def encode_delta(index: int, kind: str, name: str, text: str) -> bytes:
    """Return the event that brings a piece of a block."""
    given = {"index": index, "delta": {"type": kind, name: text}}
    return encode_event("content_block_delta", given)
