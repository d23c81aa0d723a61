import random

import pytest

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.budget import (
    AdaptiveBudget,
    FixedBudget,
    StepTimeModel,
    TokenBudget,
    budget_policy,
)
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence

MOST = TokenBudget(max_tokens=8192, max_num_seqs=256)


def seconds_of(decodes, prefill):
    return 0.004 + 0.00005 * decodes + 0.00002 * prefill


def settled(policy, decodes=16, steps=40, seconds=seconds_of):
    """Take ``steps`` steps as large as ``policy`` allows, and return the last budget."""
    for _ in range(steps):
        budget = policy.allow(decodes)
        prefill = budget.max_tokens - decodes
        policy.observe(decodes, prefill, seconds(decodes, prefill))
    return policy.allow(decodes)


def test_the_model_finds_the_three_costs_through_noise_and_outliers():
    rng, model = random.Random(1), StepTimeModel()
    for _ in range(2000):
        decodes, prefill = rng.randrange(64), rng.choice([0, 0, rng.randrange(1, 2000)])
        noise = rng.uniform(0.9, 1.1) * (20 if rng.random() < 0.05 else 1)
        model.observe(decodes, prefill, seconds_of(decodes, prefill) * noise)
    for decodes, prefill in [(1, 0), (60, 0), (0, 1000), (30, 1500)]:
        assert model.predict(decodes, prefill) == pytest.approx(
            seconds_of(decodes, prefill), rel=0.15
        )


def test_a_thousand_decode_steps_do_not_make_it_forget_what_prefill_costs():
    model = StepTimeModel()
    for prefill in (10, 100, 1000):
        model.observe(0, prefill, seconds_of(0, prefill))
    for _ in range(1000):
        model.observe(8, 0, seconds_of(8, 0))
    assert model.per_prefill == pytest.approx(0.00002, rel=0.05)


def test_it_follows_a_machine_that_became_slower():
    model = StepTimeModel()
    for factor in (1.0, 3.0):
        for _ in range(30):
            for decodes, prefill in [(8, 0), (8, 100), (1, 0), (0, 900)]:
                model.observe(decodes, prefill, factor * seconds_of(decodes, prefill))
    assert model.predict(8, 100) == pytest.approx(3 * seconds_of(8, 100), rel=0.05)


def test_one_kind_of_step_is_foreseen_though_its_costs_cannot_be_told_apart():
    model = StepTimeModel()
    for _ in range(50):
        model.observe(16, 0, 0.02)
    assert model.predict(16, 0) == pytest.approx(0.02, rel=0.01)
    assert model.per_prefill == 0


@pytest.mark.parametrize("step", [(0, 0, 1.0), (1, 0, 0.0), (1, 0, -1.0), (-1, 5, 1.0)])
def test_observations_that_make_no_sense_are_ignored(step):
    model = StepTimeModel()
    model.observe(*step)
    assert model.predict(1, 1) == 0


def test_costs_are_never_negative_whatever_is_observed():
    rng, model = random.Random(2), StepTimeModel()
    for _ in range(500):
        model.observe(rng.randrange(40), rng.randrange(3000), rng.uniform(1e-6, 1.0))
        assert min(model.base, model.per_decode, model.per_prefill) >= 0


@pytest.mark.parametrize("target", [0.01, 0.02, 0.05])
def test_steps_with_decodes_keep_to_the_target_itl_and_use_it(target):
    budget = settled(AdaptiveBudget(MOST, target_itl=target))
    taken = seconds_of(16, budget.max_tokens - 16)
    assert 0.95 * target <= taken <= 1.02 * target


def test_a_target_that_cannot_be_kept_leaves_prefill_its_least_and_a_few_their_places():
    budget = settled(AdaptiveBudget(MOST, target_itl=0.001))
    assert budget == TokenBudget(max_tokens=16 + 32, max_num_seqs=4)


def test_without_decodes_no_itl_is_at_stake():
    policy = AdaptiveBudget(MOST, target_itl=0.01)
    settled(policy)
    assert policy.allow(0).max_tokens == MOST.max_tokens


def test_half_the_target_ttft_is_the_longest_step_of_any_kind():
    policy = AdaptiveBudget(MOST, target_ttft=0.1)
    for decodes in (0, 16):
        budget = settled(policy, decodes=decodes)
        taken = seconds_of(decodes, budget.max_tokens - decodes)
        assert 0.045 <= taken <= 0.052


def test_no_more_sequences_run_than_the_target_itl_has_room_for():
    policy = AdaptiveBudget(MOST, target_itl=0.01)
    for decodes in (1, 2, 4, 8, 16, 32, 64, 128):
        assert policy.allow(decodes).max_num_seqs <= max(4, decodes)
        policy.observe(decodes, 0, seconds_of(decodes, 0))
        policy.observe(decodes, 100, seconds_of(decodes, 100))
    # 4 ms and 32 tokens of prefill leave 5.36 ms for decodes of 50 us.
    assert policy.allow(100).max_num_seqs == pytest.approx(107, abs=3)


def test_nothing_is_tried_that_is_more_than_twice_what_was_seen():
    policy = AdaptiveBudget(MOST, target_itl=10.0)
    policy.observe(4, 0, 0.001)
    assert policy.allow(4) == TokenBudget(4 + 256, 8)
    policy.observe(4, 256, 0.002)
    assert policy.allow(4).max_tokens == 4 + 512


def test_the_limits_hold_whatever_the_targets_allow():
    policy = AdaptiveBudget(TokenBudget(64, 8), target_ttft=100.0, target_itl=100.0)
    for decodes in (8, 1, 0):
        assert settled(policy, decodes=decodes) == TokenBudget(64, 8)


def test_without_targets_the_budget_is_fixed():
    policy = budget_policy(MOST, target_ttft=None, target_itl=None)
    assert isinstance(policy, FixedBudget)
    assert settled(policy, seconds=lambda *_: 99.0) == MOST
    assert isinstance(budget_policy(MOST, target_ttft=1.0, target_itl=None), AdaptiveBudget)


@pytest.mark.parametrize("targets", [{"target_ttft": 0.0}, {"target_itl": -1.0}])
def test_targets_that_are_no_times_are_refused(targets):
    with pytest.raises(ValueError, match="latency target must be positive"):
        AdaptiveBudget(MOST, **targets)


@pytest.mark.parametrize("target", [0.006, 0.02])
def test_a_long_prompt_beside_decodes_is_cut_so_that_their_itl_holds(target):
    """The scheduler feeds the times of its own steps back."""
    policy = AdaptiveBudget(MOST, target_itl=target)
    engine = Scheduler(
        BlockPool(4000), max_num_seqs=256, max_tokens_per_step=8192, budget_policy=policy
    )
    for number in range(4):
        engine.add(Sequence(number, [number] * 20, 4000), 0.0)
    long_one = Sequence(9, [9] * 30_000, 30_001)
    now, gaps = 0.0, []
    for number in range(400):
        if number == 100:
            engine.add(long_one, now)
        step = engine.schedule(now)
        decodes = sum(each.num_tokens == 1 for each in step)
        took = seconds_of(decodes, sum(each.num_tokens for each in step) - decodes)
        if number > 110:
            gaps.append(took)
        now += took
        engine.complete(step, [(1,) for each in step if each.samples], now)
    assert long_one.num_computed_tokens > 2000
    assert max(gaps) <= 1.1 * target
