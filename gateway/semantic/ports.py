"""The interfaces of semantic lookup: index, encoder, verifier and its result."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from embeddings.messages import Match, SemanticUnavailableError
from embeddings.verify.resemblance import Features

__all__ = [
    "Features",
    "LocalEncoder",
    "Match",
    "SemanticIndex",
    "SemanticUnavailableError",
    "SurestCandidate",
    "Verification",
    "Verifier",
]


class SemanticIndex(Protocol):
    """Nearest stored questions within one partition (scope and compatibility fingerprint)."""

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        """Return up to ``k``, nearest first. Raises SemanticUnavailableError."""

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """Make the entry findable by ``text``. Raises SemanticUnavailableError."""

    async def remove(self, keys: Sequence[bytes]) -> None: ...


class LocalEncoder(Protocol):
    """The sentence encoder of this installation, which also serves embeddings."""

    @property
    def name(self) -> str:
        """The model's name; empty until the encoder is loaded."""

    @property
    def digest(self) -> str:
        """Digest of all that shapes a vector, hex; empty until the encoder is loaded."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a unit-length vector for each text, in order. Raises SemanticUnavailableError.

        One text without a vector fails all of them: ``empty-text``, ``text-too-long``.
        """


class SurestCandidate(NamedTuple):
    """The candidate of a lookup with the highest score. It holds no text."""

    features: Features
    pair: int
    """Hash of the question's identity and the entry's key, of this process alone."""
    min_similarity: float
    """The lowest cosine similarity that the rule looks up."""


class Verification(NamedTuple):
    """How surely one answer fits both questions, 0 to 1; or why there is no score.

    ``refusal`` is one word: the difference found, or the fault.
    """

    score: float
    refusal: str | None = None
    verifier: str = ""
    """Digest of the verifier that gave the score."""
    features: Features | None = None
    """What is known of the pair that was scored; None of two equal texts."""

    def result(self, threshold: float | None, *, alias: bool = False) -> str:
        """Return ``hit``, ``alias`` (a low score but a known equal answer), or the refusal.

        ``threshold`` is the lowest score that keeps the budget; None if no score does. ``alias``:
        a fresh answer to this question was once equal to this one. An alias makes up for a low
        score, and for nothing else.
        """
        if self.refusal is not None:
            return self.refusal
        if threshold is None:
            return "budget"
        # NaN compares false, so it is no hit.
        if self.score >= threshold:
            return "hit"
        return "alias" if alias and self.is_finite else "score"

    @property
    def is_finite(self) -> bool:
        return abs(self.score) < float("inf")

    @property
    def known_score(self) -> float | None:
        return self.score if self.refusal is None else None

    def describe(
        self, threshold: float | None, max_wrong_hits: float, *, alias: bool = False
    ) -> str:
        """Return the result in words, with the score that the budget needs."""
        budget = f"at most {max_wrong_hits * 100:g} % wrong hits"
        match self.result(threshold, alias=alias):
            case "alias":
                return "fits: a fresh answer to this question was the same"
            case "budget":
                return f"refused: budget (no score is known to keep {budget})"
            case "hit" | "score" as result if threshold is not None and self.is_finite:
                fits = "fits" if result == "hit" else "refused"
                # Rounded down and up: the two never look equal where they are not.
                score, needed = self.score * 1e4 // 1, -(-threshold * 1e4 // 1)
                return f"{fits}: score {score / 1e4:g}, needs {needed / 1e4:g} for {budget}"
            case refusal:
                return f"refused: {refusal}"


class Verifier(Protocol):
    """Checks that a stored answer fits the question of the request."""

    async def verify(self, question: str, stored: str, similarity: float) -> Verification:
        """Return the verification of one answer for two questions of cosine ``similarity``.

        Raises nothing; waits are bounded.
        """

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        """Return the lowest score with at most this share of wrong hits, or None.

        A calibration bounds the share, with its confidence and for its traffic. It is the
        calibration of the verifier named (``Verification.verifier``), else of the one in use.
        """
