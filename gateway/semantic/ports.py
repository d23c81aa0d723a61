"""The interfaces of semantic lookup: index, encoder and verifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.semantic.verification import Verification


class SemanticUnavailableError(Exception):
    """The semantic index cannot answer this; ``reason`` is one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question near the one asked: its entry's key and the cosine similarity."""

    key: bytes
    similarity: float


class SemanticIndex(Protocol):
    """Nearest stored questions within one partition (scope and compatibility fingerprint)."""

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Candidate]:
        """Return up to ``k``, nearest first. Raises SemanticUnavailableError."""
        ...

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """Make the entry findable by ``text``. Raises SemanticUnavailableError."""
        ...

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget the vectors of these entries. Raises SemanticUnavailableError."""
        ...


class LocalEncoder(Protocol):
    """The sentence encoder of this installation, which also serves embeddings."""

    @property
    def name(self) -> str:
        """The model's name; empty until the encoder is loaded."""
        ...

    @property
    def digest(self) -> str:
        """Digest of all that shapes a vector, hex; empty until the encoder is loaded."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a unit-length vector for each text, in order. Raises SemanticUnavailableError.

        One text without a vector fails all of them: ``empty-text``, ``text-too-long``.
        """
        ...


class Verifier(Protocol):
    """Checks that a stored answer fits the question asked."""

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        """Return how surely one answer fits both questions, whose cosine is ``similarity``.

        Raises nothing; waits are bounded.
        """
        ...

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        """Return the lowest score at which at most this share of hits is wrong, None if none is.

        A calibration bounds the share, with its confidence and for its traffic: that of the
        verifier named (``Verification.verifier``), else of the one in use.
        """
        ...
