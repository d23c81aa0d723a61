"""The sampler against a plain reference, and what no parameter may change."""

import math
from dataclasses import replace

import numpy as np
import torch
from examples import some
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_rows import draw, results, row, sample

from backend.scheduler.request import SamplingParams, choice_seed

VOCAB = 40
_WORD = 0xFFFFFFFF

tokens = st.integers(0, VOCAB - 1)
# A coarse grid, so that ties are common.
logits_rows = st.lists(st.integers(-40, 40), min_size=VOCAB, max_size=VOCAB).map(
    lambda grid: [value / 8 for value in grid]
)
histories = st.lists(tokens, max_size=12)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.0, 0.2, 0.7, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 17, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
    seed=st.integers(-(2**63), 2**63 - 1),
    min_tokens=st.integers(0, 8),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
    logprobs=st.sampled_from([None, 0, 4]),
)


def mix(value):
    value &= 2**64 - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def gumbel(seed, number, token):
    """One token's noise, in plain integers and double precision."""
    key = mix(seed + (number + 1) * 0x9E3779B97F4A7C15)
    word = (token + key) & _WORD
    word ^= word >> 16
    word = word * 0x7FEB352D & _WORD
    word ^= key >> 32
    word ^= word >> 15
    word = word * 0x846CA68B & _WORD
    word ^= word >> 16
    magnitude = abs((word | 1) - (2**32 if word >> 31 else 0))
    return -math.log(-math.log1p(-magnitude / 2**31 * (1 - 2**-23)))


def adjusted(logits, prompt, generated, params, end):
    """What is chosen from: vLLM's order and meanings."""
    values = np.array(logits, np.float64)
    if len(generated) < params.min_tokens:
        values[list(end)] = -np.inf
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in {*prompt, *generated}:
        factor = params.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token in set(generated):
        values[token] -= params.frequency_penalty * generated.count(token)
        values[token] -= params.presence_penalty
    return values


def allowed(values, params):
    """Which tokens the filters leave; values are divided by the temperature already."""
    values = np.where(values < values.max() + math.log(params.min_p or 5e-324), -np.inf, values)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    order = order[: params.top_k or len(order)]
    weights = np.exp(values[order] - values[order[0]])
    before = (weights.cumsum() - weights) / weights.sum()
    # What hangs on the last bit is not decided by a test.
    assume(params.top_p == 1.0 or not np.any(np.isclose(before[1:], params.top_p, atol=1e-6)))
    kept = [token for at, token in enumerate(order) if at == 0 or before[at] < params.top_p]
    return [token for token in kept if values[token] > -np.inf]


@settings(deadline=None, max_examples=some(60))
@given(st.data())
def test_tokens_are_those_of_a_plain_reference(data):
    """Batches of mixed rows; each token is the reference's, or as good in single precision."""
    batch = data.draw(
        st.lists(st.tuples(logits_rows, histories, histories, params), min_size=1, max_size=4)
    )
    end = (3, 5)
    chosen = sample(
        [logits for logits, *_ in batch],
        [
            row(each, prompt=[1, *prompt], generated=generated, end=end)
            for _, prompt, generated, each in batch
        ],
    )
    for token, (logits, prompt, generated, each) in zip(chosen, batch, strict=True):
        values = adjusted(logits, [1, *prompt], generated, each, end)
        if each.temperature == 0.0:
            assert values[token] >= values.max() - 1e-4
            continue
        values /= each.temperature
        values = values.astype(np.float32).astype(np.float64)
        candidates = allowed(values, each)
        seed, number = choice_seed(each.seed, 0), len(generated)
        scores = {other: values[other] + gumbel(seed, number, other) for other in candidates}
        assert token in scores
        assert scores[token] >= max(scores.values()) - 1e-3


@settings(deadline=None, max_examples=some(60))
@given(st.lists(st.tuples(logits_rows, histories, params), min_size=2, max_size=5), st.data())
def test_batch_mates_change_nothing(batch, data):
    rows = [row(each, generated=generated, end=(3,)) for _, generated, each in batch]
    logits = torch.tensor([logits for logits, *_ in batch])
    together = sample(logits, rows)
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = sample(logits[list(order)], [rows[at] for at in order])
    assert [together[at] for at in order] == shuffled
    for at, each in enumerate(rows):
        assert sample(logits[at : at + 1], [each]) == [together[at]]


@settings(deadline=None, max_examples=some(60))
@given(logits_rows, histories, histories, params)
def test_penalties_change_only_the_tokens_that_were_said(logits, prompt, generated, each):
    """Every other token keeps its place among those that were not said either."""
    each = replace(each, temperature=0.0, logit_bias=(), min_tokens=0)
    said = {*generated, *(prompt if each.repetition_penalty != 1.0 else ())}
    assume(len(said) < VOCAB)
    (token,) = sample([logits], [row(each, prompt=prompt, generated=generated)])
    if token not in said:
        others = [value for at, value in enumerate(logits) if at not in said]
        assert logits[token] == max(others)
    plain = replace(each, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    (free,) = sample([logits], [row(plain, prompt=prompt, generated=generated)])
    assert logits[free] == max(logits)


@settings(deadline=None, max_examples=some(60))
@given(logits_rows, params)
def test_what_is_reported_is_the_models_own_distribution(logits, each):
    each = replace(each, logprobs=5)
    (token,), _, logprobs = results([logits], [row(each)])
    reported = logprobs[0]
    exact = np.array(logits) - np.logaddexp.reduce(logits)
    assert math.isclose(reported.logprob, exact[token], abs_tol=1e-5)
    assert len({token for token, _ in reported.top}) == 5
    values = [value for _, value in reported.top]
    assert np.allclose(values, np.sort(exact)[::-1][:5], atol=1e-5)


# The value that chi-square with as many degrees of freedom exceeds once in a thousand times. The
# seeds are fixed, so it either holds for ever or never did.
_CHI_SQUARE = {7: 24.3, 15: 37.7}


def chi_square(drawn, probabilities):
    counts = np.bincount(drawn, minlength=len(probabilities))
    expected = len(drawn) * probabilities
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()), kept.sum() - 1


def test_draws_over_time_and_over_seeds_follow_the_distribution():
    logits = torch.linspace(0, 3, 16)
    probabilities = torch.softmax(logits.double(), 0).numpy()
    for filters in ({}, {"top_k": 16}, {"top_p": 0.9999999}):
        drawn = draw(logits, 8_000, seed=1, **filters)
        statistic, freedom = chi_square(drawn, probabilities)
        assert statistic < _CHI_SQUARE[freedom]
    rows = [row(seed=seed, choice=seed % 3) for seed in range(8_000)]
    statistic, freedom = chi_square(sample(logits.expand(len(rows), -1), rows), probabilities)
    assert statistic < _CHI_SQUARE[freedom]


def test_filtered_draws_follow_what_is_left():
    logits = torch.linspace(0, 3, 16)
    probabilities = torch.softmax(logits.double() / 0.8, 0).numpy()
    probabilities[:8] = 0
    probabilities /= probabilities.sum()
    drawn = draw(logits, 8_000, seed=2, temperature=0.8, top_k=8)
    statistic, freedom = chi_square(drawn, probabilities)
    assert statistic < _CHI_SQUARE[freedom]


def test_successive_draws_are_independent():
    """Pairs of neighbours in time, and of choices that share a seed."""
    logits = torch.zeros(4)
    first, second = (np.array(draw(logits, 8_000, seed=7, choice=at)) for at in (0, 1))
    uniform = np.full(16, 1 / 16)
    for pairs in (4 * first[:-1:2] + first[1::2], 4 * first + second):
        statistic, freedom = chi_square(pairs, uniform)
        assert statistic < _CHI_SQUARE[freedom]


def test_unlikely_tokens_of_a_large_vocabulary_come_as_often_as_they_should():
    """A thousandth of the probability, spread over thousands of tokens."""
    logits = torch.full((8000,), math.log(1e-2 / 7999))
    logits[17] = math.log(0.99)
    rare = sum(token != 17 for token in draw(logits, 4000, seed=3))
    assert abs(rare - 40) < 4 * math.sqrt(40)
