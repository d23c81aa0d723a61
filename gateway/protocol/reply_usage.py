"""The usage in a reply that passes through, read as it comes and in bounded memory."""

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage, tokens_in

KEPT_BYTES = 2**16
"""Of the reply's end: usage stands behind pictures and texts."""

_FIELD = re.compile(r'"usage"\s*:\s*')
"""No text of JSON holds this: there the quotes are escaped."""


class ReplyUsage:
    """Reads the usage of one reply, plain or streamed."""

    def __init__(self, content_type: str) -> None:
        self._reads = content_type.endswith("json") or content_type == "text/event-stream"
        self._end = bytearray()

    def feed(self, piece: bytes) -> None:
        if self._reads:
            self._end += piece
            if len(self._end) > 2 * KEPT_BYTES:
                del self._end[:-KEPT_BYTES]

    def end(self) -> PromptUsage:
        text = self._end.decode(errors="replace")
        for place in reversed([found.end() for found in _FIELD.finditer(text)]):
            if (usage := prompt_usage(_value(text, place))) != NOTHING_SAID:
                return usage
        return NOTHING_SAID


_TYPE = re.compile(r'"type"\s*:\s*"(response\.[a-z_.]+)"')


class LiveUsage:
    """Reads the usage of a live session's responses, from the events that its upstream sends."""

    def __init__(self) -> None:
        self._asked = self._said = 0
        self.is_answering = False
        """Whether a response has begun and not ended."""

    def note_sent(self, size: int) -> None:
        """Note bytes of the client's."""
        self._asked += size

    def feed(self, event: str) -> PromptUsage | None:
        """Return what a response has used if this is its end."""
        found = _TYPE.search(event)
        if found is None:
            return None
        if found[1] == "response.created":
            self._said, self.is_answering = 0, True
        elif found[1].endswith(".delta"):
            self._said += len(event)
        elif found[1] == "response.done":
            self.is_answering = False
            try:
                usage = prompt_usage(orjson.loads(event)["response"]["usage"])
            except (ValueError, LookupError, TypeError):
                usage = NOTHING_SAID
            return self._estimate() if usage == NOTHING_SAID else usage
        return None

    def end(self) -> PromptUsage | None:
        """Return an estimate for a response that nobody saw the end of, if there is one."""
        return self._estimate() if self.is_answering else None

    def _estimate(self) -> PromptUsage:
        return PromptUsage(tokens_in(self._asked), tokens_in(self._said))


def total(usages: Iterable[PromptUsage]) -> PromptUsage:
    """Return the sum of what is known."""
    columns = zip(*usages, strict=True)
    return PromptUsage(*(sum(filter(None, column)) for column in columns))


def _value(text: str, at: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None
