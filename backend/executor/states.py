"""States of sequences beside their KV, for models with gated delta nets.

The rows are: one for each slot, one for padding, then one for each snapshot. A new sequence's
begins as a snapshot or as zeros. A step advances the rows of its slots in place, and saves what
``StepBatch.saves`` says into rows of snapshots, in the middle of a span if that is where it is.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import AttentionBackend, HostRows, Ints, StepTensors
from backend.executor.input_batch import BatchLimits
from backend.models.attention import AttentionLayer
from backend.models.cpu_decoder import SingleThreadIfSmall
from backend.models.gated_delta import (
    DeltaInputs,
    DeltaState,
    StateShape,
    advance_each,
    advance_span,
)
from backend.models.model import Network
from backend.scheduler.batch import Row, StepBatch

logger = logging.getLogger(__name__)


def state_pool_bytes(network: Network, limits: BatchLimits) -> int:
    """Return what the ``StatePool`` of ``network`` takes, and tell of it; 0 where it has none."""
    if network.states is None:
        return 0
    rows = limits.num_slots + 1 + limits.num_snapshots
    each = network.states.num_bytes(network.dtype)
    logger.info(
        "recurrent states of %d bytes a sequence: %d for sequences, %d snapshots, %.0f MiB in all; "
        "no speculation",
        each,
        limits.num_slots,
        limits.num_snapshots,
        each * rows / 2**20,
    )
    return each * rows


class StatePool:
    """The memory: all layers' states of ``num_slots`` sequences and ``num_snapshots`` snapshots."""

    def __init__(
        self,
        shape: StateShape,
        num_slots: int,
        num_snapshots: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Allocate. ``dtype`` is that of activations."""
        self.shape = shape
        self.nobody = num_slots
        """The row of padding."""
        rows = (shape.num_layers, num_slots + 1 + num_snapshots)
        inputs, memory = shape.of_a_layer
        self.states = DeltaState(
            torch.zeros(*rows, *inputs, device=device, dtype=dtype),
            torch.zeros(*rows, *memory, device=device),
        )
        """Of all layers, which are the first dimension."""
        self.saves: dict[int, list[tuple[int, int]]] = {}
        """Positions in the step that is computed, and the rows that they are saved to, by slot."""

    def begin(self, step: StepBatch) -> None:
        """Give new sequences their states, and note what ``step`` saves."""
        self.saves = {}
        for slot, position, snapshot in sorted(step.saves):
            self.saves.setdefault(slot, []).append((position, self.nobody + 1 + snapshot))
        if not step.new:
            return
        fresh = [new.slot for new in step.new if new.state < 0]
        found = [(new.slot, self.nobody + 1 + new.state) for new in step.new if new.state >= 0]
        for tensor in self.states:
            tensor[:, fresh] = 0
            tensor[:, [slot for slot, _ in found]] = tensor[:, [row for _, row in found]]


class _Span(NamedTuple):
    """Tokens ``start`` to ``stop`` of the step belong to ``row``; then they are saved there."""

    start: int
    stop: int
    row: int
    saved_to: int | None


class RecurrentBackend:
    """``AttentionBackend`` that has states, and leaves attention to another backend."""

    def __init__(self, attention: AttentionBackend, pool: StatePool) -> None:
        """Advance the states of ``pool``."""
        self._attention = attention
        self._pool = pool
        self._slots = torch.zeros(0, dtype=torch.int32)
        """Rows of single tokens, padded ones included."""
        self._saved: Tensor | None = None
        """Rows of single tokens that are saved, and where to: [2, saves]."""
        self._spans: list[_Span] = []

    def start(self, slots: Sequence[int]) -> None:
        self._attention.start(slots)

    def arrange(self, rows: Sequence[Row], singles: list[int], tables: Ints) -> list[int]:
        return self._attention.arrange(rows, singles, tables)

    def layout(self, rows: HostRows) -> list[Ints]:
        slots = np.full(rows.num_padded, self._pool.nobody, np.int32)
        slots[: rows.num_singles] = rows.slots[: rows.num_singles]
        return [*self._attention.layout(rows), slots]

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        *parts, self._slots = tensors.parts
        self._attention.plan(rows, replace(tensors, parts=parts))
        singles = rows.slots[: rows.num_singles].tolist()
        saves = self._pool.saves
        saved = [(slot, row) for slot in singles for _, row in saves.get(slot, ())]
        self._saved = torch.tensor(saved, device=self._slots.device).t() if saved else None
        self._spans = list(self._cut(rows))

    def _cut(self, rows: HostRows) -> Iterable[_Span]:
        at = rows.num_padded
        columns = (
            each[rows.num_singles :].tolist() for each in (rows.slots, rows.starts, rows.counts)
        )
        for slot, first, count in zip(*columns, strict=True):
            start, stop = at, at + count
            for position, row in self._pool.saves.get(slot, ()):
                yield _Span(start, at + position - first, slot, row)
                start = at + position - first
            if start < stop:
                yield _Span(start, stop, slot, None)
            at = stop

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        return self._attention.forward(layer, qkv, rotations)

    def recur(self, layer: int, weight: Tensor, inputs: DeltaInputs) -> Tensor:
        states = DeltaState(*(each[layer] for each in self._pool.states))
        with SingleThreadIfSmall(states.memory[0].nbytes * max(len(self._slots), 1)):
            return self._advanced(states, weight, inputs)

    def _advanced(self, states: DeltaState, weight: Tensor, inputs: DeltaInputs) -> Tensor:
        shape = self._pool.shape
        outputs: list[Tensor] = []
        if num_padded := len(self._slots):
            before = DeltaState(*(each.index_select(0, self._slots) for each in states))
            output, after = advance_each(shape, weight, inputs.part(0, num_padded), before)
            outputs.append(output)
            for tensor, new in zip(states, after, strict=True):
                tensor.index_copy_(0, self._slots.long(), new)
                if self._saved is not None:
                    source, target = self._saved
                    tensor.index_copy_(0, target, tensor.index_select(0, source))
        for span in self._spans:
            one = DeltaState(*(each[span.row] for each in states))
            output, after = advance_span(shape, weight, inputs.part(span.start, span.stop), one)
            outputs.append(output)
            for tensor, new in zip(states, after, strict=True):
                tensor[span.row] = new
                if span.saved_to is not None:
                    tensor[span.saved_to] = new
        return torch.cat(outputs)

    def release(self) -> None:
        self._attention.release()
