"""Sampling on the device equals its oracle, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

import kernel_cases as cases
from sampling_rows import row, sample

from backend.kernels import reference
from backend.kernels.sampling import NOT_FINITE

pytest_plugins = ["interpreter"]


SAMPLE = "backend.kernels.sampling:sample_tokens"


def check(interpreter, logits, **how):
    world = cases.World(interpreter.changing, logits.dtype)
    rows = cases.sampling_rows(world, logits, **how)
    tokens = interpreter(SAMPLE, logits, rows)
    assert tokens.tolist() == reference.sample_tokens(logits, rows).tolist()
    return tokens


def random_logits(rows, vocab, dtype=torch.float32):
    generator = torch.Generator().manual_seed(vocab)
    return (4 * torch.randn(rows, vocab, generator=generator)).to(dtype)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 2.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 1.0},
    ],
    ids=str,
)
def test_every_filter(interpreter, how):
    how = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | how
    check(interpreter, random_logits(2, 320, torch.float16), **how)


@settings(max_examples=8)
@given(
    vocab=st.integers(1, 4500),
    scale=st.floats(0, 4),
    steps=st.sampled_from([0, 1, 8]),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 0.9),
)
def test_any_filters_over_any_vocabulary(interpreter, vocab, scale, steps, temperature, **filters):
    """``steps``: how many values a logit may have between two whole numbers, 0 for any."""
    logits = random_logits(1, vocab) * scale
    if steps:
        logits = (logits * steps).round() / steps
    check(interpreter, logits, temperature=temperature, **filters)


SHAPES = {
    "sharp": lambda ranks, noise: torch.where(ranks == 1, 15.0, -2 * ranks.log()),
    "steep": lambda ranks, noise: -2.5 * ranks.log() + noise / 2,
    "usual": lambda ranks, noise: -1.2 * ranks.log() + noise / 2,
    "flat": lambda ranks, noise: noise / 2,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 1.3, "top_k": 0, "top_p": 0.95, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.1, "min_p": 0.0},
    ],
    ids=str,
)
def test_a_row_is_passed_over_six_times_at_most(interpreter, shape, how):
    """Rounded as a model's bfloat16 logits are: dozens of logits are equal."""
    generator = torch.Generator().manual_seed(5)
    ranks = torch.randperm(20_000, generator=generator) + 1.0
    noise = torch.randn(20_000, generator=generator)
    logits = (18 + SHAPES[shape](ranks, noise)).bfloat16().float().unsqueeze(0)
    rows = cases.sampling_rows(cases.World(interpreter.changing), logits, **how)
    tokens, passes = interpreter("interpreted_sampling:count_passes", logits, rows)
    assert tokens.tolist() == reference.sample_tokens(logits, rows).tolist()
    assert passes <= 6


def test_no_filter_takes_two_passes(interpreter):
    logits = random_logits(1, 5000)
    for temperature, expected in [(0.0, 1), (1.0, 2)]:
        how = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.1}
        rows = cases.sampling_rows(cases.World(interpreter.changing), logits, **how)
        _, passes = interpreter("interpreted_sampling:count_passes", logits, rows)
        assert passes == expected


def test_greedy_takes_the_first_of_equals(interpreter):
    logits = torch.zeros(1, 5000)
    logits[0, [17, 4500]] = 3.0
    none = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert check(interpreter, logits, temperature=0.0, **none).tolist() == [17]


@pytest.mark.parametrize("how", [{"top_k": 7}, {"top_p": 0.4}, {"top_k": 9, "top_p": 0.3}], ids=str)
def test_of_tokens_as_likely_the_lower_ids_stay(interpreter, how):
    """As bfloat16 makes them: many logits are equal."""
    logits = random_logits(2, 150).div(4).round()
    check(interpreter, logits, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | how)


def test_forbidden_tokens_are_never_drawn(interpreter):
    logits = torch.full((4, 300), -torch.inf)
    logits[:, [3, 250]] = 0.0
    tokens = check(interpreter, logits, temperature=1.0, top_k=10, top_p=1.0, min_p=0.0)
    assert set(tokens.tolist()) <= {3, 250}


def test_what_is_not_finite_is_told_and_harms_no_neighbour(interpreter):
    logits = random_logits(5, 64)
    logits[0, 7] = torch.nan
    logits[2, 9] = torch.inf
    logits[3] = -torch.inf
    for temperature in (0.0, 1.0):
        how = {"top_k": 0, "top_p": 1.0, "min_p": 0.1}
        tokens = check(interpreter, logits, temperature=temperature, **how).tolist()
        assert [token == NOT_FINITE for token in tokens] == [True, False, True, True, False]


BATCH = [
    {"temperature": 0.0},
    {"seed": 1},
    {"seed": 2, "top_k": 7, "top_p": 0.8, "temperature": 0.6},
    {"seed": 3, "top_p": 0.5, "generated": [4, 4, 9], "frequency_penalty": 0.5},
    {"seed": 4, "min_p": 0.05, "temperature": 1.8},
    {"temperature": 0.0, "logit_bias": ((11, 100.0),)},
    {"seed": 5, "number": 40, "repetition_penalty": 1.4, "generated": [1, 2]},
]


def test_the_sampler_chooses_the_same_whoever_draws(interpreter):
    generator = torch.Generator().manual_seed(6)
    logits = (3 * torch.randn(len(BATCH), 100, generator=generator)).half()
    logits[1, 7] = torch.nan
    expected = sample(logits, [row(**fields) for fields in BATCH])
    tokens = interpreter("interpreted_sampling:sample_by_kernel", logits, BATCH)
    assert tokens == expected
    assert tokens[1] is None
    assert tokens[5] == 11
