"""What came of a request, and what is counted of it, with 95 % intervals. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from embeddings.verify.binomial import lower_bound, upper_bound
from gateway.semantic.ports import Verification
from quality.trial import Request

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
        """Both ends of Clopper and Pearson's interval (1934); 0 to 1 where nothing is known.

        It takes the rows for independent. Rows made from one template are less so, and their true
        uncertainty is larger.
        """
        one_sided = 1 - (1 - CONFIDENCE) / 2
        return (
            lower_bound(self.part, self.whole, one_sided),
            upper_bound(self.part, self.whole, one_sided),
        )


@dataclass(frozen=True, slots=True)
class Try:
    """A candidate and its verification, which may hold a score beside a guard's refusal."""

    stored: str
    answer: str
    similarity: float
    verification: Verification

    def right(self, request: Request) -> bool:
        return self.answer == request.answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """`served` is the label of the answer served, None for a miss; `reason` why it came to that.

    `tries` are the candidates verified, nearest first.
    """

    request: Request
    served: str | None
    reason: str
    tries: tuple[Try, ...] = ()

    @property
    def hit(self) -> bool:
        return self.served is not None

    @property
    def wrong(self) -> bool:
        return self.hit and self.served != self.request.answer

    @property
    def right(self) -> bool:
        return self.hit and self.served == self.request.answer

    @property
    def found(self) -> str | None:
        """The stored question whose answer was served, None for a miss."""
        if not self.hit:
            return None
        return self.request.text if self.reason == "exact" else self.tries[-1].stored

    @property
    def identical(self) -> bool:
        """Tell whether the very same words are stored: an exact cache has those already."""
        first = self.tries[0].stored if self.tries else None
        return self.reason == "exact" or first == self.request.text

    def at(self, threshold: float | None, *, without: Collection[str] = ()) -> "Outcome":
        """Return what comes of it at a threshold, where all candidates were verified.

        Refusals of the guards named `without` count as none: the score decides.
        """
        if self.reason == "exact":
            return self
        for place, candidate in enumerate(self.tries):
            said = candidate.verification
            if said.refusal in without:
                said = said._replace(refusal=None)
            if said.result(threshold) == "hit":
                tried = self.tries[: place + 1]
                return Outcome(self.request, candidate.answer, "semantic", tried)
        reason = "miss" if self.reason == "semantic" else self.reason
        return Outcome(self.request, None, reason, self.tries)


def hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.hit for outcome in outcomes)


def right_hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.right for outcome in outcomes)


def wrong_hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.wrong for outcome in outcomes)


def wrong_among_hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.wrong for outcome in outcomes if outcome.hit)


def right_among_hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.right for outcome in outcomes if outcome.hit)


def grouped(outcomes: Sequence[Outcome], *, most: str | None = None) -> dict[str, list[Outcome]]:
    """Return the outcomes by group, the part of its name before `most` where that is given."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        name = outcome.request.group
        groups.setdefault(name.partition(most)[0] if most else name, []).append(outcome)
    return groups
