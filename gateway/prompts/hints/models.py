"""Which models take marks in a prompt, in which form, and from which length on.

Law: a model that is not known gets none, because servers may refuse a field that they do not know.
"""

import re
from typing import NamedTuple

from policies.decision import BreakpointField, HintSettings

LEAST_TOKENS = 1024
"""What most providers cache at least."""
MOST_MARKS = {
    BreakpointField.CACHE_CONTROL: 4,
    # OpenAI writes four prefixes at most, and one of them is at a place of its own choice.
    BreakpointField.PROMPT_CACHE_BREAKPOINT: 3,
}

_ANTHROPIC, _OPENAI = BreakpointField.CACHE_CONTROL, BreakpointField.PROMPT_CACHE_BREAKPOINT
_KNOWN = tuple(
    (re.compile(pattern), field, least)
    for pattern, field, least in (
        (r"claude.*(?:opus|fable|mythos)-5", _ANTHROPIC, 512),
        (r"claude.*(?:opus-4[.-][56]|haiku-4[.-]5)", _ANTHROPIC, 4096),
        (r"claude.*(?:opus-4[.-]7|haiku)", _ANTHROPIC, 2048),
        (r"claude", _ANTHROPIC, LEAST_TOKENS),
        (r"gemini", _ANTHROPIC, LEAST_TOKENS),
        (r"gpt-(?:5\.(?:[6-9]|[1-9][0-9])|[6-9]|[1-9][0-9])", _OPENAI, LEAST_TOKENS),
    )
)


class Marks(NamedTuple):
    """How prefixes of a model are marked."""

    field: BreakpointField
    least_tokens: int
    most: int


def marks_of(model: str, settings: HintSettings) -> Marks | None:
    """Return how prefixes of a model are marked; None where that is neither known nor set."""
    field, least = settings.field, LEAST_TOKENS
    known = _known(model)
    if known is not None:
        least = known[1]
    if field is BreakpointField.AUTO:
        if known is None:
            return None
        field = known[0]
    return Marks(field, settings.min_tokens or least, MOST_MARKS[field])


def keeps_by_options(model: str) -> bool:
    """Tell whether a model of OpenAI's takes ``prompt_cache_options`` in place of a retention."""
    known = _known(model)
    return known is not None and known[0] is _OPENAI


def _known(model: str) -> tuple[BreakpointField, int] | None:
    name = model[:256].lower()
    for pattern, field, least in _KNOWN:
        if pattern.search(name) is not None:
            return field, least
    return None
