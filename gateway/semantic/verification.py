"""A verifier's result for a stored question, and whether it is a hit under an error budget."""

import math
from typing import NamedTuple


class Verification(NamedTuple):
    """How surely one answer fits both questions, 0 to 1; or why there is no score.

    ``refusal`` is one word: the difference found, or the fault.
    """

    score: float
    refusal: str | None = None
    verifier: str = ""
    """Digest of the verifier that gave the score."""

    def refused(self, threshold: float | None, *, alias: bool = False) -> str | None:
        """Return why this is no hit, None where it is one.

        ``threshold`` is the lowest score that keeps the budget, None where none does. ``alias``: a
        fresh answer to this question was once the same as this one. That makes up for a low score,
        and for nothing else.
        """
        if self.refusal is not None:
            return self.refusal
        if threshold is None:
            return "budget"
        # NaN compares false, so it is no hit.
        fits = self.score >= threshold or (alias and math.isfinite(self.score))
        return None if fits else "score"

    def result(self, threshold: float | None, *, alias: bool) -> str:
        """Return why this is no hit; else ``hit``, or ``alias`` where the score is too low."""
        by_score = self.refused(threshold)
        if by_score is None:
            return "hit"
        return self.refused(threshold, alias=alias) or "alias"

    @property
    def measured(self) -> float | None:
        """The score, None where there is none."""
        return self.score if self.refusal is None else None

    def describe(
        self, threshold: float | None, max_wrong_hits: float, *, alias: bool = False
    ) -> str:
        """Return the result in words, with the score that the budget needs."""
        if self.result(threshold, alias=alias) == "alias":
            return "fits: a fresh answer to this question was the same"
        budget = f"at most {max_wrong_hits * 100:g} % wrong hits"
        match self.refused(threshold):
            case "budget":
                return f"refused: budget (no score is known to keep {budget})"
            case None | "score" as refused if threshold is not None and math.isfinite(self.score):
                fits = "fits" if refused is None else "refused"
                # Rounded down and up: the two never look equal where they are not.
                score, needed = math.floor(self.score * 1e4), math.ceil(threshold * 1e4)
                return f"{fits}: score {score / 1e4:g}, needs {needed / 1e4:g} for {budget}"
            case refused:
                return f"refused: {refused}"
