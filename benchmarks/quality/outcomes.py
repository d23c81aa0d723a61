"""What came of a request, and what is counted of it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.semantic.ports import Verification
from quality.intervals import Share
from quality.trial import Request


@dataclass(frozen=True, slots=True)
class Try:
    """A candidate that came as far as the verifier, and what that said of it."""

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
    def identical(self) -> bool:
        """Tell whether the very same words are stored: an exact cache has those already."""
        first = self.tries[0].stored if self.tries else None
        return self.reason == "exact" or first == self.request.text

    def at(self, threshold: float) -> "Outcome":
        """Return what comes of it at another threshold, where all candidates were verified."""
        if self.reason == "exact":
            return self
        for candidate in self.tries:
            if candidate.verification.result(threshold) == "hit":
                return Outcome(self.request, candidate.answer, "semantic", self.tries)
        return Outcome(self.request, None, "miss", self.tries)


def hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.hit for outcome in outcomes)


def right_hits(outcomes: Iterable[Outcome]) -> Share:
    return Share.of(outcome.right for outcome in outcomes)


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
