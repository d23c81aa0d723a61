"""Penalties by what a sequence contains, counted on the device.

A token is counted where it was chosen, so the next step may be launched before the host knows it.
In vLLM's order: first the repetition penalty, then frequency and presence.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from torch import Tensor

from backend.executor.sampled import on_device
from backend.scheduler.batch import NewSequence


class Penalties:
    """Counts for the slots that have penalties; memory is taken when the first of them comes."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """``vocab_size`` is that of the logits."""
        self._vocab = vocab_size
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._factors = torch.zeros((0, 3), dtype=torch.float32, device=device)
        """Repetition, frequency, presence."""

    def start(self, new: SequenceOf[NewSequence]) -> None:
        """Take in the sequences that take over slots."""
        for each in new:
            if (row := self._row_of.pop(each.slot, None)) is not None:
                self._free.append(row)
        for each in new:
            if each.sampling.is_penalised:
                self._begin(each)

    def apply_(self, logits: Tensor, penalised: SequenceOf[tuple[int, int]]) -> None:
        """Change float32 ``logits`` [rows, vocab] in the rows, each with its slot."""
        index = on_device(np.array([row for row, _ in penalised], np.int64), logits)
        own = self._rows([slot for _, slot in penalised], logits)
        counts, factors = self._counts.index_select(0, own), self._factors.index_select(0, own)
        repetition, frequency, presence = factors.unsqueeze(-1).unbind(1)
        values = logits.index_select(0, index)
        generated = counts > 0
        seen = self._in_prompt.index_select(0, own).logical_or_(generated)
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen, repeated, values)
        values.sub_(frequency * counts).sub_(presence * generated)
        logits.index_copy_(0, index, values)

    def count(self, penalised: SequenceOf[tuple[int, int]], tokens: Tensor) -> None:
        """Count the chosen ``tokens`` [rows of the step]."""
        index = on_device(np.array([row for row, _ in penalised], np.int64), tokens)
        own = self._rows([slot for _, slot in penalised], tokens)
        chosen = tokens.index_select(0, index)
        one = torch.ones_like(chosen, dtype=torch.int32)
        self._counts.view(-1).index_add_(0, own * self._vocab + chosen, one)

    def _rows(self, slots: SequenceOf[int], like: Tensor) -> Tensor:
        return on_device(np.array([self._row_of[slot] for slot in slots], np.int64), like)

    def _begin(self, new: NewSequence) -> None:
        if not self._free:
            self._grow()
        row = self._row_of[new.slot] = self._free.pop()
        params = new.sampling
        factors = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._factors[row] = on_device(np.array(factors, np.float32), self._factors)
        prompt, generated = np.split(np.array(new.tokens, np.int64), [new.num_prompt_tokens])
        self._counts[row].zero_()
        self._in_prompt[row].zero_()
        self._in_prompt[row].index_fill_(0, on_device(prompt, self._counts), value=True)
        if len(generated):
            ones = torch.ones(len(generated), dtype=torch.int32, device=self._counts.device)
            self._counts[row].index_add_(0, on_device(generated, self._counts), ones)

    def _grow(self) -> None:
        rows = len(self._counts)
        more = max(rows, 4)
        # All or none: where there is no memory, what is there stays as it is.
        grown = [
            torch.cat([each, each.new_zeros(more, each.shape[1])])
            for each in (self._counts, self._in_prompt, self._factors)
        ]
        self._counts, self._in_prompt, self._factors = grown
        self._free = list(range(rows, rows + more))
