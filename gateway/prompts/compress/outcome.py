"""What was compressed and why not: one vocabulary for header, metric, log and trace."""

from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members

COMPRESS = "X-Refrain-Compress"
"""The reply header."""


@plain_members
class Step(StrEnum):
    """One way to say the same in fewer tokens, in the order in which they are taken."""

    SUMMARY = "summary"
    MINIFIED = "minified"
    DUPLICATES = "duplicates"
    UNRELATED = "unrelated"


@plain_members
class Refusal(StrEnum):
    """Why a request with declared context is sent as it was."""

    NOTHING_GAINED = "nothing-gained"
    UNBALANCED_MARKERS = "unbalanced-markers"
    NESTED_MARKERS = "nested-markers"
    TOO_LARGE = "too-large"
    TOO_MANY = "too-many"
    UNREADABLE = "unreadable"
    NEEDS_ALL = "needs-all"
    UNCLEAR = "unclear-question"
    LANGUAGE = "other-language"
    SUMMARY_PENDING = "summary-pending"
    SUMMARY_FACTS = "summary-facts"
    SUMMARY_LONG = "summary-long"
    SUMMARY_FAILED = "summary-failed"
    NO_ENCODER = "no-encoder"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    FAULT = "fault"


class RefusedError(ValueError):
    """The request is to be sent as it was."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(frozen=True, slots=True)
class Compression:
    """What became of the declared context of one request; ``tokens`` are estimates."""

    steps: tuple[Step, ...] = ()
    tokens: int = 0
    """Of the declared context, as it came."""
    saved: int = 0
    refused: Refusal | None = None

    def __str__(self) -> str:
        """Return the value of the header ``COMPRESS``."""
        told = ", ".join(self.steps) or "none"
        if self.steps:
            told += f"; tokens={self.tokens}; saved={self.saved}"
        return told if self.refused is None else f"{told}; declined={self.refused}"


def both(one: Compression | None, other: Compression | None) -> Compression | None:
    """Return what became of two parts of a request; of two reasons the first is told."""
    if one is None or other is None:
        return one or other
    return Compression(
        one.steps + other.steps,
        one.tokens + other.tokens,
        one.saved + other.saved,
        one.refused or other.refused,
    )
