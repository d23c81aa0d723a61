"""What was rewritten and what was not: one vocabulary for header, metric, log and trace."""

from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members


@plain_members
class Rewrite(StrEnum):
    """One rule of the rewrite plan, in the order in which they are applied."""

    SCHEMA_KEYS = "schema-keys"
    TOOLS = "tools"
    WHITESPACE = "whitespace"
    DOCUMENTS = "documents"
    VOLATILE = "volatile"


@plain_members
class WhyNot(StrEnum):
    """Why a rule that the policy asks for left a request as it was."""

    TOO_LARGE = "too-large"
    UNBALANCED_MARKERS = "unbalanced-markers"
    NESTED_MARKERS = "nested-markers"
    TOO_MANY = "too-many"
    TOO_MUCH = "too-much"
    PLACEHOLDERS = "placeholders"
    NO_USER_TURN = "no-user-turn"
    UNREADABLE = "unreadable"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule that was not applied."""

    rewrite: Rewrite
    why: WhyNot

    def __str__(self) -> str:
        return f"{self.rewrite}={self.why}"


def header(changes: tuple[Rewrite, ...], declined: tuple[Declined, ...]) -> str | None:
    """Return the value of ``X-Refrain-Rewrite``, None where there is nothing to tell."""
    if not changes and not declined:
        return None
    told = ", ".join(changes) or "none"
    if declined:
        told += f'; declined="{", ".join(map(str, declined))}"'
    return told
