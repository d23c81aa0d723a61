"""One sequence: the tokens of a prompt and of the continuation that grows from it.

Laws: only the scheduler changes what is not an argument of the constructor, and ``tokens``. KV of
the first ``num_computed_tokens`` tokens is in the blocks of ``block_table``, or is being written
there by steps that were launched and not completed; the rest is pending.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from backend.scheduler.request import Priority, SamplingParams


class Matcher(Protocol):
    """Keeps one text to a grammar."""

    num_accepted: int
    """Generated tokens that were given to ``accept_tokens``."""
    failure: str | None
    """Why the text cannot go on; final."""

    def accept_tokens(self, tokens: list[int]) -> None:
        """Advance by the generated tokens behind the last ones."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        """Write into ``bitmask[row]``, int32 words, which tokens may come next: a bit each."""


class SequenceStatus(Enum):
    """Where a sequence is; FINISHED is final.

    PREEMPTING and ENDING hold blocks that a launched step still writes: the first waits again when
    it has drained, the second is finished then.
    """

    WAITING = auto()
    RUNNING = auto()
    PREEMPTING = auto()
    ENDING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one choice. ``sequence_id`` is the order of arrival and never reused.

    Times are seconds on the clock of the scheduler's ``now``. ``deadline`` bounds the wait for the
    first step. ``reads_cache`` False: logits of every prompt token are wanted, so that all of them
    must be computed.
    """

    sequence_id: int
    tokens: list[int]
    """Those whose values the host knows."""
    max_length: int
    """Prompt and continuation together, in tokens."""
    priority: Priority = Priority.NORMAL
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """The seed of this choice's random numbers, below 2**64."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end it."""
    arrived: float = 0.0
    deadline: float | None = None
    cache_salt: str = ""
    adapter: int = 0
    """The LoRA adapter that computes it, 0: the base model."""
    reads_cache: bool = True
    matcher: Matcher | None = None
    """Where there is a grammar."""
    block_hashes: list[bytes] = field(default_factory=list)
    """The root hash, then those of the full blocks. The waiting queue computes absent ones."""

    num_prompt_tokens: int = field(init=False)
    needs_history: bool = field(init=False)
    allows_drafts: bool = field(init=False)
    num_computed_tokens: int = field(init=False, default=0)
    num_unseen_tokens: int = field(init=False, default=0)
    """Tokens that launched steps choose and the host does not know yet; accepted drafts apart."""
    num_drafts_in_flight: int = field(init=False, default=0)
    """Counted as computed until they are verified; it is not scheduled again before."""
    num_new_tokens: int = field(init=False, default=0)
    """Tokens at the end of ``tokens`` that came with the step that was completed last."""
    num_cached_tokens: int = field(init=False, default=0)
    """So many tokens of the prompt were in the prefix cache at the first admission."""
    admitted: float | None = field(init=False, default=None)
    """When the wait for the first step ended."""
    num_steps_in_flight: int = field(init=False, default=0)
    slot: int = field(init=False, default=-1)
    """The executor's name for it, while it holds blocks."""
    state: int = field(init=False, default=-1)
    """The snapshot that its recurrent state begins as when it is admitted, -1: as zeros."""
    block_table: list[int] = field(init=False, default_factory=list)
    num_sent_blocks: int = field(init=False, default=0)
    """Blocks at the head of the table that the executor was told of (``batch``)."""
    num_loads_in_flight: int = field(init=False, default=0)
    """Blocks of the table that a tier is filling; nothing of it is computed meanwhile."""
    num_loaded_blocks: int = field(init=False, default=0)
    """So many blocks at the head of the table are good once the loads in flight are done."""
    num_cached_blocks: int = field(init=False, default=0)
    """Blocks at the head of the table that were found in the prefix cache or offered to it."""
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)

    def __post_init__(self) -> None:
        """Everything known at the start is prompt."""
        self.num_prompt_tokens = len(self.tokens)
        self.needs_history = self.sampling.needs_history
        self.allows_drafts = self.sampling.allows_drafts

    @property
    def length(self) -> int:
        """All tokens, with those that only the device knows."""
        return len(self.tokens) + self.num_unseen_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose KV is neither computed nor being computed; 1 while decoding."""
        return len(self.tokens) + self.num_unseen_tokens - self.num_computed_tokens


class ScheduledSequence(NamedTuple):
    """The ``num_tokens`` tokens of ``sequence`` from ``start`` on are computed in this step.

    ``samples``: they reach its last token, so that a next one is chosen. ``drafts`` are guesses of
    the tokens behind the last one. They are counted in ``num_tokens`` and each is verified, so
    that one more token than the accepted drafts is chosen.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()


Step = tuple[ScheduledSequence, ...]
"""What one step computes."""
