"""The verifier's port: guards, then the trained model's score, or rules where there is no model.

Part of the composition root, which alone may know both packages. Laws: whatever fails is a refusal
with its word, and every wait is bounded. A score and the threshold it is held against are of one
verifier: where another has come into use between them, the candidate is refused.
"""

import asyncio
import logging
from typing import Protocol

from embeddings.verify.agreement import agree
from embeddings.verify.guards import guard
from gateway.calibrations import Calibrations
from gateway.core.verification import Verification
from gateway.ports import SemanticUnavailableError

log = logging.getLogger(__name__)

RULES = "rules-1"
"""What the rules without a model are called in calibrations; raise it when they change."""
GUARD_SECONDS = 1.0
INLINE_CHARACTERS = 400
"""Two short questions take some 0.3 ms; longer ones leave the loop."""
MOST_CHARACTERS = 20_000
"""Of a pair; no verifier reads as far."""

_OF_THE_TEXT = frozenset({"text-too-long", "empty-text", "unreadable-text"})


class Scorer(Protocol):
    """The trained verifier, in a process of its own."""

    @property
    def verifier(self) -> str | None:
        """Its digest; empty where there is none, None until that is known."""
        ...

    @property
    def verifier_fault(self) -> str:
        """Why there is none."""
        ...

    async def score(self, asked: str, stored: str) -> float:
        """Return how surely one answer fits both. Raises SemanticUnavailableError."""
        ...


class CalibratedVerifier:
    """See the port ``Verifier``."""

    def __init__(
        self, scorer: Scorer | None, calibrations: Calibrations, *, seconds: float
    ) -> None:
        self._scorer = scorer
        self._calibrations = calibrations
        self._seconds = seconds

    def threshold(self, max_wrong_hits: float) -> float | None:
        """See the port."""
        verifier = self._verifier()
        if verifier is None:
            return None
        calibration = self._calibrations.of(verifier or RULES)
        return None if calibration is None else calibration.threshold(max_wrong_hits)

    async def verify(self, asked: str, stored: str) -> Verification:
        """See the port."""
        verifier = self._verifier()
        if verifier is None:
            return Verification(0.0, "verifier-unavailable")
        if len(asked) + len(stored) > MOST_CHARACTERS:
            return Verification(0.0, "text-too-long")
        if asked.strip() == stored.strip():
            return Verification(1.0, verifier=verifier or RULES)
        refusal = await _guarded(asked, stored, model=bool(verifier))
        if refusal is not None:
            return Verification(0.0, refusal)
        if self._scorer is None or not verifier:
            return Verification(1.0, verifier=RULES)
        return await self._scored(self._scorer, verifier, asked, stored)

    def details(self) -> dict[str, str | int]:
        """Return which verifier and which calibration are in use."""
        verifier = self._verifier()
        if verifier is None:
            return {"kind": "unknown"}
        details = self._calibrations.details(verifier or RULES)
        if verifier:
            return {"kind": "model", "digest": verifier[:16], **details}
        fault = "" if self._scorer is None else self._scorer.verifier_fault
        return {"kind": "rules", **({"fault": fault} if fault else {}), **details}

    def _verifier(self) -> str | None:
        return "" if self._scorer is None else self._scorer.verifier

    async def _scored(self, scorer: Scorer, verifier: str, asked: str, stored: str) -> Verification:
        try:
            async with asyncio.timeout(self._seconds):
                score = await scorer.score(asked, stored)
        except TimeoutError:
            return Verification(0.0, "verifier-timeout")
        except SemanticUnavailableError as error:
            word = error.reason
            return Verification(0.0, word if word in _OF_THE_TEXT else f"verifier-{word}")
        if scorer.verifier != verifier:
            return Verification(0.0, "verifier-changed")
        if not 0 <= score <= 1:  # NaN neither
            return Verification(0.0, "not-a-number")
        return Verification(score, verifier=verifier)


async def _guarded(asked: str, stored: str, *, model: bool) -> str | None:
    """Return the difference that a guard finds; without a model they are stricter."""
    check = guard if model else agree
    try:
        if len(asked) + len(stored) <= INLINE_CHARACTERS:
            return check(asked, stored)
        async with asyncio.timeout(GUARD_SECONDS):
            return await asyncio.to_thread(check, asked, stored)
    except Exception as error:  # noqa: BLE001 - fail to miss, whatever it is
        log.warning("verification failed (%s): a miss", type(error).__name__)
        return "fault"
