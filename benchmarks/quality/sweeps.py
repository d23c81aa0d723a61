"""Precision against hit rate as the threshold loosens. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from quality.intervals import Share
from quality.outcomes import Outcome, Try

_POINTS = 48


@dataclass(frozen=True, slots=True)
class Point:
    """What a threshold leads to: hits among requests, right ones among hits."""

    threshold: float
    hits: Share
    right: Share


def by_meaning(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Leave out what an exact cache has already, and what has no answer on purpose."""
    return [each for each in outcomes if each.request.group != "oos" and not each.identical]


def point(outcomes: Sequence[Outcome], threshold: float) -> Point:
    served = [outcome.at(threshold) for outcome in outcomes]
    hits = Share.of(outcome.hit for outcome in served)
    return Point(threshold, hits, Share(sum(each.right for each in served), hits.part))


def curve(outcomes: Sequence[Outcome]) -> list[Point]:
    """Return the points from the strictest threshold with a hit on, at even steps of hits."""
    best = sorted(
        (
            max(scores)
            for outcome in outcomes
            if (scores := [each.verification.score for each in _open(outcome)])
        ),
        reverse=True,
    )
    if not best:
        return []
    places = {round(step * (len(best) - 1) / (_POINTS - 1)) for step in range(_POINTS)}
    return [point(outcomes, best[place]) for place in sorted(places)]


def _open(outcome: Outcome) -> list[Try]:
    return [each for each in outcome.tries if each.verification.refusal is None]
