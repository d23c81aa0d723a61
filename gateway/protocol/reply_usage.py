"""The usage in a reply that passes through, read as it comes and in bounded memory."""

import json
import re
from typing import Any

from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage

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


def _value(text: str, at: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None
