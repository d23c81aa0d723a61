"""From a step's value to tensors, with what stays from step to step kept on the device.

The block table and the last token of every slot live on the device; a step sends block ids that
were appended, and little else. All of it is int32, laid end to end in pinned memory and copied as
one piece, so that a CUDA graph finds its inputs where they were when it was captured: the parts
before those of the backend depend on the padded size of the batch alone.

Law: the last token of a slot is on the device from the moment that it is chosen. The host tells it
only where it chose: the last token of a prompt, and the one after verified drafts.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import AttentionBackend, HostRows, Ints, StepTensors
from backend.executor.sampled import ScoredSpan, on_device
from backend.models.lora import RowAdapters
from backend.scheduler.batch import Row, StepBatch
from backend.scheduler.block_pool import BLOCK_SIZE, blocks_for

# Parts begin at multiples of so many numbers: kernels are compiled for aligned addresses.
_ALIGNMENT = 16
# A buffer is written again only when the step after the next is built; one more for safety.
_HOST_BUFFERS = 3
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What bounds a step; ``num_slots`` sequences are known at a time.

    ``num_snapshots`` are of recurrent states, where a model has some.
    """

    num_slots: int
    max_num_seqs: int
    max_tokens_per_step: int
    max_model_len: int
    num_snapshots: int = 0


class SampledRow(NamedTuple):
    """A row of the step that samples: its logit rows are ``first`` and those behind it.

    ``place`` is where the row stands in ``StepBatch.rows``. It has one logit row, and one more for
    each of its ``drafts``.
    """

    place: int
    slot: int
    first: int
    drafts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step as model and sampler take it; padded rows come after the single tokens.

    ``logit_rows`` are the tokens to sample after, then those of ``scored``; None when these are all
    tokens in order. For each logit row to sample from, ``slots`` tells whose it is, and ``numbers``
    the position that the chosen token will have. ``is_plain``: the rows that sample are in the
    step's order, and each has one logit row. ``adapters``: None where the base computes all rows.
    """

    tokens: Tensor
    positions: Tensor
    logit_rows: Tensor | None
    sampled: tuple[SampledRow, ...]
    slots: Ints
    numbers: Ints
    scored: tuple[ScoredSpan, ...]
    is_plain: bool
    adapters: RowAdapters | None = None


class Staging:
    """Int32 parts laid end to end, copied to the device at once without waiting."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        """Make room for ``capacity`` numbers; parts that find none travel alone."""
        self._turn = 0
        self._on_cuda = device.type == "cuda"
        self._host = [
            torch.zeros(capacity, dtype=torch.int32, pin_memory=self._on_cuda)
            for _ in range(_HOST_BUFFERS)
        ]
        self._copied: list[Any] = [None] * len(self._host)
        self._target = torch.zeros(capacity, dtype=torch.int32, device=device)

    def send(self, parts: SequenceOf[Ints]) -> list[Tensor]:
        """Return ``parts`` on the device, each as a view of one buffer."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._host)
        if self._copied[turn] is not None:
            self._copied[turn].synchronize()
        host = self._host[turn].numpy()
        sent: list[Tensor] = []
        at = 0
        for part in parts:
            stop = at + len(part)
            if stop > len(host):
                sent.append(on_device(part, self._target))
                continue
            host[at:stop] = part
            sent.append(self._target[at:stop])
            at = aligned(stop)
        self._target[:at].copy_(self._host[turn][:at], non_blocking=True)
        if self._on_cuda:
            self._copied[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[turn].record()
        return sent


@dataclass(slots=True)
class _LaidOut:
    """A step on the host; ``places`` are those of its single tokens in the step's rows.

    ``own`` [padded singles] are slots. ``logit_rows`` are token rows to sample from, in the order
    of ``slots``; ``scored_rows`` those of ``scored``.
    """

    rows: HostRows
    padded: int | None
    places: list[int]
    tokens: Ints
    positions: Ints
    slot_mapping: Ints
    own: Ints
    sampled: tuple[SampledRow, ...]
    logit_rows: Ints
    scored_rows: Ints
    slots: Ints
    scored: tuple[ScoredSpan, ...]
    is_plain: bool


class InputBatchBuilder:
    """Keeps the slots' tables and last tokens, and lays out steps."""

    def __init__(
        self, limits: BatchLimits, attention: AttentionBackend, device: torch.device
    ) -> None:
        """Allocate for ``limits``; ``attention`` says what else a step carries."""
        self._attention = attention
        self._nobody = limits.num_slots
        """A slot whose block table is padding."""
        self._width = blocks_for(limits.max_model_len)
        num_slots = limits.num_slots + 1
        self._tables = np.zeros((num_slots, self._width), np.int32)
        self._known: list[Ints] = [np.zeros(0, np.int32)] * num_slots
        self._num_known = np.zeros(num_slots, np.int32)
        self._scored: dict[int, int] = {}
        """How many of the likeliest are wanted for each token of a prompt, by slot."""
        self._adapters: dict[int, int] = {}
        """By slot, where it is not the base."""
        self._pending_last_tokens: dict[int, int] = {}
        self._last: _LaidOut | None = None
        """The step before, where all of it decodes."""
        state = torch.zeros(num_slots * (self._width + 1), dtype=torch.int32, device=device)
        self._state = state
        self._device_tables = state[: num_slots * self._width]
        self._last_tokens = state[num_slots * self._width :]
        self._last_on_host = self._last_tokens.numpy() if device.type == "cpu" else None
        # The first parts always fit; long lists of blocks and of a backend's work may not.
        fixed = 5 * limits.max_tokens_per_step + 5 * limits.max_num_seqs
        self._staging = Staging(4 * fixed + 16 * _ALIGNMENT, device)

    def forget(self, step: StepBatch) -> None:
        """Note that ``step`` failed: of what it computed nothing is to be relied on."""
        self._last = None
        self._attention.start([row.slot for row in step.rows])

    def set_last_token(self, slot: int, token: int) -> None:
        """Note that ``token`` is the last one of ``slot``, which the device does not know."""
        self._pending_last_tokens[slot] = token

    def keep(self, slots: Ints, tokens: Tensor) -> None:
        """Note on the device that ``tokens`` [rows] are the last ones of ``slots``.

        Of a slot with several rows any may stay: what its drafts come to is told later.
        """
        if self._last_on_host is not None:
            self._last_on_host[slots] = tokens.numpy()
            return
        self._last_tokens.index_copy_(0, on_device(slots.astype(np.int64), tokens), tokens.int())

    def build(self, step: StepBatch, padded: int | None = None) -> InputBatch:
        """Apply what is new and lay out the rows; ``padded`` needs single tokens alone."""
        where, what = self._apply(step)
        singles = [place for place, row in enumerate(step.rows) if row.num_tokens == 1]
        places = self._attention.arrange(step.rows, singles, self._tables)
        laid_out = self._advanced(step, places, padded)
        if laid_out is None:
            laid_out = self._laid_out(step, places, padded, where, what)
        # Rows that decode, and nothing else, are likely to come again one token further.
        decodes = len(places) == len(step.rows) == len(laid_out.logit_rows)
        self._last = laid_out if decodes and not laid_out.scored else None
        batch = self._placed(laid_out, where, what)
        decoding = laid_out.rows.slots[: laid_out.rows.num_singles].tolist()
        for slot in self._pending_last_tokens.keys() & decoding:
            del self._pending_last_tokens[slot]  # the device knows it now
        return batch

    def _advanced(self, step: StepBatch, places: list[int], padded: int | None) -> _LaidOut | None:
        """Return the layout of the step before moved on by one token, None if this is another."""
        last = self._last
        if last is None or step.new or padded != last.padded or places != last.places:
            return None
        slots, starts = last.rows.slots.tolist(), last.rows.starts.tolist()
        if len(places) != len(step.rows) or not self._pending_last_tokens.keys().isdisjoint(slots):
            return None
        for place, slot, start in zip(places, slots, starts, strict=True):
            row = step.rows[place]
            if row.slot != slot or row.start != start + 1:
                return None
        last.rows = rows = replace(last.rows, starts=last.rows.starts + np.int32(1))
        if rows.num_padded > len(places) or not (rows.starts % BLOCK_SIZE).all():
            last.positions, last.slot_mapping = self._positions(rows)
        else:
            last.positions, last.slot_mapping = rows.starts, last.slot_mapping + np.int32(1)
        return last

    def _laid_out(
        self,
        step: StepBatch,
        singles: list[int],
        padded: int | None,
        where: list[Ints],
        what: list[Ints],
    ) -> _LaidOut:
        places = singles + [place for place, row in enumerate(step.rows) if row.num_tokens > 1]
        ordered = [step.rows[place] for place in places]
        rows = HostRows(
            slots=_ints([row.slot for row in ordered]),
            starts=_ints([row.start for row in ordered]),
            counts=_ints([row.num_tokens for row in ordered]),
            num_singles=len(singles),
            num_padded=padded or len(singles),
            tables=self._tables,
        )
        self._send_last_tokens(rows, where, what)
        first_rows = self._first_rows(rows)
        sampled, logit_rows = _sampled(ordered, first_rows, places)
        scored, scored_rows = self._scored_spans(ordered, first_rows)
        positions, slot_mapping = self._positions(rows)
        own = np.full(rows.num_padded, self._nobody, np.int32)
        own[: rows.num_singles] = rows.slots[: rows.num_singles]
        return _LaidOut(
            rows=rows,
            padded=padded,
            places=singles,
            tokens=self._tokens(rows, ordered[len(singles) :]),
            positions=positions,
            slot_mapping=slot_mapping,
            own=own,
            sampled=tuple(sampled),
            logit_rows=_ints(logit_rows),
            scored_rows=_ints(scored_rows),
            slots=_ints([row.slot for row in sampled for _ in (None, *row.drafts)]),
            scored=tuple(scored),
            is_plain=places == sorted(places) and len(sampled) == len(logit_rows),
        )

    def _placed(self, laid_out: _LaidOut, where: list[Ints], what: list[Ints]) -> InputBatch:
        """Send a layout to the device and let attention plan."""
        rows, own = laid_out.rows, laid_out.own
        lengths = np.zeros(rows.num_padded, np.int32)
        lengths[: rows.num_singles] = rows.starts[: rows.num_singles] + 1
        num_tokens = len(laid_out.positions)
        whole = not laid_out.scored and (
            laid_out.padded is not None or len(laid_out.logit_rows) == num_tokens
        )
        picked = _NOTHING if whole else np.concatenate([laid_out.logit_rows, laid_out.scored_rows])
        layout = [
            laid_out.tokens,
            laid_out.positions,
            laid_out.slot_mapping,
            lengths,
            own * np.int32(self._width),
            picked,
            *self._attention.layout(rows),
        ]
        if self._last_on_host is not None and laid_out.padded is None:
            # The device is the host: nothing travels.
            if where:
                self._state.numpy()[np.concatenate(where)] = np.concatenate(what)
            laid_out.tokens[: rows.num_padded] = self._last_on_host[own]
            parts = [torch.from_numpy(part) for part in layout]
        else:
            parts = self._staged(layout, own, where, what)
        self._attention.plan(
            rows,
            StepTensors(
                positions=parts[1],
                slot_mapping=parts[2],
                lengths=parts[3],
                table_starts=parts[4],
                tables=self._device_tables,
                parts=parts[6:],
                places=laid_out.slot_mapping,
            ),
        )
        return InputBatch(
            tokens=parts[0],
            positions=parts[1],
            logit_rows=None if whole else parts[5],
            sampled=laid_out.sampled,
            slots=laid_out.slots,
            numbers=laid_out.positions[laid_out.logit_rows] + np.int32(1),
            scored=laid_out.scored,
            is_plain=laid_out.is_plain,
            adapters=self._adapters_of(rows) if self._adapters else None,
        )

    def _adapters_of(self, rows: HostRows) -> RowAdapters | None:
        """Return the adapter of each token, padded ones included; None where no row has one."""
        each = _ints([self._adapters.get(slot, 0) for slot in rows.slots.tolist()])
        if not each.any():
            return None
        padding = np.zeros(rows.num_padded - rows.num_singles, np.int32)
        first, rest = each[: rows.num_singles], each[rows.num_singles :]
        spread = np.repeat(rest, rows.counts[rows.num_singles :])
        return RowAdapters(np.concatenate([first, padding, spread]), rows.num_padded)

    def _staged(
        self, layout: list[Ints], own: Ints, where: list[Ints], what: list[Ints]
    ) -> list[Tensor]:
        """Send ``layout``, whose first five parts depend on the padded size alone."""
        changes = [np.concatenate([_NOTHING, *each]) for each in (where, what)]
        *parts, places, values = self._staging.send([*layout[:5], own, *layout[5:], *changes])
        slots = parts.pop(5)
        if where:
            self._state.index_copy_(0, places.long(), values)
        if len(own):
            torch.index_select(self._last_tokens, 0, slots, out=parts[0][: len(own)])
        return parts

    def _apply(self, step: StepBatch) -> tuple[list[Ints], list[Ints]]:
        """Note what is new; return where the device's state changes, and the values there."""
        where: list[Ints] = []
        what: list[Ints] = []
        for new in step.new:
            known = np.array(new.tokens, np.int32)
            self._known[new.slot] = known
            self._num_known[new.slot] = len(known)
            self._pending_last_tokens.pop(new.slot, None)
            # With tokens of its own, it was preempted: the prompt has been reported.
            wanted = new.sampling.prompt_logprobs is not None
            if wanted and len(known) == new.num_prompt_tokens:
                self._scored[new.slot] = new.sampling.prompt_logprobs or 0
            else:
                self._scored.pop(new.slot, None)
            if new.adapter:
                self._adapters[new.slot] = new.adapter
            elif self._adapters:
                self._adapters.pop(new.slot, None)
        if step.new:
            self._attention.start([new.slot for new in step.new])
        self._pending_last_tokens.update(step.last_tokens)
        for slot, start, blocks in step.appended:
            self._tables[slot, start : start + len(blocks)] = blocks
            first = slot * self._width + start
            where.append(np.arange(first, first + len(blocks), dtype=np.int32))
            what.append(np.array(blocks, np.int32))
        return where, what

    def _send_last_tokens(self, rows: HostRows, where: list[Ints], what: list[Ints]) -> None:
        """Send the last tokens that the host knows and the device does not."""
        slots, starts = rows.slots[: rows.num_singles], rows.starts[: rows.num_singles]
        told = {
            int(slots[at]): int(self._known[slots[at]][starts[at]])
            for at in np.flatnonzero(starts < self._num_known[slots])
        }
        if self._pending_last_tokens:
            told |= {
                slot: self._pending_last_tokens[slot]
                for slot in slots.tolist()
                if slot in self._pending_last_tokens
            }
        if told:
            where.append(_ints(told) + np.int32(self._device_tables.shape[0]))
            what.append(_ints(told.values()))

    def _first_rows(self, rows: HostRows) -> list[int]:
        """Return the token row at which each row of the step begins."""
        starts = list(range(rows.num_singles))
        at = rows.num_padded
        for count in rows.counts[rows.num_singles :].tolist():
            starts.append(at)
            at += count
        return starts

    def _tokens(self, rows: HostRows, spans: list[Row]) -> Ints:
        """Return the tokens of the spans behind zeros, which the device fills in."""
        parts = [np.zeros(rows.num_padded, np.int32)]
        for slot, start, count, _, drafted, given in spans:
            said = drafted or given
            parts.append(_ints(said) if said else self._known[slot][start : start + count])
        return np.concatenate(parts)

    def _positions(self, rows: HostRows) -> tuple[Ints, Ints]:
        """Return the position of each token, and the place of its KV in the cache."""
        singles = rows.num_singles
        num_tokens = int(rows.counts.sum()) + rows.num_padded - singles
        positions = np.zeros(num_tokens, np.int32)
        positions[:singles] = rows.starts[:singles]
        mapping = np.zeros(num_tokens, np.int32)
        mapping[:singles] = self._places(rows.slots[:singles], rows.starts[:singles])
        at = rows.num_padded
        columns = (
            each[rows.num_singles :].tolist() for each in (rows.slots, rows.starts, rows.counts)
        )
        for slot, start, count in zip(*columns, strict=True):
            here = np.arange(start, start + count, dtype=np.int32)
            positions[at : at + count] = here
            mapping[at : at + count] = self._places(slot, here)
            at += count
        return positions, mapping

    def _places(self, slots: Any, positions: Ints) -> Ints:
        blocks: Ints = self._tables[slots, positions // BLOCK_SIZE]
        return blocks * np.int32(BLOCK_SIZE) + positions % np.int32(BLOCK_SIZE)

    def _scored_spans(
        self, ordered: list[Row], first_rows: list[int]
    ) -> tuple[list[ScoredSpan], list[int]]:
        """Return the spans whose next tokens the prompt knows, and their token rows."""
        spans: list[ScoredSpan] = []
        rows: list[int] = []
        if not self._scored:
            return spans, rows
        for row, first in zip(ordered, first_rows, strict=True):
            wanted = self._scored.get(row.slot)
            known = self._known[row.slot]
            following = known[row.start + 1 : row.start + 1 + row.num_tokens]
            if wanted is not None and len(following):
                spans.append(ScoredSpan(row.slot, row.start + 1, following, wanted))
                rows += range(first, first + len(following))
        return spans, rows


def _sampled(
    ordered: list[Row], first_rows: list[int], places: list[int]
) -> tuple[list[SampledRow], list[int]]:
    sampled: list[SampledRow] = []
    logit_rows: list[int] = []
    for row, first, place in zip(ordered, first_rows, places, strict=True):
        if row.samples:
            sampled.append(SampledRow(place, row.slot, len(logit_rows), row.drafted[1:]))
            last = first + row.num_tokens
            logit_rows += range(first if row.drafted else last - 1, last)
    return sampled, logit_rows


def aligned(count: int) -> int:
    """Return ``count`` rounded up to where a part may begin."""
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _ints(values: Any) -> Ints:
    # Several times as fast as numpy, which looks at each number's type.
    return np.frombuffer(array("i", values), np.int32)
