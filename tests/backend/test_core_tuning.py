"""Which batch cap is recommended for what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.tuning import Targets, Trial, percentile, recommend


def trial(cap, throughput, itl=0.01, ttft=0.1):
    return Trial(cap, None, 1.0, throughput, (ttft,), (itl,))


GROWING = [
    trial(1, 100, itl=0.010, ttft=0.1),
    trial(4, 300, itl=0.014, ttft=0.2),
    trial(16, 600, itl=0.028, ttft=0.6),
    trial(32, 640, itl=0.060, ttft=1.5),
]


@pytest.mark.parametrize(
    ("targets", "cap"),
    [
        (Targets(itl=0.1), 32),
        (Targets(itl=0.03), 16),
        (Targets(itl=0.028), 16),
        (Targets(ttft=0.25), 4),
        (Targets(ttft=1.0, itl=0.012), 1),
        (Targets(ttft=0.01), None),
        (Targets(), 16),  # 640 is not worth twice the batch
    ],
)
def test_the_most_throughput_within_the_targets_or_the_knee(targets, cap):
    chosen = recommend(GROWING, targets)
    assert (None if chosen is None else chosen.max_num_seqs) == cap


def test_what_was_not_measured_keeps_no_target():
    unmeasured = Trial(8, None, 1.0, 10, (), (0.001,))
    assert recommend([unmeasured], Targets(ttft=5.0)) is None
    assert recommend([unmeasured], Targets(itl=5.0)) is unmeasured


def test_an_engine_that_generated_nothing_is_not_recommended():
    assert recommend([Trial(1, None, 1.0, 0)], Targets()) is None
    assert recommend([], Targets()) is None


def test_of_equal_throughput_the_smaller_cap():
    assert recommend([trial(8, 10), trial(4, 10)], Targets(itl=1.0)).max_num_seqs == 4


def test_of_one_cap_the_better_budget():
    slow, fast = (Trial(4, budget, 1.0, n) for budget, n in ((256, 95), (512, 100)))
    assert recommend([slow, fast], Targets()) is fast


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_a_percentile_is_a_value_with_its_share_at_or_below(values):
    found = percentile(values, 0.99)
    assert found in values
    assert sum(value <= found for value in values) >= 0.99 * len(values)
    assert sum(value < found for value in values) < 0.99 * len(values)


def test_no_percentile_of_nothing():
    assert percentile((), 0.99) is None
