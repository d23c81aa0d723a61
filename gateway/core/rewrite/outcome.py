"""What was rewritten and what was not: one vocabulary for header, metric, log and trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members

REWRITE = "X-Refrain-Rewrite"
"""The reply header."""


@plain_members
class Rewrite(StrEnum):
    """One rule of the rewrite plan, in the order in which they are applied."""

    SCHEMA_KEYS = "schema-keys"
    TOOLS = "tools"


@plain_members
class WhyNot(StrEnum):
    """Why a rule that the policy asks for left a request as it was."""

    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"
    TIMEOUT = "timeout"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule that was not applied."""

    rewrite: Rewrite
    why: WhyNot

    def __str__(self) -> str:
        return f"{self.rewrite}={self.why}"


def rewrites_told(changes: Sequence[Rewrite], declined: Sequence[Declined]) -> str | None:
    """Return the value of the header ``REWRITE``, None where there is nothing to tell."""
    if not changes and not declined:
        return None
    told = ", ".join(changes) or "none"
    if declined:
        told += f'; declined="{", ".join(map(str, declined))}"'
    return told
