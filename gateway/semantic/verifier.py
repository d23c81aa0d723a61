"""The verifier: guards, then the trained model's score. Without the model there is no semantic hit.

Laws: each failure is a refusal with its word, and each wait is bounded. A score and its threshold
come from one verifier: if another comes into use between them, the candidate is refused. After a
score that timed out no request waits for one during ``PAUSE_SECONDS``, as each has several
candidates.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from embeddings.verify.calibration import Calibration
from embeddings.verify.recipe import overlap, weighed
from embeddings.verify.resemblance import features_of
from gateway.semantic.calibrations import Calibrations, Traffic
from gateway.semantic.ports import SemanticUnavailableError, Verification

log = logging.getLogger(__name__)

GUARD_SECONDS = 1.0
INLINE_CHARACTERS = 400
"""Two short questions take some 0.3 ms; longer ones leave the loop."""
PAUSE_SECONDS = 1.0
MAX_CHARACTERS = 20_000
"""Of a pair; no verifier reads as far."""

OF_THE_TEXT = frozenset({"text-too-long", "empty-text", "unreadable-text"})


class Scorer(Protocol):
    """The trained verifier, in a separate process."""

    @property
    def verifier(self) -> str | None:
        """Its digest; empty if there is no verifier, None until that is known."""

    @property
    def verifier_name(self) -> str: ...
    @property
    def verifier_fault(self) -> str: ...
    async def score(self, question: str, stored: str) -> float:
        """Return how surely one answer fits both. Raises SemanticUnavailableError."""


class CalibratedVerifier:
    """The ``Verifier`` of a running gateway."""

    def __init__(
        self,
        scorer: Scorer | None,
        calibrations: Calibrations,
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scorer = scorer
        self._calibrations = calibrations
        self._seconds = seconds
        self._clock = clock
        self._paused_until = float("-inf")
        self.traffic = Traffic(self._calibration, clock)

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        """Return the lowest score that keeps the budget, None if none does."""
        if verifier not in ("", self._verifier()):
            return None
        calibration = self._calibration()
        return None if calibration is None else calibration.threshold(max_wrong_hits)

    async def verify(self, question: str, stored: str, similarity: float) -> Verification:
        verifier = self._verifier()
        if self._scorer is None or not verifier:
            return Verification(0.0, "verifier-unavailable")
        if len(question) + len(stored) > MAX_CHARACTERS:
            return Verification(0.0, "text-too-long")
        if question.strip() == stored.strip():
            return Verification(1.0, verifier=verifier)
        refusal = await _guard(question, stored)
        if refusal is not None:
            return Verification(0.0, refusal)
        return await self._score(self._scorer, verifier, (question, stored), similarity)

    async def _score(
        self, scorer: Scorer, verifier: str, pair: tuple[str, str], similarity: float
    ) -> Verification:
        if self._clock() < self._paused_until:
            return Verification(0.0, "verifier-timeout")
        try:
            async with asyncio.timeout(self._seconds):
                score = weighed(await scorer.score(*pair), similarity, overlap(*pair))
        except TimeoutError:
            fault = "timeout"
        except SemanticUnavailableError as error:
            fault = error.reason
        else:
            if scorer.verifier != verifier:
                return Verification(0.0, "verifier-changed")
            if not 0 <= score <= 1:  # NaN neither
                return Verification(0.0, "not-a-number")
            features = features_of(*pair, similarity, score)
            return Verification(score, verifier=verifier, features=features)
        if fault == "timeout":
            self._paused_until = self._clock() + PAUSE_SECONDS
        return Verification(0.0, fault if fault in OF_THE_TEXT else f"verifier-{fault}")

    def details(self) -> dict[str, str | int]:
        verifier = self._verifier()
        if verifier is None:
            return {"kind": "unknown"}
        scorer = self._scorer
        name = "" if scorer is None else scorer.verifier_name
        fault = "" if scorer is None else scorer.verifier_fault
        faults = {"fault": fault} if fault else {}
        if verifier:
            details = self._calibrations.details(verifier)
            unlike = self.traffic.problem()
            more = {"unlike": unlike} if unlike else {}
            what = {"kind": "model", "name": name, "digest": verifier[:16]}
            return {**what, **details, **more, **faults}
        return {"kind": "none", **faults}

    def _calibration(self) -> Calibration | None:
        in_use = self._verifier()
        return self._calibrations.of(in_use) if in_use else None

    def _verifier(self) -> str | None:
        return "" if self._scorer is None else self._scorer.verifier


def guard(question: str, stored: str) -> str | None:
    """Return the difference that the guards find."""
    from embeddings.verify.guards import guard as find  # noqa: PLC0415
    from embeddings.verify.vocabulary import common_words  # noqa: PLC0415

    return find(question, stored, common_words())


def load_guards() -> None:
    """Load what ``verify`` needs first, which exact lookup does without."""
    guard("", "")


async def _guard(question: str, stored: str) -> str | None:
    try:
        if len(question) + len(stored) <= INLINE_CHARACTERS:
            return guard(question, stored)
        async with asyncio.timeout(GUARD_SECONDS):
            return await asyncio.to_thread(guard, question, stored)
    except Exception as error:  # noqa: BLE001 - any fault is a miss
        log.warning("verification failed (%s): a miss", type(error).__name__)
        return "fault"
