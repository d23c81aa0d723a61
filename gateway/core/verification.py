"""What a verifier says of a stored question, and what that means under an error budget."""

from typing import NamedTuple


class Verification(NamedTuple):
    """How sure it is that one answer fits both questions, 0 to 1; or why it was not asked.

    ``refusal`` is one word: the difference found, or the fault.
    """

    score: float
    refusal: str | None = None

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
