"""What each field of a request means to the cache: part of the key, neutral, or why to bypass.

Law: a field is neutral only if it cannot change what is answered, and a field that is not listed
is part of the key. Every field that OpenAI publishes is listed, so that a new one is looked at
before it is cached. What a bypass field's value does not refuse is key or neutral like any other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.reasons import Reason


class Role(StrEnum):
    """What a field is for the cache."""

    KEY = "key"
    NEUTRAL = "neutral"
    BYPASS = "bypass"


Refusal = Callable[[Any], Reason | None]
"""Says why a value, which is not null, keeps a request from being looked up."""


@dataclass(frozen=True, slots=True)
class Field:
    """One top-level field of a request."""

    keyed: bool
    refusal: Refusal | None = None
    absent: Reason | None = None
    """Why a request without the field, or with null in it, is not looked up."""

    @property
    def role(self) -> Role:
        """The class by which the field is documented."""
        if self.refusal is not None:
            return Role.BYPASS
        return Role.KEY if self.keyed else Role.NEUTRAL


KEY = Field(keyed=True)
NEUTRAL = Field(keyed=False)

_PLAIN_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs; what any other does, or reads, is known upstream only."""


def _when_given(reason: Reason) -> Refusal:
    return lambda _: reason


def _when_true(reason: Reason) -> Refusal:
    return lambda value: reason if value is True else None


def _searching_model(model: Any) -> Reason | None:
    """Know models that search the web without being asked to by what is part of their names."""
    if (
        isinstance(model, str)
        and "search" in model
        and ("-search-preview" in model or "-search-api" in model or "-deep-research" in model)
    ):
        return Reason.WEB_SEARCH
    return None


def _hosted_tools(tools: Any) -> Reason | None:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind not in _PLAIN_TOOLS:
            searches = isinstance(kind, str) and kind.startswith("web_search")
            return Reason.WEB_SEARCH if searches else Reason.HOSTED_TOOLS
    return None


def _kept_upstream(items: Any) -> Reason | None:
    """Find input items that stand for something kept upstream, or that bring hosted tools."""
    for item in items if isinstance(items, list) else ():
        match item:
            case {"type": "additional_tools", **rest}:
                if (reason := _hosted_tools(rest.get("tools"))) is not None:
                    return reason
            case {"type": "item_reference"}:
                return Reason.CONVERSATION
            case {"type": str()} | {"role": _}:
                pass
            case _:  # a reference may come without its type
                return Reason.CONVERSATION
    return None


_MODEL = Field(keyed=True, refusal=_searching_model)
_TOOLS = Field(keyed=True, refusal=_hosted_tools)

_GENERATION: dict[str, Field] = {
    "model": _MODEL,
    "temperature": KEY,
    "top_p": KEY,
    "stream": NEUTRAL,
    "stream_options": NEUTRAL,
    "user": NEUTRAL,
    "safety_identifier": NEUTRAL,
    "metadata": NEUTRAL,
    "service_tier": NEUTRAL,
    "prompt_cache_key": NEUTRAL,
    "prompt_cache_retention": NEUTRAL,
    "prompt_cache_options": NEUTRAL,
    "store": Field(keyed=False, refusal=_when_true(Reason.STORE_TRUE)),
}
"""Fields that all generating endpoints share; servers take them where OpenAI does not, too."""

_SAMPLING: dict[str, Field] = _GENERATION | {
    "frequency_penalty": KEY,
    "presence_penalty": KEY,
    "logit_bias": KEY,
    "logprobs": KEY,
    "max_tokens": KEY,
    "n": KEY,
    "seed": KEY,
    "stop": KEY,
}

FIELDS: Mapping[Endpoint, Mapping[str, Field]] = {
    Endpoint.CHAT: _SAMPLING
    | {
        "messages": KEY,
        "audio": KEY,
        "function_call": KEY,
        "functions": KEY,
        "max_completion_tokens": KEY,
        "modalities": KEY,
        "moderation": KEY,
        "parallel_tool_calls": KEY,
        "prediction": KEY,
        "reasoning_effort": KEY,
        "response_format": KEY,
        "tool_choice": KEY,
        "tools": _TOOLS,
        "top_logprobs": KEY,
        "verbosity": KEY,
        "web_search_options": Field(keyed=True, refusal=_when_given(Reason.WEB_SEARCH)),
    },
    Endpoint.COMPLETIONS: _SAMPLING
    | {
        "prompt": KEY,
        "best_of": KEY,
        "echo": KEY,
        "suffix": KEY,
    },
    Endpoint.EMBEDDINGS: {
        "model": KEY,
        "input": KEY,
        "dimensions": KEY,
        "encoding_format": KEY,
        "user": NEUTRAL,
    },
    Endpoint.RESPONSES: _GENERATION
    | {
        "store": Field(
            keyed=False, refusal=_when_true(Reason.STORE_TRUE), absent=Reason.STORE_TRUE
        ),
        "input": Field(keyed=True, refusal=_kept_upstream),
        "background": Field(keyed=False, refusal=_when_true(Reason.BACKGROUND)),
        "context_management": KEY,
        "conversation": Field(keyed=True, refusal=_when_given(Reason.CONVERSATION)),
        "include": KEY,
        "instructions": KEY,
        "max_output_tokens": KEY,
        "max_tool_calls": KEY,
        "moderation": KEY,
        "parallel_tool_calls": KEY,
        "previous_response_id": Field(keyed=True, refusal=_when_given(Reason.PREVIOUS_RESPONSE)),
        "prompt": Field(keyed=True, refusal=_when_given(Reason.STORED_PROMPT)),
        "reasoning": KEY,
        "text": KEY,
        "tool_choice": KEY,
        "tools": _TOOLS,
        "top_logprobs": KEY,
        "truncation": KEY,
    },
}

_NEUTRAL: Mapping[Endpoint, frozenset[str]] = {
    endpoint: frozenset(name for name, field in fields.items() if not field.keyed)
    for endpoint, fields in FIELDS.items()
}
_REFUSALS: Mapping[Endpoint, tuple[tuple[str, Refusal, Reason | None], ...]] = {
    endpoint: tuple(
        (name, field.refusal, field.absent)
        for name, field in fields.items()
        if field.refusal is not None
    )
    for endpoint, fields in FIELDS.items()
}


def neutral_fields(endpoint: Endpoint) -> frozenset[str]:
    """Return the top-level fields that are left out of the canonical form."""
    return _NEUTRAL[endpoint]


def bypass_reason(endpoint: Endpoint, body: dict[str, Any]) -> Reason | None:
    """Return why a request's fields keep it from being looked up, or None."""
    for name, refusal, absent in _REFUSALS[endpoint]:
        value = body.get(name)
        reason = absent if value is None else refusal(value)
        if reason is not None:
            return reason
    return None
