"""Rows for the sampler: sequences at a point of their generation, and what is drawn for them."""

import torch

from backend.executor.sampler import Sampler
from backend.scheduler.request import SamplingParams, choice_seed
from backend.scheduler.sequence import ScheduledSequence, Sequence

PROMPT = (1, 2)


def row(
    params=None,
    *,
    prompt=PROMPT,
    generated=(),
    number=None,
    choice=0,
    end=(),
    **fields,
):
    """A scheduled sequence whose next token is to be chosen; ``number`` counts unknown ones too."""
    params = SamplingParams(**fields) if params is None else params
    sequence = Sequence(
        0,
        list(prompt),
        10_000,
        sampling=params,
        seed=choice_seed(params.seed or 0, choice),
        end_token_ids=frozenset(end),
    )
    sequence.tokens += generated
    length = len(prompt) + (len(generated) if number is None else number)
    return ScheduledSequence(sequence, 0, length, samples=True)


def sample(logits, rows, sampler=None):
    """The tokens that are chosen, None for a row that is not finite."""
    sampled = (sampler or Sampler()).sample(torch.as_tensor(logits), rows).fetch()
    return [None if each is None else each.token for each in sampled]


def draw(logits, count, *, choice=0, **fields):
    """The first ``count`` tokens of one sequence whose logits never change."""
    rows = [row(number=number, choice=choice, **fields) for number in range(count)]
    return sample(logits.expand(count, -1), rows)
