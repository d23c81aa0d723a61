"""What a model's text turns out to be, piece by piece: reasoning, words for the user, calls.

Law: events depend on the text alone, never on where it was cut into pieces.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


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
        ...

    def finish(self) -> list[Event]:
        """Return what was held back: the text is over."""
        ...


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
