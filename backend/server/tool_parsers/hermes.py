"""Calls as Qwen and Hermes models write them: ``{"name": …, "arguments": {…}}`` between tags.

Text may stand around calls; space around them is markup. What follows an opening tag and is no
call is text, the tag included.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto

from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.streaming_json import (
    CallableFunction,
    CallReader,
    Content,
    Event,
    ReadStatus,
    Tag,
    joined,
)

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
ARGUMENTS_KEY = "arguments"

_SPACE = " \t\r\n"


class _Place(Enum):
    TEXT = auto()
    CALL = auto()
    BEHIND_CALL = auto()
    """The closing tag may still come, and braces too many before it."""
    OVER = auto()


class HermesToolCallParser:
    """Implements ``ToolCallParser``."""

    def __init__(
        self, names: Collection[str] = (), *, max_calls: int | None = None, eager: bool = True
    ) -> None:
        """At most ``max_calls`` calls are wanted; what follows them is left out.

        Other ``names`` are passed on too: the client can tell the model.
        """
        del names
        self._max_calls = max_calls
        self._eager = eager
        self._num_calls = 0
        self._place = _Place.TEXT
        self._reader = self._new_reader()
        self._held = ""
        """Text that is not understood yet."""
        self._before = ""
        """The markup before the call that is being read."""

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the answer and return what has become certain."""
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text and self._place is not _Place.OVER:
            text = self._step(text, events)
        return joined(events)

    def finish(self) -> list[Event]:
        """Return what was held back: the text is over."""
        events: list[Event] = []
        while self._place is _Place.CALL:
            if self._reader.announced:
                self._end_call()
            else:
                # Within what was no call there may be one.
                events += self.push(self._give_up_call(events))
        held = "" if self._place is _Place.BEHIND_CALL else self._held
        if self._num_calls:
            held = held.rstrip(_SPACE)
        return joined([*events, Content(held)])

    def _step(self, text: str, events: list[Event]) -> str:
        match self._place:
            case _Place.TEXT:
                return self._read_text(text, events)
            case _Place.CALL:
                return self._read_call(text, events)
            case _:
                return self._read_closing(text)

    def _read_text(self, text: str, events: list[Event]) -> str:
        """Pass on what precedes the next opening tag; hold space, and what may begin a tag."""
        start = text.find(OPEN_TAG)
        end = start if start >= 0 else len(text) - longest_open_prefix(text, OPEN_TAG)
        shown = text[:end].rstrip(_SPACE)
        events.append(Content(shown))
        if start < 0:
            self._held = text[len(shown) :]
            return ""
        self._before = text[len(shown) : start] + OPEN_TAG
        self._reader = self._new_reader()
        self._place = _Place.CALL
        return text[start + len(OPEN_TAG) :]

    def _read_call(self, text: str, events: list[Event]) -> str:
        read, rest = self._reader.push(text)
        events += read
        if self._reader.status is ReadStatus.READ:
            self._end_call()
        elif self._reader.status is ReadStatus.FAILED:
            rest = self._give_up_call(events) + rest
        return rest

    def _read_closing(self, text: str) -> str:
        text = text.lstrip(_SPACE + "}")
        if CLOSE_TAG.startswith(text):
            self._held = text
            if text != CLOSE_TAG:
                return ""
            self._held = ""
        self._place = _Place.TEXT
        return text.removeprefix(CLOSE_TAG)

    def _end_call(self) -> None:
        self._num_calls += 1
        over = self._num_calls == self._max_calls
        self._place = _Place.OVER if over else _Place.BEHIND_CALL

    def _give_up_call(self, events: list[Event]) -> str:
        """Show the tag, and return what followed it to be read as text."""
        events.append(Content(self._before))
        self._place = _Place.TEXT
        return self._reader.text

    def _new_reader(self) -> CallReader:
        return CallReader(self._num_calls, ARGUMENTS_KEY, accepts=bool, eager=self._eager)

    @staticmethod
    def calls(functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of one call, or of one or several."""
        return {
            "type": "tags_with_separator",
            "tags": [_tag(function) for function in functions],
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": not several,
        }

    @staticmethod
    def text_or_calls(functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of an answer in which each call is valid."""
        return {
            "type": "triggered_tags",
            "triggers": [OPEN_TAG],
            "tags": [_tag(function) for function in functions],
            "at_least_one": False,
            "stop_after_first": not several,
        }


def _tag(function: CallableFunction) -> Tag:
    opening = f'{OPEN_TAG}\n{{"name": "{function.name}", "{ARGUMENTS_KEY}": '
    return function.tag(opening, f"}}\n{CLOSE_TAG}")
