"""What is sent to an upstream, and which one answered."""

from dataclasses import dataclass, field

from gateway.core.headers import Fields
from gateway.core.types import Reason


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as an upstream gets it; ``target`` is path and query, ``model`` what it names.

    ``prefix`` is a chain of 64-bit digests of the prompt's blocks as they are sent, with the
    tenant's salt in its root: entry i covers the blocks 0 to i. It is empty where none was made.
    """

    target: str
    fields: Fields = field(repr=False)
    raw: bytes = field(repr=False)
    model: str = ""
    prefix: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Served:
    """Which upstream answered, and those that were tried before it, each with why it did not."""

    upstream: str
    tried: tuple[tuple[str, Reason], ...] = ()
