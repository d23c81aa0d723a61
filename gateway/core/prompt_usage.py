"""What an upstream says of the tokens of one call, in whichever provider's words.

Law: only whole numbers from 0 count; what an upstream does not say is None and never a guess.
"""

from typing import Any, NamedTuple

_MOST = 2**53


class PromptUsage(NamedTuple):
    """Tokens of one call: of ``prompt``, ``cached`` were in a cache and ``written`` put there."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    written: int | None = None


NOTHING_SAID = PromptUsage()


def prompt_usage(usage: Any) -> PromptUsage:
    """Read the ``usage`` of an answer."""
    if not isinstance(usage, dict):
        return NOTHING_SAID
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if not isinstance(details, dict):
        details = {}
    read = _count(usage.get("cache_read_input_tokens"))  # Anthropic's
    made = _count(usage.get("cache_creation_input_tokens"))
    cached = _first(
        _count(details.get("cached_tokens")),  # OpenAI's
        read,
        _count(usage.get("prompt_cache_hit_tokens")),  # DeepSeek's
    )
    written = _first(_count(details.get("cache_write_tokens")), made)
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is None and (prompt := _count(usage.get("input_tokens"))) is not None and not details:
        prompt += (read or 0) + (made or 0)  # Anthropic counts them apart
    completion = _first(_count(usage.get("completion_tokens")), _count(usage.get("output_tokens")))
    return PromptUsage(prompt, completion, cached, written)


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        return None
    return value
