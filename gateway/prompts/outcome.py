"""The changes to a request before it is sent, and the reasons for none.

One vocabulary for header, metric, log and trace.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.prompts.json_splice import Edit

REWRITE = "X-Refrain-Rewrite"
COMPRESS = "X-Refrain-Compress"
"""The reply headers."""


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


class Step(StrEnum):
    """One way to say the same in fewer tokens, in the order of their application."""

    SUMMARY = "summary"
    MINIFIED = "minified"
    DUPLICATES = "duplicates"
    UNRELATED = "unrelated"


class NotRewritten(StrEnum):
    """The reason why a rule of the policy left a request, or a part of it, unchanged."""

    TOO_LARGE = "too-large"
    TOO_MANY = "too-many"
    UNBALANCED_MARKERS = "unbalanced-markers"
    NESTED_MARKERS = "nested-markers"
    UNREADABLE = "unreadable"
    TIMEOUT = "timeout"
    FAULT = "fault"
    # Of rewrite rules and hints.
    NO_USER_TURN = "no-user-turn"
    TOO_MUCH = "too-much"
    PLACEHOLDERS = "placeholders"
    MARKED = "marked"
    MODEL = "model"
    TOO_SHORT = "too-short"
    TAKEN = "taken"
    LIFETIMES = "lifetimes"
    REFUSED = "refused"
    # Of compression.
    NOTHING_GAINED = "nothing-gained"
    NEEDS_ALL = "needs-all"
    UNCLEAR = "unclear-question"
    LANGUAGE = "other-language"
    SUMMARY_PENDING = "summary-pending"
    SUMMARY_FACTS = "summary-facts"
    SUMMARY_LONG = "summary-long"
    SUMMARY_FAILED = "summary-failed"
    NO_ENCODER = "no-encoder"


class NotRewrittenError(ValueError):
    """A rule, or compression, could not be sure and changes nothing."""

    def __init__(self, why: NotRewritten) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule that was not applied."""

    rewrite: Rewrite
    why: NotRewritten

    def __str__(self) -> str:
        return f"{self.rewrite}={self.why}"


def decline(rules: Iterable[Rewrite], why: NotRewritten) -> tuple[Declined, ...]:
    """Return these rules, all declined for one reason."""
    return tuple(Declined(rule, why) for rule in rules)


def format_rewrites(changes: Sequence[Rewrite], declined: Sequence[Declined]) -> str:
    """Return the value of the header ``REWRITE``."""
    text = ", ".join(changes) or "none"
    return f'{text}; declined="{", ".join(map(str, declined))}"' if declined else text


@dataclass(frozen=True, slots=True)
class Compression:
    """The outcome for the declared context of one request; ``tokens`` are estimates."""

    steps: tuple[Step, ...] = ()
    tokens: int = 0
    """Of the declared context, before compression."""
    saved: int = 0
    refused: NotRewritten | None = None

    def __str__(self) -> str:
        text = ", ".join(self.steps) or "none"
        if self.steps:
            text += f"; tokens={self.tokens}; saved={self.saved}"
        return text if self.refused is None else f"{text}; declined={self.refused}"


def combine(one: Compression | None, other: Compression | None) -> Compression | None:
    """Return the outcome for two parts of a request; of two reasons the first counts."""
    if one is None or other is None:
        return one or other
    return Compression(
        one.steps + other.steps,
        one.tokens + other.tokens,
        one.saved + other.saved,
        one.refused or other.refused,
    )


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as it is sent: ``raw`` is the JSON of ``body``."""

    body: dict[str, Any]
    raw: bytes
    changes: tuple[Rewrite, ...] = ()
    declined: tuple[Declined, ...] = ()
    edits: tuple[Edit, ...] = ()
    """The changes by rewriting or hints in the client's bytes."""
    compression: Compression | None = None
