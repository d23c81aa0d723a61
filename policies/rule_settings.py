"""What a rule sets, and the decision that comes of it.

Law: what is left out is as in ``default``, and what that leaves out is as in ``Decision``; so it
is for the keys of ``semantic``, ``grace``, ``coalescing``, ``prefix``, ``compress`` and ``hints``.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from policies.compress_settings import Compress, compress_settings
from policies.decide import Decision, PiiAction, Priority, Scope
from policies.fields import (
    DEFAULT_RULE,
    Duration,
    DurationOrOff,
    ErrorBudget,
    FinishReason,
    Followers,
    ModelOrOff,
    OnOff,
    Percent,
    PiiActionName,
    PriorityName,
    PromptTokens,
    ScopeName,
    Similarity,
    Tag,
    Temperature,
    duration_or_off,
)
from policies.hint_settings import Hints, hint_settings
from policies.mappings import FilledSpec, MappingSpec
from policies.prefix_settings import Prefix, prefix_settings
from policies.shapes import OFF, AnyNumber, Described, OneOrMany, OrShort, or_on_off

DEFAULT_MAX_WRONG_HITS = 0.01
DEFAULT_MIN_SIMILARITY = 0.75
DEFAULT_FOLLOWERS = 10_000


class SemanticSpec(FilledSpec):
    """Semantic cache in detail."""

    enabled: OnOff = Field(default=True, description="Look up by meaning.", examples=["on"])
    max_wrong_hits: ErrorBudget | None = Field(
        default=None,
        description=(
            "Error budget: of the answers served by meaning, the share that may be wrong. How "
            "sure a hit must be follows from it. Unset: that of the default settings, and "
            f"{DEFAULT_MAX_WRONG_HITS:.0%} where they do not set it."
        ),
        examples=["1%", "0.5%"],
    )
    min_similarity: Similarity | None = Field(
        default=None,
        description=(
            "A further floor, which never loosens the budget: the least cosine similarity of the "
            "question asked and the one stored. Unset: that of the default settings, and "
            f"{DEFAULT_MIN_SIMILARITY} where they do not set it."
        ),
        examples=[0.97],
    )
    shadow: OnOff | None = Field(
        default=None,
        description=(
            "Look up, serve nothing that is found so, and compare it with the fresh answer. "
            "Unset: as in the default settings, and off where they do not say."
        ),
        examples=["on"],
    )
    sample: Percent | None = Field(
        default=None,
        description=(
            "Share of the hits that are also asked upstream, behind the client's back, and "
            "compared. Each costs a call. Unset: likewise, and 0%."
        ),
        examples=["1%"],
    )
    promote: OnOff | None = Field(
        default=None,
        description=(
            "A question that was only just refused, and then answered the same, may be answered "
            "from that entry from then on. Unset: likewise, and off."
        ),
        examples=["on"],
    )


class GraceSpec(FilledSpec):
    """Stale answers in detail."""

    while_revalidate: DurationOrOff | None = Field(
        default=None,
        description=(
            "For so long after it went stale an answer is still served, at once, while a new one "
            "is fetched behind it (RFC 5861)."
        ),
        examples=["1m", "off"],
    )
    if_error: DurationOrOff | None = Field(
        default=None,
        description=(
            "For so long after it went stale an answer is served when the upstream cannot be "
            "reached or answers 500, 502, 503 or 504 (RFC 5861)."
        ),
        examples=["1d", "off"],
    )


def _one_grace(value: object) -> dict[str, Any]:
    duration_or_off(value)
    return dict.fromkeys(GraceSpec.model_fields, value)


class CoalescingSpec(FilledSpec):
    """One call for identical misses, in detail."""

    enabled: OnOff = Field(
        default=True, description="Let misses wait on a call under way.", examples=["on"]
    )
    followers: Followers | None = Field(
        default=None,
        description="The most requests that may wait on one call; more make calls of their own.",
        examples=[10000],
    )
    wait: Duration | None = Field(
        default=None,
        description="The longest a request waits for the answer to begin.",
        examples=["10m"],
    )


Exact = Annotated[
    OnOff,
    Described(
        description="Answer a request from what the very same request was answered.",
        examples=("on",),
    ),
]
Semantic = Annotated[
    SemanticSpec,
    or_on_off("{max_wrong_hits: 1%}"),
    Described(
        description="Answer a question from what one of the same meaning was answered.",
        examples=("off", {"max_wrong_hits": "0.5%"}),
    ),
]
FreshnessLifetime = Annotated[
    Duration,
    Described(
        description="How long an answer stays fresh: a number and its unit, s, m, h, d or w.",
        examples=("10m", "24h", "7d"),
    ),
]
Jitter = Annotated[
    Percent,
    Described(
        description=(
            "Answers expire sooner by a share of their lifetime, another one each, up to this: "
            "what was stored together does not expire together."
        ),
        examples=("10%",),
    ),
]
Grace = Annotated[
    GraceSpec,
    OrShort(
        _one_grace,
        (OFF, {"type": "string", "pattern": r"^[1-9][0-9]{0,9}[smhdw]$"}),
        "off, a duration such as 10m, or a mapping such as {while_revalidate: 1m, if_error: 1d}",
    ),
    Described(
        description="How long a stale answer may still be served, and when. One duration: both.",
        examples=("10m", {"while_revalidate": "1m", "if_error": "1d"}, "off"),
    ),
]
Coalescing = Annotated[
    CoalescingSpec,
    or_on_off("{followers: 1000}"),
    Described(
        description="Identical misses at one time make one call, which answers all of them.",
        examples=("off", {"followers": 10000, "wait": "10m"}),
    ),
]
FinishReasons = Annotated[
    OneOrMany[FinishReason],
    Described(
        description=(
            "Finish reasons with which an answer may be stored. length stores answers that were "
            "cut at max_tokens."
        ),
        examples=(["stop", "tool_calls", "function_call"], ["stop", "length"]),
    ),
]
MaxTemperature = Annotated[
    Temperature,
    Described(
        description=(
            "Requests that ask for a higher temperature pass by the cache; those that ask for "
            "none do not. any: no bound."
        ),
        examples=(0.3, "any"),
    ),
]
MaxPromptTokens = Annotated[
    PromptTokens,
    Described(
        description="Longer prompts are refused with 400. any: no bound.",
        examples=(32000, "any"),
    ),
]
EnginePriority = Annotated[
    PriorityName,
    Described(
        description="The engine's lane for what is forwarded; other upstreams are not told.",
        examples=("high",),
    ),
]
SharedBy = Annotated[
    ScopeName,
    Described(
        description=(
            "Who shares answers. tenant: an API key with its organization and project. user: one "
            "end user of a tenant, named by the request's safety_identifier or user. public: "
            "everybody."
        ),
        examples=("tenant",),
    ),
]
PersonalData = Annotated[
    PiiActionName,
    Described(
        description=(
            "bypass: a prompt with personal data or secrets is not looked up, an answer with "
            "them is not stored. user: both are kept within the end user's own scope. allow: "
            "nothing is scanned."
        ),
        examples=("bypass", "user"),
    ),
]
Tags = Annotated[
    AnyNumber[Tag],
    Described(
        description="Words by which to find and purge the answers that are stored.",
        examples=("catalog", ["catalog", "team:shop"]),
    ),
]


FallbackModel = Annotated[
    ModelOrOff,
    Described(
        description=(
            "A smaller model that answers where every upstream of the model asked is at its "
            "limits, rests or fails. The reply names it. off: none."
        ),
        examples=("qwen3-4b", "off"),
    ),
]


class SettingsSpec(MappingSpec):
    """What a rule sets; what it leaves out is as in ``default``."""

    exact: Exact | None = None
    semantic: Semantic | None = None
    freshness: FreshnessLifetime | None = None
    jitter: Jitter | None = None
    grace: Grace | None = None
    coalescing: Coalescing | None = None
    finish_reasons: FinishReasons | None = None
    max_temperature: MaxTemperature | None = None
    max_prompt_tokens: MaxPromptTokens | None = None
    priority: EnginePriority | None = None
    scope: SharedBy | None = None
    pii: PersonalData | None = None
    tags: Tags | None = None
    prefix: Prefix | None = None
    compress: Compress | None = None
    hints: Hints | None = None
    fallback_model: FallbackModel | None = None


class DefaultSpec(SettingsSpec):
    """Settings of requests that no rule matches, and of what a rule leaves out."""

    exact: Exact
    semantic: Semantic
    freshness: FreshnessLifetime
    scope: SharedBy
    pii: PersonalData


def default_decision(settings: DefaultSpec, generation: int) -> Decision:
    """Return the decision for what no rule matches."""
    bare = Decision(
        rule=DEFAULT_RULE,
        exact=settings.exact,
        semantic=settings.semantic.enabled,
        min_similarity=DEFAULT_MIN_SIMILARITY,
        max_wrong_hits=DEFAULT_MAX_WRONG_HITS,
        lifetime=float(settings.freshness),
        scope=Scope(settings.scope),
        pii=PiiAction(settings.pii),
        generation=generation,
    )
    return replace(bare, **_set(settings, bare))


def rule_decision(name: str, settings: SettingsSpec, default: Decision) -> Decision:
    """Return the decision of a rule."""
    return replace(default, rule=name, **_set(settings, default))


def _set(settings: SettingsSpec, inherited: Decision) -> dict[str, Any]:
    """Return the fields of a decision that these settings set.

    Where None is a value (a bound that is lifted), only what is written counts as set.
    """
    given = settings.model_fields_set
    found: dict[str, Any] = {
        "exact": settings.exact,
        "lifetime": None if settings.freshness is None else float(settings.freshness),
        "jitter": settings.jitter,
        "finish_reasons": settings.finish_reasons and frozenset(settings.finish_reasons),
        "priority": settings.priority and Priority(settings.priority),
        "scope": settings.scope and Scope(settings.scope),
        "pii": settings.pii and PiiAction(settings.pii),
        "tags": None if settings.tags is None else tuple(dict.fromkeys(settings.tags)),
    }
    if settings.semantic is not None:
        found["semantic"] = settings.semantic.enabled
        found["max_wrong_hits"] = settings.semantic.max_wrong_hits
        found["min_similarity"] = settings.semantic.min_similarity
        found["shadow"] = settings.semantic.shadow
        found["sample"] = settings.semantic.sample
        found["promote"] = settings.semantic.promote
    if settings.grace is not None:
        found["grace_revalidate"] = _seconds(settings.grace.while_revalidate)
        found["grace_error"] = _seconds(settings.grace.if_error)
    if settings.prefix is not None:
        found["prefix"] = prefix_settings(settings.prefix, inherited.prefix)
    if settings.compress is not None:
        found["compress"] = compress_settings(settings.compress, inherited.compress)
    if settings.hints is not None:
        found["hints"] = hint_settings(settings.hints, inherited.hints)
    if settings.coalescing is not None:
        found |= _coalescing(settings.coalescing, inherited)
    written = {name: value for name, value in found.items() if value is not None}
    if "max_temperature" in given:
        written["max_temperature"] = settings.max_temperature
    if "max_prompt_tokens" in given:
        written["max_prompt_tokens"] = settings.max_prompt_tokens
    if "fallback_model" in given:
        written["fallback_model"] = settings.fallback_model
    return written


def _coalescing(settings: CoalescingSpec, inherited: Decision) -> dict[str, Any]:
    followers = settings.followers or inherited.max_followers or DEFAULT_FOLLOWERS
    return {
        "max_followers": followers if settings.enabled else 0,
        "follow_seconds": _seconds(settings.wait),
    }


def _seconds(value: int | None) -> float | None:
    return None if value is None else float(value)
