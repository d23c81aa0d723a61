"""One sequence: the tokens of a prompt and of the continuation that grows from it.

Law: ``num_computed_tokens`` tokens have their KV in the blocks of ``block_table``; the rest is
pending. Only the scheduler changes ``status``, ``num_computed_tokens`` and ``block_table``.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from backend.core.types import Priority, SamplingParams


class SequenceStatus(Enum):
    """Where a sequence is; FINISHED is final."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one choice. ``sequence_id`` is the order of arrival and never reused."""

    sequence_id: int
    tokens: list[int]
    max_length: int
    """Prompt and continuation together, in tokens."""
    priority: Priority = Priority.NORMAL
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """Of this choice's random numbers, below 2**64."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end it."""
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = field(init=False, default=0)
    block_table: list[int] = field(init=False, default_factory=list)
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)

    def __post_init__(self) -> None:
        """Everything known at the start is prompt."""
        self.num_prompt_tokens = len(self.tokens)

    @property
    def rank(self) -> tuple[Priority, int]:
        """Order of service, the least first: by priority, then by arrival."""
        return self.priority, self.sequence_id

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose KV is not computed; 1 while decoding."""
        return len(self.tokens) - self.num_computed_tokens
