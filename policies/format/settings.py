"""The settings of a rule, and the decision made from them.

Law: what is left out is as in ``default``, and what that leaves out is as in ``Decision``; so it
is for the keys of ``semantic``, ``grace``, ``coalescing``, ``prefix``, ``compress`` and ``hints``.
"""

from dataclasses import replace
from typing import Any

from policies.decision import DEFAULT_RULE, Decision, PiiAction, Priority, Scope
from policies.format.prompt_settings import COMPRESS, HINTS, PREFIX
from policies.format.table import OFF, Key, ListOf, Short, Table, on_or_off, unique
from policies.format.values import (
    ANY,
    DURATION,
    DURATION_OR_OFF,
    ERROR_BUDGET,
    FINISH_REASON,
    MODEL,
    ON_OFF,
    PERCENT,
    SIMILARITY,
    TAG,
    decimal,
    members,
    or_word,
    whole,
)

DEFAULT_MAX_WRONG_HITS = 0.01
DEFAULT_MIN_SIMILARITY = 0.75
DEFAULT_FOLLOWERS = 10_000
MOST_FOLLOWERS = 1_000_000
MOST_TEMPERATURE = 2
MOST_PROMPT_TOKENS = 2**31

_NOTHING_SET = Decision(
    rule=DEFAULT_RULE,
    exact=False,
    semantic=False,
    min_similarity=DEFAULT_MIN_SIMILARITY,
    max_wrong_hits=DEFAULT_MAX_WRONG_HITS,
    lifetime=0.0,
    scope=Scope.USER,
    pii=PiiAction.BYPASS,
    generation=0,
)


class _Coalescing(Table):
    """Switched on again, it has the bound that is inherited, or the usual one."""

    def fields(self, mapping: dict[str, Any], inherited: Decision) -> dict[str, Any]:
        found = super().fields(mapping, inherited)
        followers = mapping.get("followers") or inherited.max_followers or DEFAULT_FOLLOWERS
        return {**found, "max_followers": followers if mapping["enabled"] else 0}


def _both_graces(value: object) -> dict[str, Any]:
    DURATION_OR_OFF.read(value)
    return {"while_revalidate": value, "if_error": value}


def _grace_words(mapping: dict[str, Any]) -> Any:
    revalidate, error = mapping.values()
    return error if revalidate == error else mapping


SEMANTIC = Table(
    "SemanticSpec",
    "Semantic cache in detail.",
    Key("enabled", ON_OFF, "Look up by meaning.", sets="semantic", unset=True),
    Key(
        "max_wrong_hits",
        ERROR_BUDGET,
        "Error budget: of the answers served by meaning, the share that may be wrong. How sure a "
        "hit must be follows from it.",
        ("1%", "0.5%"),
    ),
    Key(
        "min_similarity",
        SIMILARITY,
        "A further floor, which never loosens the budget: the least cosine similarity of the "
        "question asked and the one stored.",
        (0.97,),
    ),
    Key(
        "shadow",
        ON_OFF,
        "Look up, serve nothing that is found so, and compare it with the fresh answer.",
    ),
    Key(
        "sample",
        PERCENT,
        "Share of the hits that are also asked upstream, behind the client's back, and compared. "
        "Each costs a call.",
        ("1%",),
    ),
    Key(
        "promote",
        ON_OFF,
        "A question that was only just refused, and then answered the same, may be answered from "
        "that entry from then on.",
    ),
    short=on_or_off("{max_wrong_hits: 1%}"),
    neutral=_NOTHING_SET,
)

GRACE = Table(
    "GraceSpec",
    "Stale answers in detail.",
    Key(
        "while_revalidate",
        DURATION_OR_OFF,
        "For so long after it went stale an answer is still served, at once, while a new one is "
        "fetched behind it (RFC 5861).",
        ("1m", "off"),
        sets="grace_revalidate",
    ),
    Key(
        "if_error",
        DURATION_OR_OFF,
        "For so long after it went stale an answer is served when the upstream cannot be reached "
        "or answers 500, 502, 503 or 504 (RFC 5861).",
        ("1d", "off"),
        sets="grace_error",
    ),
    short=Short(
        _both_graces,
        (OFF, DURATION.schema),
        "off, a duration such as 10m, or a mapping such as {while_revalidate: 1m, if_error: 1d}",
        _grace_words,
    ),
)

COALESCING = _Coalescing(
    "CoalescingSpec",
    "One call for identical misses, in detail.",
    Key(
        "enabled", ON_OFF, "Let misses wait on a call under way.", sets="max_followers", unset=True
    ),
    Key(
        "followers",
        whole(1, MOST_FOLLOWERS),
        "The most requests that may wait on one call; more make calls of their own.",
        (10000,),
        sets="max_followers",
    ),
    Key(
        "wait",
        DURATION,
        "The longest a request waits for the answer to begin.",
        ("10m",),
        sets="follow_seconds",
    ),
    short=on_or_off("{followers: 1000}"),
)

SETTINGS = Table(
    "DefaultSpec",
    "Settings of requests that no rule matches, and of what a rule leaves out.",
    Key(
        "exact",
        ON_OFF,
        "Answer a request from what the very same request was answered.",
        required=True,
    ),
    Key(
        "semantic",
        SEMANTIC,
        "Answer a question from what one of the same meaning was answered.",
        ("off", {"max_wrong_hits": "0.5%"}),
        required=True,
    ),
    Key(
        "freshness",
        DURATION,
        "How long an answer stays fresh: a number and its unit, s, m, h, d or w.",
        ("10m", "24h", "7d"),
        sets="lifetime",
        required=True,
    ),
    Key(
        "jitter",
        PERCENT,
        "Answers expire sooner by a share of their lifetime, another one each, up to this: what "
        "was stored together does not expire together.",
        ("10%",),
    ),
    Key(
        "grace",
        GRACE,
        "How long a stale answer may still be served, and when. One duration: both.",
        ("10m", {"while_revalidate": "1m", "if_error": "1d"}, "off"),
    ),
    Key(
        "coalescing",
        COALESCING,
        "Identical misses at one time make one call, which answers all of them.",
        ("off", {"followers": 10000, "wait": "10m"}),
    ),
    Key(
        "finish_reasons",
        ListOf(FINISH_REASON, into=frozenset),
        "Finish reasons with which an answer may be stored. length stores answers that were cut "
        "at max_tokens.",
        (["stop", "tool_calls", "function_call"], ["stop", "length"]),
    ),
    Key(
        "max_temperature",
        or_word(decimal(0, MOST_TEMPERATURE), ANY, None),
        "Requests that ask for a higher temperature pass by the cache; those that ask for none do "
        "not. any: no bound.",
        (0.3, "any"),
    ),
    Key(
        "max_prompt_tokens",
        or_word(whole(1, MOST_PROMPT_TOKENS), ANY, None),
        "Longer prompts are refused with 400. any: no bound.",
        (32000, "any"),
    ),
    Key(
        "priority",
        members(Priority),
        "The engine's lane for what is forwarded; other upstreams are not told.",
    ),
    Key(
        "scope",
        members(Scope),
        "Who shares answers. tenant: an API key with its organization and project. team: gateway "
        "keys of one team; without a team, as tenant. user: one end user of a tenant, named by the "
        "request's safety_identifier or user. public: everybody.",
        required=True,
    ),
    Key(
        "pii",
        members(PiiAction),
        "bypass: a prompt with personal data or secrets is not looked up, an answer with them is "
        "not stored. user: both are kept within the end user's own scope. allow: nothing is "
        "scanned.",
        required=True,
    ),
    Key(
        "tags",
        ListOf(TAG, least=0, into=unique),
        "Words by which to find and purge the answers that are stored.",
        ("catalog", ["catalog", "team:shop"]),
    ),
    Key(
        "prefix",
        PREFIX,
        "How prompts are rewritten on their way to the upstream, so that its prefix cache hits. "
        "Keys of the cache, the scan and the last user turn are left alone. off: not at all.",
        ({"tools": "sorted", "volatile": ["timestamps"]}, "off"),
        sets="prefix",
    ),
    Key(
        "compress",
        COMPRESS,
        "Declared context is made shorter on its way to the upstream. Keys of the cache, the "
        "scan, the user's own words and what system and developer say are left alone.",
        ({"documents": {"begin": "<document>", "end": "</document>"}}, "off"),
        sets="compress",
    ),
    Key(
        "hints",
        HINTS,
        "What the upstream is told of a prompt's stable prefix, so that a provider's prefix cache "
        "hits. What the client says of it stays. off: nothing.",
        ({"breakpoints": "system"}, {"cache_key": "on", "keys": 4}, "off"),
        sets="hints",
    ),
    Key(
        "fallback_model",
        or_word(MODEL, "off", None),
        "A smaller model that answers where every upstream of the model asked is at its limits, "
        "rests or fails. The reply names it. off: none.",
        ("qwen3-4b", "off"),
    ),
    filled=False,
)


def default_decision(settings: dict[str, Any], generation: int) -> Decision:
    """Return the decision for requests that no rule matches."""
    bare = replace(_NOTHING_SET, generation=generation)
    return replace(bare, **SETTINGS.fields(settings, bare))


def rule_decision(name: str, settings: dict[str, Any], default: Decision) -> Decision:
    """Return the decision of a rule."""
    return replace(default, rule=name, **SETTINGS.fields(settings, default))


def settings_of(decision: Decision) -> dict[str, Any]:
    """Return a decision in the words of the file, as if one rule had set all of it."""
    words: dict[str, Any] = SETTINGS.words(decision)
    return words
