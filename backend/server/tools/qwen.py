"""Calls as Qwen and Hermes models write them: ``{"name": …, "arguments": {…}}`` between tags.

Text may stand around calls; space around them is markup. What follows an opening tag and is no
call is text, the tag included.
"""

from enum import Enum, auto

from backend.server.tools.call_reader import CallReader, ReadStatus
from backend.server.tools.events import Content, Event, joined

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


class QwenToolCallParser:
    """Implements ``ToolCallParser``."""

    def __init__(self, *, most_calls: int | None = None, eager: bool = True) -> None:
        """At most ``most_calls`` calls are wanted; what follows them is left out."""
        self._most_calls = most_calls
        self._eager = eager
        self._num_calls = 0
        self._place = _Place.TEXT
        self._reader = self._new_reader()
        self._held = ""
        """Text that is not understood yet."""
        self._before = ""
        """The markup before the call that is being read."""

    def push(self, text: str) -> list[Event]:
        """See ToolCallParser."""
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text and self._place is not _Place.OVER:
            text = self._step(text, events)
        return joined(events)

    def finish(self) -> list[Event]:
        """See ToolCallParser."""
        events: list[Event] = []
        while self._place is _Place.CALL:
            if self._reader.told:
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
        end = start if start >= 0 else len(text) - _begun(OPEN_TAG, text)
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
        told, rest = self._reader.push(text)
        events += told
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
        over = self._num_calls == self._most_calls
        self._place = _Place.OVER if over else _Place.BEHIND_CALL

    def _give_up_call(self, events: list[Event]) -> str:
        """Show the tag, and return what followed it to be read as text."""
        events.append(Content(self._before))
        self._place = _Place.TEXT
        return self._reader.text

    def _new_reader(self) -> CallReader:
        return CallReader(self._num_calls, ARGUMENTS_KEY, accepts=bool, eager=self._eager)


def _begun(tag: str, text: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``tag``."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
