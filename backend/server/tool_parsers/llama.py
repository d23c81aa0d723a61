"""Calls as Llama 3 models write them: the answer is ``{"name": …, "parameters": {…}}`` alone.

``<|python_tag|>`` may precede it. Several calls are set apart by semicolons. An answer that does
not begin so, or that calls no function that there is, is text: it may be JSON of the user's.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto

from backend.server.tool_parsers.streaming_json import (
    CallableFunction,
    CallReader,
    Content,
    Event,
    ReadStatus,
    Tag,
    joined,
)

PYTHON_TAG = "<|python_tag|>"
ARGUMENTS_KEY = "parameters"

_SPACE = " \t\r\n"


class _Place(Enum):
    BEFORE_CALL = auto()
    CALL = auto()
    TEXT = auto()
    OVER = auto()


class LlamaToolCallParser:
    """Implements ``ToolCallParser``."""

    def __init__(
        self, names: Collection[str], *, max_calls: int | None = None, eager: bool = True
    ) -> None:
        """``names`` are those of the functions; what follows ``max_calls`` calls is left out."""
        self._names = frozenset(names)
        self._max_calls = max_calls
        self._eager = eager
        self._num_calls = 0
        self._place = _Place.BEFORE_CALL
        self._reader = self._new_reader()
        self._before = ""
        """Space and marks before a call, which are text where none follows."""

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the answer and return what has become certain."""
        events: list[Event] = []
        while text and self._place is not _Place.OVER:
            match self._place:
                case _Place.BEFORE_CALL:
                    text = self._read_before(text, events)
                case _Place.CALL:
                    text = self._read_call(text, events)
                case _:
                    events.append(Content(text))
                    text = ""
        return joined(events)

    def finish(self) -> list[Event]:
        """Return what was held back: the text is over."""
        if self._place is _Place.CALL and not self._reader.announced:
            return joined([Content(self._before + self._reader.text)])
        if self._place is _Place.BEFORE_CALL:
            return joined([Content(self._before.rstrip(_SPACE + ";" if self._num_calls else ""))])
        return []

    def _read_before(self, text: str, events: list[Event]) -> str:
        self._before += text
        begun = self._before.lstrip(_SPACE + ";" if self._num_calls else _SPACE)
        begun = begun.removeprefix(PYTHON_TAG).lstrip(_SPACE)
        if begun.startswith("{"):
            self._before = self._before.removesuffix(begun)
            self._reader = self._new_reader()
            self._place = _Place.CALL
            return begun
        if not PYTHON_TAG.startswith(begun):
            self._show(self._before, events)
        return ""

    def _read_call(self, text: str, events: list[Event]) -> str:
        read, rest = self._reader.push(text)
        events += read
        if self._reader.status is ReadStatus.FAILED:
            self._show(self._before + self._reader.text, events)
        elif self._reader.status is ReadStatus.READ:
            self._num_calls += 1
            self._before = ""
            over = self._num_calls == self._max_calls
            self._place = _Place.OVER if over else _Place.BEFORE_CALL
        return rest

    def _show(self, text: str, events: list[Event]) -> None:
        events.append(Content(text))
        self._place = _Place.TEXT

    def _new_reader(self) -> CallReader:
        return CallReader(
            self._num_calls, ARGUMENTS_KEY, accepts=self._names.__contains__, eager=self._eager
        )

    @staticmethod
    def calls(functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of one call: these models make one at a time."""
        del several
        return {"type": "or", "elements": [_tag(function) for function in functions]}

    @staticmethod
    def text_or_calls(functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of an answer that is one valid call, or text."""
        # What begins with a brace is a call.
        text = {"type": "regex", "pattern": r"([^{\s<][\s\S]*)?"}
        calls = LlamaToolCallParser.calls(functions, several=several)
        return {"type": "or", "elements": [calls, text]}


def _tag(function: CallableFunction) -> Tag:
    opening = f'{{"name": "{function.name}", "{ARGUMENTS_KEY}": '
    return function.tag(opening, "}")
