"""What one step computes."""

from typing import NamedTuple

from backend.scheduler.sequence import Sequence


class ScheduledSequence(NamedTuple):
    """The ``num_tokens`` tokens of ``sequence`` from ``start`` on are computed in this step.

    ``samples``: they reach its last token, so that a next one is chosen.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


Step = tuple[ScheduledSequence, ...]
