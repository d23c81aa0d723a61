"""A share of a count, with its 95 % interval. Pure.

Clopper and Pearson's interval (1934), which holds for any share and any count. It takes the rows
for independent; those made from one template are less so, and their true doubt is larger.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from embeddings.verify.binomial import lower_bound, upper_bound

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Share:
    """`part` of `whole`; without a whole there is no share."""

    part: int
    whole: int

    @classmethod
    def of(cls, verdicts: Iterable[bool]) -> "Share":
        """Count the verdicts that hold among all of them."""
        listed = list(verdicts)
        return cls(sum(listed), len(listed))

    @property
    def value(self) -> float | None:
        return self.part / self.whole if self.whole else None

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval; all of 0 to 1 where nothing is known."""
        one_sided = 1 - (1 - CONFIDENCE) / 2
        return (
            lower_bound(self.part, self.whole, one_sided),
            upper_bound(self.part, self.whole, one_sided),
        )
