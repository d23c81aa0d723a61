"""The ``Cache-Status`` reply header (RFC 9211) from an outcome; one place that spells it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.protocol.reasons import Reason
from policies.plain_enum import plain_members


@plain_members
class Forwarded(StrEnum):
    """Why a request went to the upstream: the ``fwd`` parameter."""

    MISS = "miss"
    STALE = "stale"
    REQUEST = "request"
    BYPASS = "bypass"


class HitStatus(NamedTuple):
    """Answered from an entry; ``ttl`` is negative when the entry is stale.

    ``stale`` says by what grace a stale one is served.
    """

    reason: Reason
    ttl: int
    similarity: float | None = None
    stale: Reason | None = None
    score: float | None = None
    """How sure the verifier is of a semantic hit, and how sure it had to be."""
    threshold: float | None = None

    def header(self) -> str:
        """Return the list member."""
        if self.stale is not None:
            return f'refrain; hit; ttl={self.ttl}; detail="{self.reason}; {self.stale}"'
        if self.similarity is None:
            return f"refrain; hit; ttl={self.ttl}; detail={self.reason}"
        # Rounded down: 1.000 is for the same vector only.
        similarity = int(self.similarity * 1000) / 1000
        return f'refrain; hit; ttl={self.ttl}; detail="{self.reason}; similarity={similarity:.3f}"'


@dataclass(frozen=True, slots=True)
class ForwardStatus:
    """Forwarded to the upstream; ``collapsed`` into a call that another request had made."""

    forwarded: Forwarded
    reason: Reason | None = None
    collapsed: bool = False
    items: tuple[int, int] | None = None
    """Of a batch: how many were found, of how many."""

    def header(self, *, stored: bool = False, declined: Reason | None = None) -> str:
        """Return the list member.

        ``stored`` only when the entry is already there; ``declined`` is why it is not, where that
        is known before the head is sent.
        """
        parts = ["refrain", f"fwd={self.forwarded}"]
        if stored:
            parts.append("stored")
        if self.collapsed:
            parts.append("collapsed")
        words = [str(word) for word in (self.reason, declined) if word is not None]
        if self.items is not None:
            found, of = self.items
            words.insert(1, f"items={found}/{of}")
        if len(words) == 1:
            parts.append(f"detail={words[0]}")
        elif words:
            parts.append(f'detail="{"; ".join(words)}"')
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class RefusedStatus:
    """Neither answered from an entry nor forwarded."""

    reason: Reason

    def header(self) -> str:
        """Return the list member."""
        return f"refrain; detail={self.reason}"


def joined(upstream: str | None, ours: str) -> str:
    """Append our member to the ``Cache-Status`` that the upstream sent, if any."""
    return f"{upstream}, {ours}" if upstream else ours
