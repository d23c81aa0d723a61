"""What was rewritten and what was not: one vocabulary for header, metric, log and trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members

REWRITE = "X-Refrain-Rewrite"
"""The reply header."""


@plain_members
class Rewrite(StrEnum):
    """One rule of the rewrite plan or one hint, in the order in which they are applied."""

    SCHEMA_KEYS = "schema-keys"
    TOOLS = "tools"
    DOCUMENTS = "documents"
    WHITESPACE = "whitespace"
    VOLATILE = "volatile"
    BREAKPOINTS = "breakpoints"
    CACHE_KEY = "cache-key"
    RETENTION = "retention"


@plain_members
class WhyNot(StrEnum):
    """Why a rule that the policy asks for left a request as it was."""

    TOO_LARGE = "too-large"
    NO_USER_TURN = "no-user-turn"
    UNBALANCED_MARKERS = "unbalanced-markers"
    NESTED_MARKERS = "nested-markers"
    TOO_MANY = "too-many"
    TOO_MUCH = "too-much"
    PLACEHOLDERS = "placeholders"
    UNREADABLE = "unreadable"
    MARKED = "marked"
    MODEL = "model"
    TOO_SHORT = "too-short"
    TAKEN = "taken"
    LIFETIMES = "lifetimes"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule that was not applied."""

    rewrite: Rewrite
    why: WhyNot

    def __str__(self) -> str:
        return f"{self.rewrite}={self.why}"


class DeclinedError(ValueError):
    """A rule cannot be sure; nothing of what it did is taken."""

    def __init__(self, why: WhyNot) -> None:
        super().__init__(why.value)
        self.why = why


def rewrites_told(changes: Sequence[Rewrite], declined: Sequence[Declined]) -> str | None:
    """Return the value of the header ``REWRITE``, None where there is nothing to tell."""
    if not changes and not declined:
        return None
    told = ", ".join(changes) or "none"
    if declined:
        told += f'; declined="{", ".join(map(str, declined))}"'
    return told
