"""What was compressed and why not: one vocabulary for header, metric, log and trace."""

from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members

COMPRESS = "X-Refrain-Compress"
"""The reply header."""


@plain_members
class Step(StrEnum):
    """One way to say the same in fewer tokens, in the order in which they are taken."""

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
    NO_ENCODER = "no-encoder"
    TIMEOUT = "timeout"
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
        if self.refused is not None:
            return f"none; declined={self.refused}"
        return f"{', '.join(self.steps)}; tokens={self.tokens}; saved={self.saved}"
