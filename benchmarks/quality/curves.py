"""Systems side by side as their thresholds loosen: at equal hit rate, at equal share of wrong hits.

A threshold that follows from a budget says how one system stands. Two systems are compared where
they hit alike, or where they are wrong alike. Each distinct threshold is tried, none is left out.
The points are chosen on the very set that they are read from, for each system alike. Pure.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from quality.measuring import Measured
from quality.outcomes import Outcome, Share, Try

COSINE = "plain cosine"
HIT_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
WRONG_SHARES = (0.005, 0.01, 0.02, 0.05)
_LABEL, _RATE, _PAIR = 20, 8, 16
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Point:
    """What a threshold leads to: hits among requests, right ones among hits."""

    threshold: float
    hits: Share
    right: Share

    @property
    def wrong(self) -> Share:
        return Share(self.hits.part - self.right.part, self.hits.part)


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a system, strictest first; `answerable` requests have a right answer stored."""

    points: Sequence[Point]
    requests: int
    answerable: int

    def at_hit_rate(self, rate: float) -> Point | None:
        """Return the strictest point with so many hits, None if the system has fewer."""
        fewest = math.ceil(round(rate * self.requests, _DIGITS))
        return next((each for each in self.points if each.hits.part >= fewest), None)

    def within(self, share: float) -> Point:
        """Return the point with most hits of which at most this share is wrong.

        If no threshold keeps to the share, nothing is served.
        """
        kept = [
            each
            for each in self.points
            if each.wrong.part <= round(share * each.hits.part, _DIGITS)
        ]
        nothing = Point(math.inf, Share(0, self.requests), Share(0, 0))
        return max(kept, key=lambda each: (each.hits.part, each.right.part), default=nothing)

    def recall(self, point: Point) -> Share:
        """Return the right hits among the requests that have a right answer."""
        return Share(point.right.part, self.answerable)


def by_meaning(
    outcomes: Sequence[Outcome], looked_up: Sequence[Outcome] | None = None
) -> list[Outcome]:
    """Leave out what an exact cache has already, and what has no answer on purpose.

    `looked_up` are the gateway's outcomes of the same requests. They say what an exact cache has:
    the gateway knows the conversation, plain cosine does not.
    """
    return [
        each
        for each, known in zip(outcomes, looked_up or outcomes, strict=True)
        if each.request.group != "oos" and not known.identical
    ]


def point(outcomes: Sequence[Outcome], threshold: float) -> Point:
    served = [outcome.at(threshold) for outcome in outcomes]
    hits = Share.of(outcome.hit for outcome in served)
    return Point(threshold, hits, Share(sum(each.right for each in served), hits.part))


def sweep(outcomes: Sequence[Outcome]) -> list[Point]:
    """Return the point of every threshold at which something changes, strictest first.

    Served is the nearest candidate that reaches the threshold (``Outcome.at``). So one candidate
    takes over from a farther one as the threshold falls, and only these changes are counted.
    """
    exact = [outcome for outcome in outcomes if outcome.reason == "exact"]
    hits, right = len(exact), sum(outcome.right for outcome in exact)
    changes = [
        change for outcome in outcomes if outcome.reason != "exact" for change in _changes(outcome)
    ]
    changes.sort(key=_score_of, reverse=True)
    points = []
    for threshold, some in groupby(changes, key=_score_of):
        for _, more_hits, more_right in some:
            hits, right = hits + more_hits, right + more_right
        points.append(Point(threshold, Share(hits, len(outcomes)), Share(right, hits)))
    return points


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points at even steps of hits, both ends among them."""
    if not points:
        return []
    parts = [each.hits.part for each in points]
    steps = {1 + round(step * (parts[-1] - 1) / (most - 1)) for step in range(most)}
    return [points[place] for place in sorted({bisect_left(parts, step) for step in steps})]


def curves(measured: Measured) -> dict[str, Curve]:
    """Return the curves of plain cosine and of each of our systems, over the same requests."""
    looked_up = next(iter(measured.judged.values()), measured.nearest)
    answers = measured.trial.answers
    made = {}
    for name, outcomes in {COSINE: measured.nearest, **measured.judged}.items():
        kept = by_meaning(outcomes, looked_up)
        requests = [each.request for each in kept]
        answerable = sum((each.realm, each.answer) in answers for each in requests)
        made[name] = Curve(sweep(kept), len(requests), answerable)
    return made


def lines(name: str, systems: Mapping[str, Curve]) -> Iterator[str]:
    """Yield the table of a trial."""
    some = next(iter(systems.values()))
    yield f"{name}: {some.requests:,} requests by meaning, {some.answerable:,} have a right answer"
    rates = f"{'wrong among hits, at a hit rate of':>{_RATE * len(HIT_RATES)}}"
    shares = (
        f"{'hit rate, recall, where at most so many hits are wrong':>{_PAIR * len(WRONG_SHARES)}}"
    )
    yield " " * _LABEL + rates + shares
    yield (
        " " * _LABEL
        + "".join(f"{rate:>{_RATE}.0%}" for rate in HIT_RATES)
        + "".join(f"{share:>{_PAIR}.1%}" for share in WRONG_SHARES)
    )
    for system, curve in systems.items():
        yield f"{system:{_LABEL}}" + "".join(
            (
                *(f"{_percent(_wrong_at(curve, rate)):>{_RATE}}" for rate in HIT_RATES),
                *(f"{_within(curve, share):>{_PAIR}}" for share in WRONG_SHARES),
            )
        )


def as_json(systems: Mapping[str, Curve]) -> dict[str, Any]:
    """Return what the table says, by system, with the thresholds."""
    return {name: _as_json(curve) for name, curve in systems.items()}


def _as_json(curve: Curve) -> dict[str, Any]:
    within = {share: curve.within(share) for share in WRONG_SHARES}
    return {
        "requests": curve.requests,
        "answerable": curve.answerable,
        "wrong_at_hit_rate": {str(rate): _rounded(_wrong_at(curve, rate)) for rate in HIT_RATES},
        "at_wrong_share": {
            str(share): {
                "hit_rate": _rounded(found.hits.value),
                "recall": _rounded(curve.recall(found).value),
                "threshold": _rounded(found.threshold if found.hits.part else None),
            }
            for share, found in within.items()
        },
    }


def _changes(outcome: Outcome) -> Iterator[tuple[float, int, int]]:
    """Yield score, more hits and more right hits of each candidate that some threshold serves.

    It is one that is surer than all nearer ones.
    """
    served: list[Try] = []
    for each in outcome.tries:
        said = each.verification
        surest = served[-1].verification.score if served else -math.inf
        if said.refusal is None and said.score > surest:
            served.append(each)
    before = None
    for each in reversed(served):
        right = each.right(outcome.request)
        yield each.verification.score, int(before is None), right - bool(before)
        before = right


def _score_of(change: tuple[float, int, int]) -> float:
    return change[0]


def _wrong_at(curve: Curve, rate: float) -> float | None:
    found = curve.at_hit_rate(rate)
    return None if found is None else found.wrong.value


def _within(curve: Curve, share: float) -> str:
    found = curve.within(share)
    return ", ".join(
        _percent(each) for each in (found.hits.value, curve.recall(found).value) if each is not None
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
