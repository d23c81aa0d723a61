import math
from collections import Counter

import pytest
import torch

from backend.core.types import SamplingParams
from backend.runtime.sampler import SequenceSampler, sample

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -torch.inf])


def draw(count, index=0, **params):
    sampler = SequenceSampler(SamplingParams(**params), index)
    return [sample(LOGITS.unsqueeze(0), [sampler])[0] for _ in range(count)]


def shares(tokens):
    return {token: number / len(tokens) for token, number in Counter(tokens).items()}


def test_temperature_zero_takes_the_largest_and_draws_nothing():
    sampler = SequenceSampler(SamplingParams(temperature=0.0, seed=1), 0)
    assert sample(LOGITS.unsqueeze(0), [sampler]) == [1]
    assert sampler.draw() == SequenceSampler(SamplingParams(seed=1), 0).draw()


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-5, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(draw(20, temperature=temperature, seed=1)) == {1}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_shares_follow_the_softmax_at_a_temperature(temperature):
    expected = torch.softmax(LOGITS / temperature, 0)
    measured = shares(draw(4000, temperature=temperature, seed=5))
    for token, share in enumerate(expected.tolist()):
        assert math.isclose(measured.get(token, 0.0), share, abs_tol=0.03)


def test_top_k_keeps_the_k_largest():
    assert set(draw(300, temperature=5.0, top_k=2, seed=1)) == {1, 3}
    assert set(draw(20, temperature=5.0, top_k=1, seed=1)) == {1}


def test_top_k_breaks_ties_by_count_not_by_value():
    logits = torch.zeros(1, 6)
    sampler = SequenceSampler(SamplingParams(top_k=2, seed=1), 0)
    assert {sample(logits, [sampler])[0] for _ in range(100)} == {0, 1}


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    probabilities = torch.softmax(LOGITS, 0)  # token 1: 0.64, 3: 0.24, 2: 0.09, 0: 0.03
    assert probabilities[1] > 0.6
    assert set(draw(100, top_p=0.6, seed=1)) == {1}
    assert set(draw(300, top_p=0.8, seed=1)) == {1, 3}
    assert set(draw(600, top_p=0.95, seed=1)) == {1, 2, 3}
    assert set(draw(20, top_p=0.0, seed=1)) == {1}


def test_top_p_counts_after_top_k():
    # Among the two largest alone, token 1 already holds 0.73.
    assert set(draw(100, top_k=2, top_p=0.7, seed=1)) == {1}
    assert set(draw(300, top_k=2, top_p=0.75, seed=1)) == {1, 3}


def test_rows_with_different_parameters_share_a_batch():
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.5, top_k=3, top_p=0.9, seed=4),
        SamplingParams(temperature=0.7, seed=9),
    ]
    torch.manual_seed(0)
    logits = torch.randn(len(params), 50)
    together = sample(logits, [SequenceSampler(each, 0) for each in params])
    alone = [
        sample(row.unsqueeze(0), [SequenceSampler(each, 0)])[0]
        for row, each in zip(logits, params, strict=True)
    ]
    assert together == alone


def test_a_seed_fixes_the_tokens_and_choices_differ():
    assert draw(50, seed=8) == draw(50, seed=8)
    assert draw(50, seed=8) != draw(50, seed=9)
    assert draw(50, index=1, seed=8) != draw(50, index=0, seed=8)
    assert draw(50) != draw(50)


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.full((1, 2000), -torch.inf)
    logits[0, 1234] = 0.0
    sampler = SequenceSampler(SamplingParams(seed=0), 0)
    assert {sample(logits, [sampler])[0] for _ in range(50)} == {1234}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_marked_and_the_others_are_not(bad, temperature):
    logits = torch.randn(3, 10)
    logits[1, 4] = bad
    samplers = [SequenceSampler(SamplingParams(temperature=temperature), 0) for _ in range(3)]
    tokens = sample(logits, samplers)
    assert tokens[1] is None
    assert tokens[0] is not None
    assert tokens[2] is not None


def test_a_row_without_any_possible_token_is_marked():
    sampler = SequenceSampler(SamplingParams(), 0)
    assert sample(torch.full((1, 4), -torch.inf), [sampler]) == [None]
