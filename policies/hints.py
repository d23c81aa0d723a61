"""What a policy may have the upstream told of a prompt's stable prefix."""

from dataclasses import dataclass
from enum import StrEnum

from policies.plain_enum import plain_members


@plain_members
class Breakpoints(StrEnum):
    """Where the stable prefix of a prompt is marked for the upstream."""

    OFF = "off"
    SYSTEM = "system"
    """At the ends of the system messages that come first."""
    EARLIER = "earlier"
    """There, and before the last user turn."""


@plain_members
class BreakpointField(StrEnum):
    """How a mark is written."""

    AUTO = "auto"
    """By the model's name."""
    CACHE_CONTROL = "cache_control"
    """Anthropic's."""
    PROMPT_CACHE_BREAKPOINT = "prompt_cache_breakpoint"
    """OpenAI's, from gpt-5.6 on."""


MARKS = frozenset(each.value for each in BreakpointField if each is not BreakpointField.AUTO)
"""The fields in which marks are written."""


@plain_members
class BreakpointLifetime(StrEnum):
    """How long Anthropic keeps what stands before a mark."""

    SHORT = "5m"
    LONG = "1h"


@plain_members
class KeyRetention(StrEnum):
    """How long OpenAI is asked to keep prefixes."""

    UNSET = "off"
    DAY = "24h"


@dataclass(frozen=True, slots=True)
class HintSettings:
    """What the upstream is told of a prompt's stable prefix."""

    breakpoints: Breakpoints = Breakpoints.OFF
    field: BreakpointField = BreakpointField.AUTO
    lifetime: BreakpointLifetime = BreakpointLifetime.SHORT
    min_tokens: int | None = None
    """Shorter prefixes are not marked; None: by the model's name."""
    cache_key: bool = False
    keys: int = 1
    """Over how many keys the conversations of one beginning are spread."""
    retention: KeyRetention = KeyRetention.UNSET

    @property
    def any_on(self) -> bool:
        """Tell whether anything is told."""
        return (
            self.cache_key
            or self.breakpoints is not Breakpoints.OFF
            or self.retention is not KeyRetention.UNSET
        )


NO_HINTS = HintSettings()
