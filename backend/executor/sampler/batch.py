"""How slots sample: noted once for each sequence, gathered for the rows of a step.

Rows are gathered anew only when the rows of a step are others than those of the step before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.executor.attention.backend import Ints
from backend.executor.sampled import on_device
from backend.kernels.noise import MIN_TEMPERATURE, Uint64s, draw_keys
from backend.scheduler.batch import NewSequence
from backend.scheduler.request import SamplingParams

_ALIGNED_FLOATS: Final = 4
# Ways to draw, of which torch has one each; the kernel knows all of them at once.
_GREEDY, _PLAIN, _TOP_K, _NUCLEUS = range(4)


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """Rows that are drawn in one way; columns are float32 [rows, 1].

    ``index`` holds their row numbers, None when it is every row. ``log_min_p`` is -inf where a row
    has no min_p; ``top_k`` and ``top_p`` are neutral where a row has none.
    """

    rows: NDArray[np.intp]
    index: Tensor | None
    seeds: Uint64s
    temperature: Tensor
    log_min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    most: int
    """The largest top_k; 0 where no row has one."""
    filters: bool
    """Whether any row has a top_k or a top_p."""
    has_min_p: bool

    def keys(self, numbers: Uint64s, like: Tensor) -> Tensor:
        """Return the noise's keys; ``numbers`` are those of all the batch's tokens."""
        return on_device(draw_keys(self.seeds, numbers[self.rows]), like)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What the rows of a step need beyond the largest logit of each.

    ``biased`` are places in the flattened logits and what is added there; ``bounded`` are rows with
    a least number of tokens, and the end tokens they may not choose before; ``penalised`` are rows
    and their slots; ``reported`` are rows whose log probabilities are wanted (``LogprobTensors``).
    """

    prompt_lengths: NDArray[np.int64]
    groups: tuple[DrawGroup, ...]
    biased: tuple[Tensor, Tensor] | None
    bounded: tuple[tuple[int, int, Tensor], ...]
    penalised: tuple[tuple[int, int], ...]
    reported: tuple[tuple[int, int], ...]
    reported_index: Tensor | None


class SlotSampling:
    """How each slot samples."""

    def __init__(self, num_slots: int, vocab_size: int, *, one_group: bool) -> None:
        """``one_group``: all rows are drawn together where any is (by the kernel)."""
        self._vocab = vocab_size
        self._one_group = one_group
        self._params: list[SamplingParams] = [SamplingParams(temperature=0.0)] * num_slots
        self._end_tokens: list[frozenset[int]] = [frozenset()] * num_slots
        self._kind = np.full(num_slots, _GREEDY, np.int8)
        self._prompt_lengths = np.zeros(num_slots, np.int64)
        self._seeds = np.zeros(num_slots, np.uint64)
        self._columns = np.zeros((num_slots, 4), np.float32)
        """Temperature, log of min_p, top_k, top_p."""
        self._special: set[int] = set()
        """Slots with anything that is looked up row by row."""
        self._last: SamplingBatch | None = None
        self._last_slots = b""

    def start(self, new: Iterable[NewSequence]) -> None:
        """Note how the sequences sample that take over slots."""
        for each in new:
            slot, params = each.slot, each.sampling
            self._params[slot] = params
            self._end_tokens[slot] = each.end_token_ids
            self._prompt_lengths[slot] = each.num_prompt_tokens
            self._seeds[slot] = each.seed
            self._kind[slot] = _kind(params)
            self._columns[slot] = (
                params.temperature,
                np.log(params.min_p) if params.min_p else -np.inf,
                params.top_k or self._vocab,
                params.top_p,
            )
            self._special.discard(slot)
            is_special = params.is_penalised or params.logit_bias or params.min_tokens
            if is_special or params.logprobs is not None:
                self._special.add(slot)
            self._last = None

    def gather(self, slots: Ints, like: Tensor) -> SamplingBatch:
        """Return how rows of ``slots`` sample from ``like``, logits [rows, vocab]."""
        key = slots.tobytes()
        if self._last is None or key != self._last_slots:
            self._last, self._last_slots = self._gathered(slots, like), key
        return self._last

    def _gathered(self, slots: Ints, like: Tensor) -> SamplingBatch:
        special = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._special]
        reported = tuple(
            (row, min(wanted, self._vocab))
            for row, slot in special
            if (wanted := self._params[slot].logprobs) is not None
        )
        return SamplingBatch(
            prompt_lengths=self._prompt_lengths[slots],
            groups=self._groups(slots, like),
            biased=self._biases(special, like),
            bounded=tuple(
                (row, self._params[slot].min_tokens, self._ends(slot, like))
                for row, slot in special
                if self._params[slot].min_tokens
                and self._end_tokens[slot]
                # A grammar knows when its text is over.
                and self._params[slot].grammar is None
            ),
            penalised=tuple(
                (row, slot) for row, slot in special if self._params[slot].is_penalised
            ),
            reported=reported,
            reported_index=_index([row for row, _ in reported], len(slots), like),
        )

    def _groups(self, slots: Ints, like: Tensor) -> tuple[DrawGroup, ...]:
        kinds = self._kind[slots]
        if not kinds.any():
            return ()
        if self._one_group:
            return (self._group(slots, np.arange(len(slots)), like),)
        return tuple(
            self._group(slots, rows, like)
            for kind in (_PLAIN, _TOP_K, _NUCLEUS)
            if len(rows := np.flatnonzero(kinds == kind))
        )

    def _group(self, slots: Ints, rows: NDArray[np.intp], like: Tensor) -> DrawGroup:
        own = slots[rows]
        kinds, limits = self._kind[own], self._columns[own, 2]
        limited = limits[kinds == _TOP_K]
        # Each column begins at a multiple of 16 bytes. Triton compiles the kernel anew for pointers
        # of another alignment, which would take a second in the middle of serving.
        padded = np.zeros((4, -(-len(own) // _ALIGNED_FLOATS) * _ALIGNED_FLOATS), np.float32)
        padded[:, : len(own)] = self._columns[own].T
        columns = on_device(padded, like)[:, : len(own)].unsqueeze(-1)
        temperature, log_min_p, top_k, top_p = columns.unbind(0)
        return DrawGroup(
            rows=rows,
            index=_index(rows, len(slots), like),
            seeds=self._seeds[own],
            temperature=temperature,
            log_min_p=log_min_p,
            top_k=top_k,
            top_p=top_p,
            most=int(min(limited.max(), self._vocab)) if len(limited) else 0,
            filters=bool((kinds >= _TOP_K).any()),
            has_min_p=bool((self._columns[own, 1] > -np.inf).any()),
        )

    def _biases(self, special: list[tuple[int, int]], like: Tensor) -> tuple[Tensor, Tensor] | None:
        places: list[int] = []
        biases: list[float] = []
        for row, slot in special:
            for token, bias in self._params[slot].logit_bias:
                if token < self._vocab:  # a tokenizer may know more than the model
                    places.append(row * self._vocab + token)
                    biases.append(bias)
        if not places:
            return None
        return (
            on_device(np.array(places, np.int64), like),
            on_device(np.array(biases, np.float32), like),
        )

    def _ends(self, slot: int, like: Tensor) -> Tensor:
        tokens = [token for token in self._end_tokens[slot] if token < self._vocab]
        return on_device(np.array(tokens, np.int64), like)


def _kind(params: SamplingParams) -> int:
    if params.temperature < MIN_TEMPERATURE:
        return _GREEDY
    if params.top_k:
        return _TOP_K
    return _NUCLEUS if params.top_p < 1.0 else _PLAIN


def _index(rows: NDArray[np.intp] | list[int], num_rows: int, like: Tensor) -> Tensor | None:
    if len(rows) == num_rows:
        return None
    return on_device(np.asarray(rows, np.int64), like)
