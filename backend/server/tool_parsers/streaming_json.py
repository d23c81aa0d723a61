"""Reads text that comes in pieces: what is reasoning, words for the user, or a call of a function.

Law: events depend on the text alone, never on where it was cut into pieces.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import orjson

from backend.scheduler.request import MOST_SPACES

SPACE = " \t\r\n"
# What may stand outside of strings in JSON: a bracket, a separator, a number, true, false, null.
_OUTSIDE = frozenset(SPACE + "{}[]:,+-.0123456789eEtrufalsn")
# How a call usually begins: with its name, and then an object of arguments.
_OPENING = re.compile(
    r' { "(?:tool_)?name" : "([\w.-]*)" , "(\w+)" : {'.replace(" ", r"[ \t\r\n]*"), re.ASCII
)
_ARGUMENTS_KEYS = ("arguments", "parameters")


Tag = dict[str, Any]
"""What of an answer is enforced, as xgrammar's structural tags: text with JSON at given places."""


def json_tag(schema: Mapping[str, Any], style: str = "json") -> Tag:
    """Return the tag of JSON by ``schema``, or of what xgrammar writes of it in another style."""
    return {
        "type": "json_schema",
        "json_schema": dict(schema),
        "style": style,
        "max_whitespace_cnt": MOST_SPACES,
    }


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function and the schema that its arguments are held to."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of function ``name`` begins; calls of one answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Reasoning | Content | CallStart | CallArguments


class ToolCallParser(Protocol):
    """State of one choice's text."""

    def push(self, text: str) -> list[Event]:
        """Take the next piece and return what has become certain."""

    def finish(self) -> list[Event]:
        """Return what was held back: the text is over."""


@dataclass(frozen=True, slots=True)
class Call:
    """One whole call; ``arguments`` is JSON text, which a model may have left unfinished."""

    name: str
    arguments: str


def gather(events: Iterable[Event]) -> tuple[str, tuple[Call, ...]]:
    """Return the content and the calls that ``events`` add up to."""
    content: list[str] = []
    names: list[str] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case CallStart(_, name):
                names.append(name)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = zip(names, ("".join(pieces) for pieces in arguments), strict=True)
    return "".join(content), tuple(Call(*call) for call in calls)


def joined(events: Iterable[Event]) -> list[Event]:
    """Return ``events`` with neighbours of one kind made one, and empty ones left out."""
    merged: list[Event] = []
    for event in events:
        match event, merged[-1] if merged else None:
            case (Content(""), _) | (CallArguments(_, ""), _):
                continue
            case Reasoning(text), Reasoning(before):
                merged[-1] = Reasoning(before + text)
            case Content(text), Content(before):
                merged[-1] = Content(before + text)
            case CallArguments(index, text), CallArguments(_, before):
                merged[-1] = CallArguments(index, before + text)
            case _:
                merged.append(event)
    return merged


class ReadStatus(Enum):
    """How far a call is; READ and FAILED are final."""

    OPEN = auto()
    READ = auto()
    FAILED = auto()
    """This is no call, and no event was returned."""


class Brackets:
    """Where a JSON object ends. Of JSON only strings and brackets are understood."""

    def __init__(self) -> None:
        self._closing: list[str] = []
        self._in_string = False
        self._escaped = False

    @property
    def depth(self) -> int:
        """How many are open."""
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
            return character == "{" or character in SPACE
        if character in "{[":
            self._closing.append("}" if character == "{" else "]")
        elif character in "}]":
            return self._closing.pop() == character
        self._in_string = character == '"'
        return self._in_string or character in _OUTSIDE


class CallReader:
    """Reads one call: a JSON object with a name and arguments. ``push`` while the status is OPEN.

    An eager reader announces the name as soon as it is complete and passes the arguments on as they
    come, even if the rest is not JSON. Otherwise nothing is announced before the arguments are
    whole and valid.
    """

    def __init__(
        self, index: int, arguments_key: str, *, accepts: Callable[[str], bool], eager: bool
    ) -> None:
        """Begin; ``accepts`` says whether a function may have this name."""
        self.status = ReadStatus.OPEN
        self.announced = False
        """Whether events were returned: then the call can no longer be taken back."""
        self._index = index
        self._arguments_key = arguments_key
        self._accepts = accepts
        self._eager = eager
        self._brackets = Brackets()
        self._name: str | None = None
        """What the usual opening says; empty where the call begins in another way."""
        self._read: list[str] = []
        self._arguments: list[str] = []
        self._in_arguments = False

    @property
    def text(self) -> str:
        """All text that was read."""
        return "".join(self._read)

    def push(self, text: str) -> tuple[list[Event], str]:
        """Take the next piece; return events, and what of the piece is no part of the call."""
        events: list[Event] = []
        for at, character in enumerate(text):
            if not self._brackets.fits(character):
                # An object that is not closed behind whole arguments says all that is needed.
                self.status = ReadStatus.READ if self.announced else ReadStatus.FAILED
                return self._leave(events, text[:at], text[at:])
            depth = self._brackets.depth
            if self._in_arguments:
                self._arguments.append(character)
                if depth == 1:
                    events += self._end_arguments()
            elif self._name is None and character == "{" and depth == 2:
                events += self._open(self.text + text[: at + 1])
            if depth == 0 and character == "}":
                events += self._end_object(text[: at + 1])
            if self.status is not ReadStatus.OPEN:
                return self._leave(events, text[: at + 1], text[at + 1 :])
        return self._leave(events, text, "")

    def _leave(self, events: list[Event], read: str, rest: str) -> tuple[list[Event], str]:
        self._read.append(read)
        if self._eager and self.announced and self._arguments:
            events.append(self._take_arguments())
        return events, rest

    def _open(self, text: str) -> list[Event]:
        found = _OPENING.fullmatch(text)
        if found is None or found[2] != self._arguments_key:
            self._name = ""
            return []
        self._name = found[1]
        if not self._accepts(self._name):
            self.status = ReadStatus.FAILED
            return []
        self._in_arguments = True
        self._arguments.append("{")
        return [self._announce(self._name)] if self._eager else []

    def _end_arguments(self) -> list[Event]:
        self._in_arguments = False
        if self._eager:
            return [self._take_arguments()]
        if not is_object("".join(self._arguments)):
            self.status = ReadStatus.FAILED
            return []
        return [self._announce(self._name or ""), self._take_arguments()]

    def _end_object(self, last_piece: str) -> list[Event]:
        self.status = ReadStatus.READ
        if self.announced:
            return []
        call = _parse(self.text + last_piece)
        if call is None or not self._accepts(call.name):
            self.status = ReadStatus.FAILED
            return []
        self._arguments = [call.arguments]
        return [self._announce(call.name), self._take_arguments()]

    def _announce(self, name: str) -> CallStart:
        self.announced = True
        return CallStart(self._index, name)

    def _take_arguments(self) -> CallArguments:
        pieces, self._arguments = self._arguments, []
        return CallArguments(self._index, "".join(pieces))


def is_object(text: str) -> bool:
    """Say whether ``text`` is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def _parse(text: str) -> Call | None:
    """Return a call that is written in an unusual way."""
    try:
        orjson.loads(text)
        value = json.loads(text)  # it keeps whole numbers of any length
    except (ValueError, RecursionError):
        return None
    given = [value[key] for key in _ARGUMENTS_KEYS if value.get(key) is not None]
    name, arguments = value.get("name", value.get("tool_name")), given[0] if given else {}
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    elif not (isinstance(arguments, str) and is_object(arguments)):
        return None  # an object may be written as text, which is how clients get it
    return Call(name, arguments) if isinstance(name, str) else None
