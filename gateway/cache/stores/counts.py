"""What stores count beside entries: the use of gateway keys, and the figures of usage."""

from collections.abc import Mapping
from typing import NamedTuple

USAGE_ROWS = 2_048
"""Rows of a day; the figures of further labels are summed in one more row."""
USAGE_DAYS = 400
"""Days for which usage is kept."""
USAGE_OTHER = '{"holder":"other","model":"other","rule":"other","upstream":"other","team":"other"}'
"""The labels of that row."""


class Count(NamedTuple):
    """What is counted: of a key's ``holder`` an amount such as ``tokens/day``, in one window."""

    holder: str
    what: str
    window: int


class Change(NamedTuple):
    """What is to be added to a count, and the total that was last learned of it."""

    amount: int
    known: int = 0


class UsageRow(NamedTuple):
    """Sums of one day, such as ``2026-11-24`` (UTC), under labels, which are a JSON object."""

    day: str
    labels: str
    figures: Mapping[str, float]
