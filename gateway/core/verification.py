"""What a verifier says of a stored question, and what that means under an error budget."""

import math
from typing import NamedTuple


class Verification(NamedTuple):
    """How sure it is that one answer fits both questions, 0 to 1; or why it was not asked.

    ``refusal`` is one word: the difference found, or the fault.
    """

    score: float
    refusal: str | None = None
    verifier: str = ""
    """Digest of the verifier whose score it is."""

    def refused(self, threshold: float | None) -> str | None:
        """Return why this is no hit, None where it is one.

        ``threshold`` is the least score that keeps the budget, None where none does.
        """
        if self.refusal is not None:
            return self.refusal
        if threshold is None:
            return "budget"
        # Whatever cannot be compared is no hit either.
        return None if self.score >= threshold else "score"

    @property
    def measured(self) -> float | None:
        """The score, None where the verifier was not asked."""
        return self.score if self.refusal is None else None

    def told(self, threshold: float | None, max_wrong_hits: float) -> str:
        """Say what it comes to, and what the budget would have needed."""
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
