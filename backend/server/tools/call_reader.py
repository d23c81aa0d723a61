"""Reads one call, a JSON object with a name and arguments, from text that comes in pieces.

Two tempers. An eager reader tells the name as soon as it stands there and passes the arguments on
as they come: what was told stays told, even if the rest is no JSON. A careful one tells nothing
before the arguments are whole and valid.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import orjson

from backend.server.tools.events import CallArguments, CallStart, Event

_SPACE = frozenset(" \t\r\n")
# What may stand outside of strings in JSON: a bracket, a separator, a number, true, false, null.
_OUTSIDE = _SPACE | frozenset("{}[]:,+-.0123456789eEtrufalsn")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_ARGUMENTS_KEYS = ("arguments", "parameters")


class ReadStatus(Enum):
    """How far a call is; READ and FAILED are final."""

    OPEN = auto()
    READ = auto()
    FAILED = auto()
    """This is no call, and nothing of it was told."""


class _Brackets:
    """Where a JSON object ends. Of JSON only strings and brackets are understood."""

    def __init__(self) -> None:
        self._closing: list[str] = []
        self._in_string = False
        self._escaped = False

    @property
    def depth(self) -> int:
        return len(self._closing)

    def fits(self, character: str) -> bool:
        """Take the next character; False when no JSON object goes on with it."""
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
            return True
        if not self._closing:
            if character == "{":
                self._closing.append("}")
            return character in _SPACE or character == "{"
        if character in "{[":
            self._closing.append("}" if character == "{" else "]")
        elif character in "}]":
            return self._closing.pop() == character
        self._in_string = character == '"'
        return self._in_string or character in _OUTSIDE


class _Opening:
    """Whether an object begins with a name and then an object of arguments: the usual way."""

    def __init__(self, arguments_key: str) -> None:
        # None stands for the name. Space may precede any part but the quote that closes it.
        self._parts = ("{", '"name"', ":", '"', None, '"', ",", f'"{arguments_key}"', ":", "{")
        self._part = 0
        self._at = 0
        self.name = ""
        self.failed = False

    @property
    def matched(self) -> bool:
        return self._part == len(self._parts)

    def push(self, character: str) -> None:
        """Take the next character of the object; not after it ``matched`` or ``failed``."""
        part = self._parts[self._part]
        if part is None:
            if character in _NAME:
                self.name += character
                return
            self._part += 1
            part = '"'
        elif self._at == 0 and character in _SPACE:
            return
        if character != part[self._at]:
            self.failed = True
            return
        self._at += 1
        if self._at == len(part):
            self._part += 1
            self._at = 0


class CallReader:
    """State of one call. ``push`` until the status is no longer OPEN."""

    def __init__(
        self, index: int, arguments_key: str, *, accepts: Callable[[str], bool], eager: bool
    ) -> None:
        """Begin; ``accepts`` says whether a function may have this name."""
        self.status = ReadStatus.OPEN
        self.told = False
        """Whether events were returned: then the call can no longer be taken back."""
        self._index = index
        self._accepts = accepts
        self._eager = eager
        self._brackets = _Brackets()
        self._opening = _Opening(arguments_key)
        self._read: list[str] = []
        self._arguments: list[str] = []
        self._in_arguments = False

    @property
    def text(self) -> str:
        """All that was read."""
        return "".join(self._read)

    def push(self, text: str) -> tuple[list[Event], str]:
        """Take the next piece; return events, and what of the piece is no part of the call."""
        events: list[Event] = []
        for at, character in enumerate(text):
            if not self._brackets.fits(character):
                # An object that is not closed behind whole arguments says all that is needed.
                self.status = ReadStatus.READ if self.told else ReadStatus.FAILED
                return self._leave(events, text[:at], text[at:])
            if self._in_arguments:
                self._arguments.append(character)
                if self._brackets.depth == 1:
                    events += self._end_arguments()
            elif not (self._opening.matched or self._opening.failed):
                events += self._open(character)
            if self._brackets.depth == 0 and character == "}":
                events += self._end_object(text[: at + 1])
            if self.status is not ReadStatus.OPEN:
                return self._leave(events, text[: at + 1], text[at + 1 :])
        return self._leave(events, text, "")

    def _leave(self, events: list[Event], read: str, rest: str) -> tuple[list[Event], str]:
        self._read.append(read)
        if self._eager and self.told and self._arguments:
            events.append(self._take_arguments())
        return events, rest

    def _open(self, character: str) -> list[Event]:
        self._opening.push(character)
        if not self._opening.matched:
            return []
        if not self._accepts(self._opening.name):
            self.status = ReadStatus.FAILED
            return []
        self._in_arguments = True
        self._arguments.append(character)
        return [self._announce(self._opening.name)] if self._eager else []

    def _end_arguments(self) -> list[Event]:
        self._in_arguments = False
        if self._eager:
            return [self._take_arguments()]
        if not _is_object("".join(self._arguments)):
            self.status = ReadStatus.FAILED
            return []
        return [self._announce(self._opening.name), self._take_arguments()]

    def _end_object(self, last_piece: str) -> list[Event]:
        self.status = ReadStatus.READ
        if self.told:
            return []
        call = _parse(self.text + last_piece)
        if call is None or not self._accepts(call[0]):
            self.status = ReadStatus.FAILED
            return []
        self._arguments = [call[1]]
        return [self._announce(call[0]), self._take_arguments()]

    def _announce(self, name: str) -> CallStart:
        self.told = True
        return CallStart(self._index, name)

    def _take_arguments(self) -> CallArguments:
        pieces, self._arguments = self._arguments, []
        return CallArguments(self._index, "".join(pieces))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def _parse(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call that is written in an unusual way."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    name = value.get("name")
    given = [value[key] for key in _ARGUMENTS_KEYS if value.get(key) is not None]
    arguments: Any = given[0] if given else {}
    if isinstance(arguments, str) and _is_object(arguments):
        pass  # an object written as text, which is how clients get it
    elif isinstance(arguments, dict):
        arguments = orjson.dumps(arguments).decode()
    else:
        return None
    return (name, arguments) if isinstance(name, str) else None
