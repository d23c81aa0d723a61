"""How much one step may compute: the token budget, and how many sequences may run.

Pure: observations come in as numbers.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may compute at most: ``max_tokens`` in all, by ``max_num_seqs`` sequences."""

    max_tokens: int
    max_num_seqs: int


class Pacing(Protocol):
    """Decides the allowance of each step."""

    def allow(self, num_decodes: int) -> Allowance:
        """Return the allowance of a step in which ``num_decodes`` sequences decode.

        At least one token for each sequence, and never more than ``Scheduler``'s own limits.
        """
        ...

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn how long a step took."""
        ...


class FixedPacing:
    """The same allowance for every step."""

    def __init__(self, allowance: Allowance) -> None:
        """Allow as much in every step."""
        self._allowance = allowance

    def allow(self, num_decodes: int) -> Allowance:
        """See ``Pacing``."""
        del num_decodes
        return self._allowance

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """See ``Pacing``; nothing is learnt."""
