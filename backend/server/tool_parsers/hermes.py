"""Calls as Qwen and Hermes models write them: ``{"name": …, "arguments": {…}}`` between tags.

Text may stand around calls; space around them is markup. What follows an opening tag and is no
call is text, the tag included.
"""

from collections.abc import Sequence

from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.streaming_json import (
    SPACE,
    CallableFunction,
    CallsParser,
    Content,
    Event,
    Tag,
)

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"


class HermesToolCallParser(CallsParser):
    """Finds calls between tags."""

    markup = (OPEN_TAG, CLOSE_TAG)
    arguments_key = "arguments"
    before_call = f"{OPEN_TAG}\n"
    after_call = f"\n{CLOSE_TAG}"

    _is_behind_call = False
    """The closing tag may still come, and braces too many before it."""

    @classmethod
    def calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        return {
            "type": "tags_with_separator",
            "tags": cls._tags(functions),
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": not several,
        }

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        return {
            "type": "triggered_tags",
            "triggers": [OPEN_TAG],
            "tags": cls._tags(functions),
            "at_least_one": False,
            "stop_after_first": not several,
        }

    def _read_text(self, text: str, events: list[Event]) -> str:
        """Pass on what precedes the next opening tag; hold space, and what may begin a tag."""
        if self._is_behind_call:
            return self._read_closing(text)
        start = text.find(OPEN_TAG)
        end = start if start >= 0 else len(text) - longest_open_prefix(text, OPEN_TAG)
        shown = text[:end].rstrip(SPACE)
        events.append(Content(shown))
        if start < 0:
            self._held = text[len(shown) :]
            return ""
        self._begin_call(text[len(shown) : start] + OPEN_TAG)
        return text[start + len(OPEN_TAG) :]

    def _read_closing(self, text: str) -> str:
        text = text.lstrip(SPACE + "}")
        if text != CLOSE_TAG and CLOSE_TAG.startswith(text):
            self._held = text
            return ""
        self._is_behind_call = False
        return text.removeprefix(CLOSE_TAG)

    def _end_call(self) -> None:
        super()._end_call()
        self._is_behind_call = True

    def _rest(self) -> str:
        return "" if self._is_behind_call else super()._rest()
