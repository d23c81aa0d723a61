"""A decision in the words of the policy file, as if one rule had set all of it."""

from typing import Any

from policies.compress_settings import compress_words
from policies.decide import Decision
from policies.hint_settings import hint_words
from policies.prefix_settings import prefix_words

_UNITS = (("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def settings_of(decision: Decision) -> dict[str, Any]:
    """Return every setting with its value, in the order of the reference; switches are words."""
    return {
        "exact": _switch(decision.exact),
        "semantic": _semantic(decision) if decision.semantic else _switch(False),
        "freshness": duration_text(decision.lifetime),
        "jitter": percent_text(decision.jitter),
        "grace": _grace(decision.grace_revalidate, decision.grace_error),
        "coalescing": (
            {
                "followers": decision.max_followers,
                "wait": duration_text(decision.follow_seconds),
            }
            if decision.max_followers
            else _switch(False)
        ),
        "finish_reasons": sorted(decision.finish_reasons, key=_usual_order),
        "max_temperature": _bound(decision.max_temperature),
        "max_prompt_tokens": _bound(decision.max_prompt_tokens),
        "priority": decision.priority.value,
        "scope": decision.scope.value,
        "pii": decision.pii.value,
        "tags": list(decision.tags),
        "prefix": prefix_words(decision.prefix),
        "compress": compress_words(decision.compress),
        "hints": hint_words(decision.hints),
        "fallback_model": decision.fallback_model or _switch(False),
    }


def percent_text(share: float) -> str:
    """Write a share of 1 as a percentage."""
    return f"{share * 100:g}%"


def duration_text(seconds: float) -> str:
    """Write a duration with the largest unit that leaves nothing over."""
    whole = int(seconds)
    unit, size = next(each for each in _UNITS if whole % each[1] == 0)
    return f"{whole // size}{unit}"


def _switch(value: bool) -> str:
    return "on" if value else "off"


def _semantic(decision: Decision) -> dict[str, Any]:
    return {
        "max_wrong_hits": percent_text(decision.max_wrong_hits),
        "min_similarity": decision.min_similarity,
        "shadow": _switch(decision.shadow),
        "sample": percent_text(decision.sample),
        "promote": _switch(decision.promote),
    }


def _grace(revalidate: float, error: float) -> Any:
    if revalidate == error:
        return duration_text(revalidate) if revalidate else _switch(False)
    pair = {"while_revalidate": revalidate, "if_error": error}
    return {
        name: duration_text(seconds) if seconds else _switch(False)
        for name, seconds in pair.items()
    }


def _usual_order(reason: str) -> tuple[int, str]:
    usual = ("stop", "tool_calls", "function_call")
    return (usual.index(reason) if reason in usual else len(usual), reason)


def _bound(value: float | None) -> Any:
    return "any" if value is None else value
