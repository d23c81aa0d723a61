"""Whether traffic resembles a calibration: features, their bins, and the index of two counts."""

import math
import random

import pytest

from embeddings.verify.resemblance import (
    LEAST,
    LIMIT,
    MOST,
    Features,
    Tally,
    binned,
    features_of,
    stability_index,
)


def hit(cosine=0.9, score=0.5, characters=30, overlap=0.25):
    return Features(cosine, score, characters, overlap)


def test_the_features_of_a_pair():
    found = features_of("How do I reset it?", "how to RESET it", 0.12345678, 2 / 3)
    assert found == (0.123457, 0.666667, 18, 0.5)
    assert features_of("one", "two", 0.1, 0.2).overlap == 0
    assert features_of("?", "!", 0.1, 0.2).overlap == 0
    assert features_of("a b", "b a", 0.1, 0.2).overlap == 1


def test_bins_are_tenths_of_the_hits():
    bins = binned(hit(characters=number) for number in range(1, 301))
    assert bins["characters"].deciles == tuple(range(30, 271, 30))
    assert bins["characters"].hits == (30,) * 10


def test_equal_values_share_a_bin():
    bins = binned(hit(overlap=[0.0, 0.5, 1.0][number % 3]) for number in range(300))
    assert (bins["overlap"].deciles, bins["overlap"].hits) == ((0.0, 0.5, 1.0), (100, 100, 100, 0))


def test_of_few_hits_no_bins_are_made():
    assert binned(hit() for _ in range(LEAST - 1)) is None
    assert binned(hit() for _ in range(LEAST)) is not None


def test_the_index_of_two_counts():
    assert stability_index((30, 70), (30, 70)) == 0
    then, now = (30.5 / 101, 70.5 / 101), (70.5 / 101, 30.5 / 101)
    pairs = zip(then, now, strict=True)
    expected = sum((after - before) * math.log(after / before) for before, after in pairs)
    assert stability_index((30, 70), (70, 30)) == pytest.approx(expected)
    assert stability_index((30, 70), (70, 30)) == stability_index((70, 30), (30, 70))
    assert math.isfinite(stability_index((100, 0), (0, 100)))


def draws(count, middle, seed):
    draw = random.Random(seed)
    return [
        hit(
            draw.gauss(middle, 0.05), draw.random(), draw.randrange(10, 90), draw.choice((0.2, 0.5))
        )
        for _ in range(count)
    ]


def test_nothing_is_said_before_enough_was_seen():
    tally = Tally(binned(draws(1000, 0.85, 1)))
    hits = draws(LEAST, 0.85, 2)
    for each in hits[:-1]:
        tally.add(each)
    assert tally.distances() == {}
    tally.add(hits[-1])
    assert list(tally.distances()) == ["cosine", "score", "characters", "overlap"]


def test_traffic_of_the_same_kind_is_near_and_another_is_far_in_what_differs():
    bins = binned(draws(1000, 0.85, 1))
    same, other = Tally(bins), Tally(bins)
    for one, two in zip(draws(500, 0.85, 2), draws(500, 0.80, 3), strict=True):
        same.add(one)
        other.add(two)
    assert max(same.distances().values()) < 0.1
    distances = other.distances()
    assert distances.pop("cosine") > LIMIT
    assert max(distances.values()) < 0.1


def test_what_is_old_fades():
    tally = Tally(binned(draws(1000, 0.85, 1)))
    for each in draws(MOST - 1, 0.80, 2):
        tally.add(each)
    assert tally.seen == MOST - 1
    assert tally.distances()["cosine"] > LIMIT
    for each in draws(3 * MOST, 0.85, 3):
        tally.add(each)
    assert tally.seen < MOST
    assert tally.distances()["cosine"] < 0.1


def test_only_the_features_of_the_calibration_are_compared():
    bins = binned(draws(300, 0.85, 1))
    tally = Tally({"score": bins["score"]})
    for each in draws(LEAST, 0.80, 2):
        tally.add(each)
    assert list(tally.distances()) == ["score"]
