"""Generated pairs: repeatable, balanced, never contradicting, no label told by length."""

from collections import Counter, defaultdict
from random import Random

import pytest

from tools.verifier.templates import families, generate

COUNT = 5000


@pytest.fixture(scope="module")
def pairs():
    return list(generate(Random(7), COUNT))


def test_the_same_seed_gives_the_same_pairs():
    assert list(generate(Random(3), 300)) == list(generate(Random(3), 300))


def test_another_seed_gives_other_pairs():
    assert list(generate(Random(3), 300)) != list(generate(Random(4), 300))


def test_pairs_are_made_only_as_they_are_asked_for():
    assert next(generate(Random(3), 10**12)).family in families()


def test_as_many_pairs_as_asked_for_and_families_evenly(pairs):
    assert len(pairs) == COUNT
    of_family = Counter(pair.family for pair in pairs)
    assert set(of_family) == set(families())
    assert max(of_family.values()) - min(of_family.values()) <= 0.05 * COUNT / len(families())


def test_labels_are_balanced_over_all_and_in_each_family(pairs):
    same = Counter(pair.family for pair in pairs if pair.same)
    of_family = Counter(pair.family for pair in pairs)
    assert 0.42 <= sum(same.values()) / COUNT <= 0.48
    assert {f for f in of_family if not 0.3 <= same[f] / of_family[f] <= 0.7} == set()


def test_no_pair_stands_twice_or_with_both_labels(pairs):
    seen = Counter(frozenset((pair.a.casefold(), pair.b.casefold())) for pair in pairs)
    assert [texts for texts, times in seen.items() if times > 1] == []


def test_texts_are_filled_and_whole(pairs):
    texts = [text for pair in pairs for text in (pair.a, pair.b)]
    assert [text for text in texts if set(text) & set("{}[]|") or "  " in text] == []
    assert min(len(text) for text in texts) >= 3


def _best_cut(values, labels):
    """The accuracy of the best rule "same if the value is on this side of a cut"."""
    ordered = sorted(zip(values, labels, strict=True), key=lambda pair: pair[0])
    total = sum(labels)
    best = max(total, len(labels) - total)
    below = 0
    for at, (value, label) in enumerate(ordered, 1):
        below += label
        if at < len(ordered) and ordered[at][0] == value:
            continue
        right = below + (len(labels) - at) - (total - below)
        best = max(best, right, len(labels) - right)
    return best / len(labels)


@pytest.mark.parametrize("measure", ["sum", "difference"])
def test_length_does_not_tell_the_label(pairs, measure):
    told = {}
    of_family = defaultdict(list)
    for pair in pairs:
        of_family[pair.family].append(pair)
    for family, some in of_family.items():
        one, two = ([len(getattr(p, side).split()) for p in some] for side in "ab")
        values = [x + y if measure == "sum" else abs(x - y) for x, y in zip(one, two, strict=True)]
        told[family] = _best_cut(values, [pair.same for pair in some])
    assert {family: round(share, 2) for family, share in told.items() if share > 0.7} == {}
