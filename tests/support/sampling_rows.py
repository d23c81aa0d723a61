"""Rows for the sampler: sequences at a point of their generation, and what is drawn for them."""

from dataclasses import dataclass

import numpy as np
import torch

from backend.executor.sampler.sampler import Sampler
from backend.scheduler.batch import NewSequence
from backend.scheduler.request import SamplingParams, choice_seed

PROMPT = (1, 2)


@dataclass(frozen=True)
class SamplingRow:
    """A sequence as it is told to the sampler, and the position of its next token."""

    params: SamplingParams
    tokens: tuple[int, ...]
    num_prompt_tokens: int
    seed: int
    end: frozenset[int]
    position: int

    def new(self, slot):
        return NewSequence(
            slot, self.tokens, self.num_prompt_tokens, self.params, self.seed, self.end
        )


def row(params=None, *, prompt=PROMPT, generated=(), number=None, choice=0, end=(), **fields):
    """A sequence whose next token is to be chosen; ``number`` counts unknown ones too."""
    params = SamplingParams(**fields) if params is None else params
    position = len(prompt) + (len(generated) if number is None else number)
    return SamplingRow(
        params,
        (*prompt, *generated),
        len(prompt),
        choice_seed(params.seed or 0, choice),
        frozenset(end),
        position,
    )


def results(logits, rows, draw=None):
    """What comes for each row: tokens, whether they are valid, and log probabilities."""
    logits = torch.as_tensor(logits)
    sampler = Sampler(len(rows), logits.shape[-1], logits.device, draw)
    sampler.start([each.new(slot) for slot, each in enumerate(rows)])
    positions = np.array([each.position for each in rows], np.int32)
    return sampler.sample(logits, np.arange(len(rows), dtype=np.int32), positions).fetch()


def sample(logits, rows, draw=None):
    """The tokens that are chosen, None for a row that is not finite."""
    tokens, finite, _ = results(logits, rows, draw)
    return [token if valid else None for token, valid in zip(tokens, finite, strict=True)]


def draw(logits, count, *, choice=0, **fields):
    """The first ``count`` tokens of one sequence whose logits never change."""
    rows = [row(number=number, choice=choice, **fields) for number in range(count)]
    return sample(logits.expand(count, -1), rows)
