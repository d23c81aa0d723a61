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


_DELTA = re.compile(
    r'\s*\{\s*(?:"event_id"\s*:\s*"[^"\\]*"\s*,\s*)?"type"\s*:\s*"response\.[a-z_.]+\.delta"'
)
"""How a delta begins: these are many and may be large, so they are not parsed."""
_RESPONSE_ID = re.compile(r'"response_id"\s*:\s*"([^"\\]*)"')


class LiveUsage:
    """Reads the usage of a live session's responses, from the events that its upstream sends.

    Law: an event is what its own ``type`` says. Other events repeat what clients have written.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._said: dict[str, int] = {}
        """Bytes of each response under way, by its id, in the order of their begin."""
        self.num_begun = 0

    @property
    def is_answering(self) -> bool:
        """Whether a response has begun and not ended."""
        return bool(self._said)

    def note_sent(self, size: int) -> None:
        """Note bytes of the client's."""
        self._asked += size

    def feed(self, event: str) -> PromptUsage | None:
        """Return what a response has used if this is its end."""
        if _DELTA.match(event) is not None:
            found = _RESPONSE_ID.search(event)
            self._note_said(None if found is None else found[1], len(event))
            return None
        try:
            whole = orjson.loads(event)
        except ValueError:
            return None
        kind = whole.get("type") if isinstance(whole, dict) else None
        if not isinstance(kind, str) or not kind.startswith("response."):
            return None
        response = whole.get("response")
        if not isinstance(response, dict):
            response = {"id": whole.get("response_id")}
        if kind == "response.created":
            self._said[str(response.get("id"))], self.num_begun = 0, self.num_begun + 1
        elif kind.endswith(".delta"):
            self._note_said(response.get("id"), len(event))
        elif kind == "response.done":
            said = self._said.pop(self._known(response.get("id")), 0)
            usage = prompt_usage(response.get("usage"))
            return self._estimate(said) if usage == NOTHING_SAID else usage
        return None

    def end(self) -> PromptUsage | None:
        """Return an estimate for the responses that nobody saw the end of, if there are any."""
        return total(map(self._estimate, self._said.values())) if self._said else None

    def _note_said(self, response_id: Any, size: int) -> None:
        if (known := self._known(response_id)) in self._said:
            self._said[known] += size

    def _known(self, response_id: Any) -> str:
        """Return which response is meant: the latest one, where the upstream does not say."""
        named = str(response_id)
        return named if named in self._said else next(reversed(self._said), "")

    def _estimate(self, said: int) -> PromptUsage:
        return PromptUsage(tokens_in(self._asked), tokens_in(said))


def total(usages: Iterable[PromptUsage]) -> PromptUsage:
    """Return the sum of what is known."""
    columns = zip(*usages, strict=True)
    return PromptUsage(*(sum(filter(None, column)) for column in columns))


def _value(text: str, at: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None
