"""Whether would-be hits resemble a calibration's: the population stability index of features.

A feature is a figure that is known of a candidate. A calibration has, for each feature, the deciles
of its would-be hits and how many of them are in each bin. The index (PSI) compares shares by bin:
the sum of (now - then) * ln(now / then).

Credit scoring has a convention for the index: under 0.1 nothing has changed, over 0.25 the
population is another one (Siddiqi, Credit Risk Scorecards, 2006). By chance alone, the index of ten
bins is about 9 / seen + 9 / calibrated, so few hits prove nothing.

Laws: pure, no texts are kept, and to count a candidate takes a bounded time and no memory. What is
old fades, so the counts follow the traffic.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embeddings.verify.recipe import overlap

LIMIT: Final = 0.25
"""A distance over it says that the traffic is another."""
LEAST: Final = 200
"""Would-be hits, of a calibration and of the traffic, before they are compared."""
MOST: Final = 2000
"""At so many the counts are halved: the latest 1,000 to 2,000 weigh most."""

_BINS: Final = 10
_HALF: Final = 0.5
"""Added to each count: the logarithm of an empty bin is no number."""


class Features(NamedTuple):
    """What is known of a would-be hit: of its question and the nearest stored one."""

    cosine: float
    score: float
    characters: int
    """Of the question that is asked."""
    overlap: float
    """Share of the words of both questions that are in both."""


FeatureName = Literal["cosine", "score", "characters", "overlap"]


def features_of(question: str, stored: str, cosine: float, score: float) -> Features:
    """Return the features of a pair that has a score, rounded as files have them."""
    shared = round(overlap(question, stored), 6)
    return Features(round(cosine, 6), round(score, 6), len(question), shared)


class Bins(BaseModel):
    """The deciles of a feature, equal ones once, and the number of would-be hits in each bin.

    A decile belongs to the bin below it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    deciles: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...],
        Field(min_length=1, max_length=_BINS - 1),
    ]
    hits: tuple[Annotated[int, Field(ge=0)], ...]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if list(self.deciles) != sorted(set(self.deciles)):
            raise ValueError("expected rising deciles")
        if len(self.hits) != len(self.deciles) + 1:
            raise ValueError(f"expected {len(self.deciles) + 1} numbers of hits")
        return self


FeatureBins = Mapping[FeatureName, Bins]


def binned(hits: Iterable[Features]) -> dict[FeatureName, Bins] | None:
    """Return the bins of each feature; None of fewer than ``LEAST`` hits."""
    known = list(hits)
    if len(known) < LEAST:
        return None
    return {
        "cosine": _bins(each.cosine for each in known),
        "score": _bins(each.score for each in known),
        "characters": _bins(float(each.characters) for each in known),
        "overlap": _bins(each.overlap for each in known),
    }


def _bins(feature: Iterable[float]) -> Bins:
    values = sorted(feature)
    places = (-(-len(values) * tenth // _BINS) - 1 for tenth in range(1, _BINS))
    deciles = tuple(sorted({values[place] for place in places}))
    hits = [0] * (len(deciles) + 1)
    for value in values:
        hits[bisect_left(deciles, value)] += 1
    return Bins(deciles=deciles, hits=tuple(hits))


def stability_index(then: Sequence[int], now: Sequence[int]) -> float:
    """Return how far two counts of the same bins are apart: 0 if their shares are equal."""
    added = _HALF * len(then)
    all_then, all_now = sum(then) + added, sum(now) + added
    shares = (
        ((before + _HALF) / all_then, (after + _HALF) / all_now)
        for before, after in zip(then, now, strict=True)
    )
    return math.fsum((after - before) * math.log(after / before) for before, after in shares)


class Tally:
    """Counts would-be hits in the bins of a calibration."""

    def __init__(self, bins: FeatureBins) -> None:
        self.seen = 0
        self._bins = bins
        self._counts = [
            (Features._fields.index(name), each.deciles, [0] * len(each.hits))
            for name, each in bins.items()
        ]

    def add(self, features: Features) -> None:
        """Count a would-be hit."""
        for place, deciles, counts in self._counts:
            counts[bisect_left(deciles, features[place])] += 1
        self.seen += 1
        if self.seen == MOST:
            self.seen //= 2
            for _, _, counts in self._counts:
                counts[:] = [count // 2 for count in counts]

    def distances(self) -> dict[str, float]:
        """Return the index of each feature; nothing before ``LEAST`` hits were seen."""
        if self.seen < LEAST:
            return {}
        found = zip(self._bins.items(), self._counts, strict=True)
        return {name: stability_index(each.hits, counts) for (name, each), (*_, counts) in found}
