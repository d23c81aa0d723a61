"""What is sent to an upstream, and which one answered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.core.headers import Fields
from gateway.core.outbound import PRIORITY
from gateway.core.types import Reason
from policies.decide import Priority

UPSTREAM = "X-Refrain-Upstream"
MODEL = "X-Refrain-Model"
_OURS = "x-refrain-"
"""How the headers begin by which the gateway tells of itself: no upstream speaks in its place."""

MOST_MODELS = 1024
LONGEST_MODEL = 256
"""Clients choose the names of models: of no more is anything remembered, nor of longer ones."""

Lane = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as an upstream gets it; ``target`` is path and query, ``model`` what it names.

    ``prefix`` is the prompt's chain of block digests (``core.prefix_blocks``), of the prompt as it
    is sent: entry i covers the blocks 0 to i. It is empty where none was made.
    """

    target: str
    fields: Fields = field(repr=False)
    raw: bytes = field(repr=False)
    model: str = ""
    prefix: tuple[int, ...] = field(default=(), repr=False)
    streamed: bool = False
    """Whether a stream is asked for."""

    @property
    def rank(self) -> int:
        """Return its priority as a number, the first in line with the least."""
        told = next((value for name, value in self.fields if name == PRIORITY), "")
        return _RANKS.get(told, _RANKS[Priority.NORMAL])

    instead: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What these upstreams get in place of ``raw``, by name."""
    client: str | None = field(default=None, repr=False)
    """Who takes turns with others, None where nobody said who."""
    named: str = field(default="", repr=False)
    """The id of what it goes on with, which one upstream keeps."""
    at: str = ""
    """The only upstream that can answer it, where there is one."""

    @property
    def lane(self) -> Lane:
        """What others have to ask for to find room where it does."""
        return self.model, self.at

    def raw_to(self, upstream: str) -> bytes:
        """Return the body for an upstream."""
        return self.instead.get(upstream, self.raw)


_RANKS: dict[str, int] = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}

Tried = tuple[tuple[str, Reason], ...]
"""Who failed, and why."""


def _ignored(_told: object) -> None:
    """Where there is nothing to choose, nobody has to know."""


@dataclass(frozen=True, slots=True)
class Served:
    """Which upstream answered, and those that were tried before it, each with why it did not."""

    upstream: str
    tried: Tried = ()
    several: bool = False
    """Whether another one could have answered."""
    note_cached: Callable[[int], None] = field(default=_ignored, repr=False, compare=False)
    """To be told how much of the prompt it found in its cache, in tokens, where it says so."""
    note_made: Callable[[str], None] = field(default=_ignored, repr=False, compare=False)
    """To be told the id of what it has made and keeps."""

    def header(self) -> str | None:
        """Return what ``X-Refrain-Upstream`` says, None where there is one upstream only."""
        return told(self.upstream, self.tried) if self.several else None


def with_upstream(fields: Fields, served: Served | None) -> Fields:
    """Return an upstream's headers with who answered, where there are several upstreams."""
    header = None if served is None else served.header()
    theirs = tuple(field for field in fields if not field[0].lower().startswith(_OURS))
    return theirs if header is None else (*theirs, (UPSTREAM, header))


def told(upstream: str, tried: Tried) -> str:
    """Return the name of who answered, if anybody, and of those tried before, with the reasons."""
    failed = ", ".join(f"{name}={reason}" for name, reason in tried)
    return "; ".join(([upstream] if upstream else []) + ([f'tried="{failed}"'] if failed else []))
