"""How tokens are chosen from logits: limits, filters, seeds, penalties, what is reported."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from sampling_rows import draw, results, row, sample

from backend.executor.sampler.batch import SlotSampling
from backend.executor.sampler.sampler import GrammarMask, Sampler
from backend.scheduler.batch import NewSequence
from backend.scheduler.request import SamplingParams

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -torch.inf])


def shares(tokens):
    return {token: number / len(tokens) for token, number in Counter(tokens).items()}


def test_temperature_zero_takes_the_largest():
    assert sample(LOGITS.unsqueeze(0), [row(temperature=0.0, seed=1)]) == [1]


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-5, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(draw(LOGITS, 20, temperature=temperature, seed=1)) == {1}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 4}, {"top_p": 0.999999}])
def test_shares_follow_the_softmax_at_a_temperature(temperature, filters):
    expected = torch.softmax(LOGITS / temperature, 0)
    measured = shares(draw(LOGITS, 4000, temperature=temperature, seed=5, **filters))
    for token, share in enumerate(expected.tolist()):
        assert math.isclose(measured.get(token, 0.0), share, abs_tol=0.03)


def test_top_k_keeps_the_k_largest():
    assert set(draw(LOGITS, 300, temperature=5.0, top_k=2, seed=1)) == {1, 3}
    assert set(draw(LOGITS, 20, temperature=5.0, top_k=1, seed=1)) == {1}


def test_a_top_k_beyond_the_vocabulary_changes_nothing():
    assert draw(LOGITS, 50, top_k=1000, seed=1) == draw(LOGITS, 50, seed=1)


def test_top_k_breaks_ties_by_count_not_by_value():
    assert set(draw(torch.zeros(6), 100, top_k=2, seed=1)) == {0, 1}
    assert set(draw(torch.tensor([-0.0, 0.0, 0.0]), 100, top_k=1, seed=1)) == {0}


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    probabilities = torch.softmax(LOGITS, 0)  # token 1: 0.64, 3: 0.24, 2: 0.09, 0: 0.03
    assert probabilities[1] > 0.6
    assert set(draw(LOGITS, 100, top_p=0.6, seed=1)) == {1}
    assert set(draw(LOGITS, 300, top_p=0.8, seed=1)) == {1, 3}
    assert set(draw(LOGITS, 600, top_p=0.95, seed=1)) == {1, 2, 3}
    assert set(draw(LOGITS, 20, top_p=0.0, seed=1)) == {1}


def test_top_p_of_a_flat_distribution_needs_more_than_the_first_look():
    tokens = draw(torch.zeros(1600), 500, top_p=0.4997, seed=1)
    assert max(tokens) < 800
    assert len(set(tokens)) > 300


def test_top_p_counts_after_top_k():
    # Among the two largest alone, token 1 already holds 0.73.
    assert set(draw(LOGITS, 100, top_k=2, top_p=0.7, seed=1)) == {1}
    assert set(draw(LOGITS, 300, top_k=2, top_p=0.75, seed=1)) == {1, 3}


def test_min_p_is_a_share_of_the_likeliest():
    # Of token 1's probability, token 3 has 0.37, token 2 has 0.14, token 0 has 0.05.
    assert set(draw(LOGITS, 200, min_p=0.4, seed=1)) == {1}
    assert set(draw(LOGITS, 300, min_p=0.3, seed=1)) == {1, 3}
    assert set(draw(LOGITS, 300, min_p=0.3, top_p=0.7, seed=1)) == {1}
    assert set(draw(LOGITS, 20, min_p=1.0, seed=1)) == {1}


def test_rows_with_different_parameters_share_a_batch():
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(temperature=0.0, logit_bias=((7, 100.0),)),
        SamplingParams(temperature=1.5, top_k=3, top_p=0.9, seed=4),
        SamplingParams(temperature=0.7, seed=9, min_p=0.1),
        SamplingParams(temperature=0.7, seed=9, top_p=0.6, frequency_penalty=0.4),
        SamplingParams(temperature=0.9, seed=2, repetition_penalty=1.3, logprobs=2),
    ]
    torch.manual_seed(0)
    logits = torch.randn(len(params), 50)
    together = sample(logits, [row(each) for each in params])
    alone = [
        sample(one.unsqueeze(0), [row(each)])[0] for one, each in zip(logits, params, strict=True)
    ]
    assert together == alone


def test_a_seed_fixes_the_tokens_and_choices_differ():
    assert draw(LOGITS, 50, seed=8) == draw(LOGITS, 50, seed=8)
    assert draw(LOGITS, 50, seed=8) != draw(LOGITS, 50, seed=9)
    assert draw(LOGITS, 50, choice=1, seed=8) != draw(LOGITS, 50, choice=0, seed=8)


def test_a_token_depends_on_its_number_and_not_on_what_was_drawn_before():
    whole = draw(LOGITS, 50, seed=8)
    assert sample(LOGITS.unsqueeze(0), [row(number=37, seed=8)]) == [whole[37]]


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.full((2000,), -torch.inf)
    logits[1234] = 0.0
    for filters in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert set(draw(logits, 50, seed=0, **filters)) == {1234}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"logprobs": 3},
        {"frequency_penalty": 1.0, "logit_bias": ((4, 5.0),)},
    ],
    ids=str,
)
def test_a_row_that_is_not_finite_is_marked_and_the_others_are_not(bad, fields):
    logits = torch.randn(3, 10)
    logits[1, 4] = bad
    tokens = sample(logits, [row(generated=[4], **fields) for _ in range(3)])
    assert tokens[1] is None
    assert tokens[0] is not None
    assert tokens[2] is not None


def test_a_row_without_any_possible_token_is_marked():
    assert sample(torch.full((1, 4), -torch.inf), [row()]) == [None]


def test_a_bias_bans_and_forces_tokens():
    assert set(draw(LOGITS, 100, seed=1, logit_bias=((1, -100.0), (3, -100.0)))) == {0, 2}
    assert set(draw(LOGITS, 100, seed=1, logit_bias=((2, 100.0),))) == {2}
    assert sample(LOGITS.unsqueeze(0), [row(temperature=0.0, logit_bias=((0, 3.5),))]) == [0]


def test_end_tokens_wait_for_the_least_number_of_tokens():
    fields = {"temperature": 0.0, "min_tokens": 2, "end": [1, 3, 999]}
    assert [sample(LOGITS.unsqueeze(0), [row(number=at, **fields)]) for at in range(4)] == [
        [2],
        [2],
        [1],
        [1],
    ]


def test_penalties_look_at_what_was_said():
    logits = torch.tensor([[3.0, 2.9, 2.8, -1.0]])
    greedy = {"temperature": 0.0, "prompt": [1]}
    assert sample(logits, [row(**greedy, generated=[0], presence_penalty=0.15)]) == [1]
    assert sample(logits, [row(**greedy, generated=[0, 0], frequency_penalty=0.04)]) == [0]
    assert sample(logits, [row(**greedy, generated=[0] * 3, frequency_penalty=0.04)]) == [1]
    # The prompt counts for repetition alone.
    assert sample(logits, [row(**greedy, generated=[0], repetition_penalty=1.1)]) == [2]
    assert sample(-logits, [row(**greedy, generated=[3], repetition_penalty=1.1)]) == [3]


def test_counts_follow_a_sequence_from_step_to_step():
    """What is remembered between steps is what a new look at the history gives."""
    sampler = Sampler(2, 300, torch.device("cpu"))
    fields = {"temperature": 0.0, "frequency_penalty": 90.0, "repetition_penalty": 1.1}
    one, other = row(prompt=range(250, 300), **fields), row(temperature=0.0)
    sampler.start([one.new(1), other.new(0)])
    logits = torch.arange(300.0).expand(2, -1)
    said = []
    for number in range(120):
        fresh = row(prompt=range(250, 300), generated=said, **fields)
        slots = np.array([1, 0] if number % 2 else [0, 1], np.int32)
        positions = np.array([50 + number, 2], np.int32)
        sampled = sampler.sample(logits, slots, positions)
        sampler.count(slots, sampled.tokens)
        tokens, _, _ = sampled.fetch()
        token = tokens[slots.tolist().index(1)]
        assert sample(logits[:1], [fresh]) == [token]
        said.append(token)
    assert len(set(said)) > 64


def test_a_slot_counts_for_its_newest_sequence_alone():
    sampler = Sampler(1, 4, torch.device("cpu"))
    fields = {"temperature": 0.0, "presence_penalty": 1.0}
    logits = torch.tensor([[3.0, 2.9, 1.0, 0.0]])
    chosen = []
    for start in (True, False, True):
        if start:
            sampler.start([row(**fields).new(0)])
        slots, positions = np.zeros(1, np.int32), np.array([2], np.int32)
        sampled = sampler.sample(logits, slots, positions)
        sampler.count(slots, sampled.tokens)
        chosen += sampled.fetch()[0]
    assert chosen == [0, 1, 0]


def test_counts_that_find_no_memory_leave_those_that_are_there(monkeypatch):
    sampler = Sampler(20, 4, torch.device("cpu"))
    fields = {"temperature": 0.0, "presence_penalty": 1.0}
    started = [row(**fields).new(slot) for slot in range(4)]
    sampler.start(started)
    more = [row(**fields).new(4)]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", lambda parts: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(torch.OutOfMemoryError):
            sampler.start(more)
    sampler.start(more)
    logits = torch.tensor([[3.0, 2.9, 1.0, 0.0]]).expand(5, -1)
    slots, positions = np.arange(5, dtype=np.int32), np.full(5, 2, np.int32)
    assert sampler.sample(logits, slots, positions).fetch()[0] == [0] * 5


@pytest.mark.parametrize("vocab", [5, 32, 70])
def test_a_mask_forbids_tokens_in_its_rows_alone(vocab):
    sampler = Sampler(3, vocab, torch.device("cpu"))
    sampler.start([row(temperature=0.0).new(slot) for slot in range(3)])
    logits = torch.arange(float(vocab)).expand(3, -1)
    bits = torch.zeros(2, -(-vocab // 32), dtype=torch.int32)
    bits[0, 0], bits[1] = 0b1010, -1
    slots = np.arange(3, dtype=np.int32)
    positions = np.full(3, 2, np.int32)
    chosen = sampler.sample(logits, slots, positions, GrammarMask((2, 0), bits)).fetch()[0]
    assert chosen == [vocab - 1, vocab - 1, 3]


def test_log_probabilities_are_the_models_own():
    """Raw: neither temperature nor bias, penalty or filter shows in them."""
    fields = {"temperature": 0.3, "top_k": 1, "presence_penalty": 1.0, "seed": 1}
    biased = row(logprobs=2, logit_bias=((2, 100.0),), **fields)
    plain, none = row(logprobs=0, temperature=0.0), row(temperature=0.0)
    tokens, _, logprobs = results(LOGITS.expand(3, -1), [none, biased, plain])
    expected = torch.log_softmax(LOGITS, 0).tolist()
    assert set(logprobs) == {1, 2}
    second, third = logprobs[1], logprobs[2]
    assert second.token == tokens[1] == 2
    assert math.isclose(second.logprob, expected[2], abs_tol=1e-6)
    assert [token for token, _ in second.top] == [1, 3]
    assert all(math.isclose(value, expected[token], abs_tol=1e-6) for token, value in second.top)
    assert third.top == ()
    assert math.isclose(third.logprob, expected[1], abs_tol=1e-6)


def test_more_log_probabilities_than_tokens_are_all_of_them():
    _, _, logprobs = results(LOGITS.unsqueeze(0), [row(temperature=0.0, logprobs=20)])
    assert len(logprobs[0].top) == 5


def test_half_precision_logits_are_drawn_alike():
    logits = torch.randn(4, 300).bfloat16()
    rows = [row(seed=1), row(seed=2, top_k=9), row(seed=3, top_p=0.8), row(temperature=0.0)]
    assert sample(logits, rows) == sample(logits.float(), rows)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 33])
def test_the_kernel_gets_columns_of_one_alignment_for_any_number_of_rows(count):
    """Triton would compile it anew, in the middle of serving, for another one."""
    slots = SlotSampling(count, 50, one_group=True)
    sampling = SamplingParams(temperature=0.5, top_k=7, top_p=0.9)
    slots.start(NewSequence(slot, (1,), 1, sampling, slot, frozenset()) for slot in range(count))
    batch = slots.gather(np.arange(count, dtype=np.int32), torch.zeros(count, 50))
    (group,) = batch.groups
    columns = (group.temperature, group.log_min_p, group.top_k, group.top_p)
    assert [column.shape for column in columns] == [(count, 1)] * 4
    assert [column[0].item() for column in columns] == [0.5, -math.inf, 7.0, np.float32(0.9)]
    first = group.temperature.data_ptr()
    assert [(column.data_ptr() - first) % 16 for column in columns] == [0] * 4
