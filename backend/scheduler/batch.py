"""A step as a value: everything that the executor needs, and nothing that the scheduler owns.

The executor knows sequences by slot. It is told once what a sequence is, and later only which
blocks were appended and how far to compute. So a step could be sent to another process.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import ScheduledSequence


class NewSequence(NamedTuple):
    """A sequence that takes over ``slot``; whatever was there before has left.

    ``tokens`` are all known ones. After a preemption those behind ``num_prompt_tokens`` were
    generated before. ``adapter`` 0 is the base model. ``state`` is the snapshot that its recurrent
    state begins as, -1 for none.
    """

    slot: int
    tokens: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    end_token_ids: frozenset[int]
    adapter: int = 0
    state: int = -1


class AppendedBlocks(NamedTuple):
    """``blocks`` follow the first ``start`` blocks in the block table of ``slot``."""

    slot: int
    start: int
    blocks: tuple[int, ...]


class Row(NamedTuple):
    """The ``num_tokens`` tokens of ``slot`` from position ``start`` on are computed.

    ``samples``: the next token is chosen. ``drafted`` is empty, or the first of the tokens and the
    guesses of those behind it, each of which is verified. ``given`` are the tokens, where they are
    several that the executor was not told with the sequence.
    """

    slot: int
    start: int
    num_tokens: int
    samples: bool
    drafted: tuple[int, ...] = ()
    given: tuple[int, ...] = ()


class StateSave(NamedTuple):
    """The recurrent state of ``slot`` behind ``position`` tokens is copied to ``snapshot``."""

    slot: int
    position: int
    snapshot: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step. ``new`` and ``appended`` are applied before ``rows`` are computed.

    ``last_tokens`` are slots with the single token that they compute, where that was chosen
    elsewhere. ``saves`` are of models that have recurrent states.
    """

    new: tuple[NewSequence, ...]
    appended: tuple[AppendedBlocks, ...]
    rows: tuple[Row, ...]
    last_tokens: tuple[tuple[int, int], ...] = ()
    saves: tuple[StateSave, ...] = ()


def batch_of(step: Iterable[ScheduledSequence], saves: tuple[StateSave, ...] = ()) -> StepBatch:
    """Return the value of ``step``; once it was launched, ``note_launched`` is due."""
    new: list[NewSequence] = []
    appended: list[AppendedBlocks] = []
    rows: list[Row] = []
    for sequence, start, num_tokens, samples, drafts in step:
        table = sequence.block_table
        sent = sequence.num_sent_blocks
        if sent < len(table):
            if sent == 0:
                new.append(
                    NewSequence(
                        sequence.slot,
                        tuple(sequence.tokens),
                        sequence.num_prompt_tokens,
                        sequence.sampling,
                        sequence.seed,
                        sequence.end_token_ids,
                        sequence.adapter,
                        sequence.state,
                    )
                )
            appended.append(AppendedBlocks(sequence.slot, sent, tuple(table[sent:])))
        drafted = (sequence.tokens[-1], *drafts) if drafts else ()
        rows.append(Row(sequence.slot, start, num_tokens, samples, drafted))
    return StepBatch(tuple(new), tuple(appended), tuple(rows), saves=saves)


def note_launched(step: Iterable[ScheduledSequence]) -> None:
    """Note that the executor knows the blocks of ``step``: what failed before is told again."""
    for scheduled in step:
        sequence = scheduled.sequence
        sequence.num_sent_blocks = len(sequence.block_table)
