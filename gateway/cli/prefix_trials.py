"""Recorded prompts, and what an unbounded prefix cache would find of them with settings tried.

Law: nothing is guessed that can be tried. A trial keeps no rewritten prompt, so memory grows with
the text that is not shared alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.cli.prefix_tree import Node, PrefixTree
from gateway.cli.prompt_layout import INSTRUCTING, Part, laid_out, part_at
from gateway.cli.recorded_requests import Recorded
from policies.plain_enum import plain_members

LEAST_SHARE = 0.005
"""Of all characters: what a setting must save, and a parting must lose, to be told."""

Setting = str
"""A setting's name, such as ``volatile: uuids``."""
Rewriting = Callable[[Recorded, Collection[Setting]], dict[str, Any]]
"""Returns a recorded body as it would go on to the upstream with these settings."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of so many characters, those that began an earlier prompt, too."""

    characters: int
    shared: int

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.shared / self.characters if self.characters else 0.0


@plain_members
class Ground(StrEnum):
    """On what prompts part."""

    STABLE = "stable"
    """Tools and instructions, which could be the same in all."""
    MOVED = "moved"
    """The block of values that was moved out of these."""
    SAID = "said"
    """Turns of a conversation before the last one."""
    ASKED = "asked"
    """The last turn of the user's, which is never rewritten."""


class Place(NamedTuple):
    """Where in a prompt something stands, in words, and what stands there."""

    words: str
    ground: Ground


def place_at(parts: Sequence[Part], at: int) -> Place:
    """Return the place of a character of a prompt."""
    part, _ = part_at(parts, at)
    if part.role == "tools":
        return Place("tools", Ground.STABLE)
    if part.role in INSTRUCTING:
        return Place(f"{part.place} ({part.role})", Ground.STABLE)
    if part.is_block:
        return Place("the values that moved", Ground.MOVED)
    if part is parts[-1] and part.role == "user":
        return Place("the last turn (user)", Ground.ASKED)
    return Place("earlier turns", Ground.SAID)


class Trial(NamedTuple):
    """What was found of the prompts with some settings, and where they part."""

    found: Found
    tree: PrefixTree
    places: Mapping[Node, Place]


@dataclass(frozen=True, slots=True)
class Trials:
    """The prompts of one route, in the order in which they came."""

    prompts: Sequence[Recorded]
    rewriting: Rewriting
    passed: Callable[[], None] = field(default=lambda: None)
    """Called after each pass over them."""

    def sample(self, most: int) -> "Trials":
        """Return so many of them at most, from all over; nobody is told of passes over these."""
        step = -(-len(self.prompts) // most)
        return Trials(self.prompts[:: max(1, step)], self.rewriting)

    def parts(self, number: int, settings: Collection[Setting]) -> list[Part]:
        """Return the parts of one prompt with some settings."""
        one = self.prompts[number]
        body = self.rewriting(one, settings) if settings else one.body
        return list(laid_out(one.endpoint, body))

    def text(self, number: int, settings: Collection[Setting]) -> str:
        """Return the text of one prompt with some settings."""
        return "".join(part.text for part in self.parts(number, settings))

    def tried(self, settings: Collection[Setting]) -> Trial:
        """Return what would be found with some settings, and where the prompts would part."""
        tree = PrefixTree()
        places: dict[Node, Place] = {}
        characters = shared = 0
        for number in range(len(self.prompts)):
            parts = self.parts(number, settings)
            text = "".join(part.text for part in parts)
            common, node = tree.grown(text)
            characters += len(text)
            shared += common
            if node is not None and node not in places:
                places[node] = place_at(parts, common)
        self.passed()
        return Trial(Found(characters, shared), tree, places)

    def share(self, settings: Collection[Setting]) -> float:
        """Return what share would be found with some settings."""
        return self.tried(settings).found.share
