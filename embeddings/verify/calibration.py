"""From scores and verdicts of would-be hits to the least score that keeps an error budget.

Law: the bound is on the share of wrong ones *among the hits*, not among the requests. A file is
read whole or refused; that of another verifier is refused, because its scores mean something else.

Hits are tried from the surest down ("Learn then Test", Angelopoulos et al. 2021, fixed-sequence
testing), at numbers of hits laid down beforehand. A number passes when the one-sided
Clopper-Pearson bound (1934) of the wrong share at the stated confidence is within the budget; the
first that does not ends the search, so many tests need no correction.

Given the score of the hit that follows, the k surest hits are a sample of all traffic over it, so
the bound is exact as long as loosening the threshold does not lower the true share of wrong hits.
Where the search begins follows from numbers of hits alone, never from a verdict: at fewer than 299
hits no outcome could pass 1 %. With more data it begins where a few wrong ones are allowed, so that
one wrong label does not cost all hits.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from embeddings.verify.binomial import at_most
from embeddings.verify.resemblance import Bins, FeatureName, Features, binned

CONFIDENCE: Final = 0.95
MOST_STEPS: Final = 100_000

# The numbers of hits at which a threshold may stand: all up to 33, then steps of 3 %.
_GROWTH: Final = 1.03
# Wrong hits for which the first number tried leaves room, and the share of the set that it may
# take up for that.
_ROOM: Final = 4
_OPENING: Final = 4


class CalibrationError(ValueError):
    """The points or the file are no calibration; the message says where."""


class Step(NamedTuple):
    """So many hits have at least the score ``threshold``; so many of them are wrong."""

    threshold: Annotated[float, Field(ge=0, le=1)]
    hits: int
    wrong: int


class Calibration(BaseModel):
    """What is known of a verifier's would-be hits, from the surest down; as JSON, the file.

    ``verifier``: digest of the verifier whose scores they are. ``provenance``: what the hits were
    made from, in words. ``features``: what they are like, if that is known; other traffic is
    compared with it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Annotated[int, Field(ge=1, le=1)]
    verifier: Annotated[str, Field(min_length=1)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    provenance: str
    features: dict[FeatureName, Bins] | None = None
    steps: Annotated[tuple[Step, ...], Field(max_length=MOST_STEPS)]

    @model_validator(mode="after")
    def _loosen_step_by_step(self) -> Self:
        last = Step(2.0, 0, 0)
        for number, step in enumerate(self.steps):
            if step.threshold >= last.threshold or step.hits <= last.hits:
                raise ValueError(f"steps[{number}]: expected a lower score and more hits")
            more = step.hits - last.hits
            if not 0 <= step.wrong - last.wrong <= more:
                raise ValueError(f"steps[{number}]: expected 0 to {more} more wrong hits")
            last = step
        return self

    @cached_property
    def _found(self) -> dict[float, Step | None]:
        return {}

    @property
    def hits(self) -> int:
        """How many would-be hits there are."""
        return self.steps[-1].hits if self.steps else 0

    def threshold(self, max_wrong: float) -> float | None:
        """Return the least score with at most this share of wrong hits, None if none is known."""
        step = self.step(max_wrong)
        return None if step is None else step.threshold

    def step(self, max_wrong: float) -> Step | None:
        """Return the hits that such a threshold keeps. A larger budget never keeps fewer."""
        if max_wrong not in self._found:
            within = 0 < max_wrong < 1
            self._found[max_wrong] = self._last_within(max_wrong) if within else None
        return self._found[max_wrong]

    def hits_needed(self, max_wrong: float) -> int | None:
        """Return how many more hits are needed, if the surest ones go on as so far.

        That is: the same share of wrong ones at the same rank. The number is an upper estimate. A
        wrong hit counts from the last step before it, and numbers are tried in steps of 0.1 %. None
        where no number would do: too many of the surest quarter are wrong.
        """
        # So many hits are needed where none, one, two... are wrong. With more than a multiple of
        # the last, the first number tried grows no more.
        least = [least_hits(max_wrong, self.confidence, wrong=wrong) for wrong in range(_ROOM + 1)]
        laid_down = _counts()
        step = next(laid_down)
        hits = max(self.hits + 1, least[0])
        while hits <= _OPENING * least[_ROOM]:
            first = _first_tried(hits, least[0], least[_ROOM])
            while step < first:
                step = next(laid_down)
            # The search begins at a step, which may lie beyond the first number that it may try.
            wrong = self._wrong_of(min(step, hits), hits)
            if wrong <= _ROOM and least[wrong] <= first:
                return hits - self.hits
            hits += max(1, hits // 1000)
        return None

    def curve(self, points: int) -> list[Step]:
        """Return about so many steps at even numbers of hits, the surest first."""
        wanted = (self.hits * number / points for number in range(1, points + 1))
        return list(dict.fromkeys(map(self._step_of, wanted))) if self.steps else []

    def _step_of(self, hits: float) -> Step:
        return self.steps[bisect_left(self.steps, hits, key=lambda step: step.hits)]

    def _wrong_of(self, surest: int, hits: int) -> int:
        """Return how many of the surest are wrong at most, once there are so many hits."""
        if not self.steps:
            return 0
        rank = -(-surest * self.hits // hits)
        return -(-self._step_of(rank).wrong * hits // self.hits)

    def _last_within(self, max_wrong: float) -> Step | None:
        least, roomy = (least_hits(max_wrong, self.confidence, wrong=each) for each in (0, _ROOM))
        first = _first_tried(self.hits, least, roomy)
        found = None
        for number, step in enumerate(self.steps):
            if step.hits < first:
                continue
            # Ties may carry it past the number laid down. Its room is that number's then, or a
            # larger budget, which begins at a stricter step, might end there and keep fewer.
            hits = first if found is None and number else step.hits
            if not _within(step.wrong, hits, max_wrong, self.confidence):
                break
            found = step
        return found


def calibrated(
    points: Iterable[tuple[float, bool]],
    *,
    verifier: str,
    confidence: float = CONFIDENCE,
    provenance: str = "",
    features: Iterable[Features] = (),
) -> Calibration:
    """Calibrate from the (score, whether it is wrong) of would-be hits, and their features.

    Raises CalibrationError for a score that is none.
    """
    checked = []
    for score, wrong in points:
        if not 0 <= score <= 1:  # NaN neither
            raise CalibrationError(f"expected a score from 0 to 1, got {score}")
        checked.append((float(score), bool(wrong)))
    checked.sort(reverse=True)
    return Calibration(
        format=1,
        verifier=verifier,
        confidence=confidence,
        provenance=provenance,
        features=binned(features),
        steps=tuple(_steps(checked)),
    )


def written_calibration(calibration: Calibration) -> bytes:
    """Return the file's content, each step on a line of its own."""
    head, key, steps = calibration.model_dump_json(exclude_none=True).rpartition(',"steps":')
    return (head + key + steps.replace("[", "\n[") + "\n").encode()


def parse_calibration(data: bytes, source: str, *, verifier: str | None = None) -> Calibration:
    """Read a file's content; ``source`` is its name for messages. Raises CalibrationError.

    Only one of ``verifier`` is taken, where that is given.
    """
    try:
        found = Calibration.model_validate_json(data)
        json.loads(data, object_pairs_hook=_refuse_repeated)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        parts = [f"[{part}]" if isinstance(part, int) else f"{part}" for part in fault["loc"]]
        where = "".join(parts) + ": " if parts else ""
        what = "expected JSON" if fault["type"] == "json_invalid" else fault["msg"]
        raise CalibrationError(f"{source}: {where}{what.removeprefix('Value error, ')}") from None
    except ValueError as error:
        raise CalibrationError(f"{source}: {error}") from None
    if verifier is not None and found.verifier != verifier:
        raise CalibrationError(
            f"{source}: verifier: it is of verifier {found.verifier[:16]}, "
            f"and verifier {verifier[:16]} is in use"
        )
    return found


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"{repeated}: expected it once")


def _steps(points: list[tuple[float, bool]]) -> Iterator[Step]:
    """Yield a step for each number of hits laid down, grown by those of an equal score."""
    counts = _counts()
    count = next(counts)
    wrong = 0
    for hits, (score, is_wrong) in enumerate(points, 1):
        wrong += is_wrong
        if hits < len(points) and (hits < count or points[hits][0] == score):
            continue
        yield Step(score, hits, wrong)
        while count <= hits:
            count = next(counts)


def _counts() -> Iterator[int]:
    count = 1
    while True:
        yield count
        count = max(count + 1, math.floor(count * _GROWTH))


def _first_tried(hits: int, least: int, roomy: int) -> int:
    """Return the number of hits at which the search for a threshold begins.

    ``least`` are needed where none is wrong, and ``roomy`` where ``_ROOM`` are.
    """
    return max(least, min(roomy, hits // _OPENING))


def least_hits(max_wrong: float, confidence: float = CONFIDENCE, *, wrong: int = 0) -> int:
    """Return how many hits are needed for a budget when so many of them are wrong."""
    low, high = wrong, wrong + 1
    while not _within(wrong, high, max_wrong, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _within(wrong, middle, max_wrong, confidence):
            high = middle
        else:
            low = middle
    return high


def _within(wrong: int, hits: int, share: float, confidence: float) -> bool:
    """Tell whether the bound on the wrong share is at most ``share``.

    It is where so few wrong ones were no likelier than the doubt that is left, were it larger.
    """
    if wrong >= hits or share <= 0:
        return False
    # A hair of leeway: the bound itself, given as a budget, is within it.
    return share >= 1 or at_most(wrong, hits, share) <= (1 - confidence) * (1 + 1e-9)
