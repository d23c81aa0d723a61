"""Is a stated budget kept? Calibrations drawn from a traffic whose truth is known. Pure.

The would-be hits of a trial are taken for all the traffic there is, so that the true share of wrong
hits over any threshold is a count. Calibrations are drawn from it at random, as an operator's log
would be, and each yields a threshold for the budget, or none. The method promises that the true
share is over the budget in at most one of twenty.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from embeddings.verify.calibration import Calibration, calibrated
from quality.outcomes import Outcome, Share
from quality.trial import SEED

DRAWS = 200


@dataclass(frozen=True, slots=True)
class Promise:
    """What came of the draws for one budget. Medians are over those that yielded a threshold."""

    budget: float
    broken: Share
    """Draws whose threshold truly has more wrong hits than the budget, of all draws."""
    none: int
    """Draws that yielded no threshold: nothing would be served."""
    wrong: float | None
    hit_rate: float | None


def would_be_hits(outcomes: Sequence[Outcome]) -> list[tuple[float, bool]]:
    """Return score and verdict of the best candidate of each request, where there is one."""
    found = []
    for outcome in outcomes:
        left = [each for each in outcome.tries if each.verification.refusal is None]
        if left:
            best = max(left, key=lambda each: each.verification.score)
            found.append((best.verification.score, not best.right(outcome.request)))
    return found


def promises(
    points: Sequence[tuple[float, bool]], asked: int, budgets: Sequence[float], draws: int = DRAWS
) -> list[Promise]:
    """Return for each budget how often calibrations of the traffic's own size broke it."""
    ordered = sorted(points)
    scores = [score for score, _ in ordered]
    wrong_from = [*accumulate((wrong for _, wrong in reversed(ordered)), initial=0)]
    draw = random.Random(SEED)
    calibrations = [
        calibrated(draw.choices(points, k=len(points)), verifier="drawn") for _ in range(draws)
    ]
    return [_promise(budget, calibrations, scores, wrong_from, asked) for budget in budgets]


def _promise(
    budget: float,
    calibrations: Sequence[Calibration],
    scores: Sequence[float],
    wrong_from: Sequence[int],
    asked: int,
) -> Promise:
    broken = none = 0
    wrong: list[float] = []
    rates: list[float] = []
    for calibration in calibrations:
        threshold = calibration.threshold(budget)
        if threshold is None:
            none += 1
            continue
        hits = len(scores) - bisect_left(scores, threshold)
        share = wrong_from[hits] / hits
        broken += share > budget
        wrong.append(share)
        rates.append(hits / asked)
    return Promise(
        budget,
        Share(broken, len(calibrations)),
        none,
        median(wrong) if wrong else None,
        median(rates) if rates else None,
    )
