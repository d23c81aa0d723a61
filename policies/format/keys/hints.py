"""What ``hints`` sets: what the upstream is told of a prompt's stable prefix.

Law: what is left out is as in ``default``; unset there, nothing is told.
"""

from policies.decision import (
    NO_HINTS,
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    KeyRetention,
)
from policies.format.keys import Key, Table
from policies.format.shorthand import only_off
from policies.format.values import ON_OFF, members, or_word, whole

MOST_TOKENS = 2**20
MOST_KEYS = 64

HINTS = Table(
    "HintsSpec",
    "What the upstream is told of a prompt's stable prefix, in detail.",
    Key(
        "breakpoints",
        members(Breakpoints),
        "Mark where the stable prefix ends, for providers that cache up to a mark. system: the "
        "ends of the system messages that come first. earlier: that of the turns before the last "
        "user turn, too. Unset: as in the default settings, and off where they do not say.",
        *("system", "earlier"),
    ),
    Key(
        "field",
        members(BreakpointField),
        "How a mark is written. auto: by the name of the model. Unset: likewise, and auto.",
        "cache_control",
    ),
    Key(
        "lifetime",
        members(BreakpointLifetime),
        "How long what stands before a mark of cache_control is kept. Unset: likewise, and 5m.",
        "1h",
    ),
    Key(
        "min_tokens",
        or_word(whole(1, MOST_TOKENS), "auto", None, first=True),
        "Shorter prefixes get no mark, because the provider would not cache them. auto: by the "
        "name of the model. Unset: likewise, and auto.",
        *(1024, "auto"),
    ),
    Key(
        "cache_key",
        ON_OFF,
        "Send a prompt_cache_key that requests of one rule, tenant and beginning share, where the "
        "client sends none. Unset: likewise, and off.",
        "on",
    ),
    Key(
        "keys",
        whole(1, MOST_KEYS),
        "Over how many keys the conversations of one beginning are spread: one for each 15 "
        "requests a minute. Unset: likewise, and 1.",
        4,
    ),
    Key(
        "retention",
        members(KeyRetention),
        "Send prompt_cache_retention where the client says nothing of it. Unset: likewise, and "
        "off.",
        "24h",
    ),
    short=only_off(
        "{cache_key: on}", dict.fromkeys(("breakpoints", "cache_key", "retention"), "off")
    ),
    off=NO_HINTS,
)
