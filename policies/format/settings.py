"""The settings of a rule, and the decision made from them.

Law: what is left out is as in ``default``, and what that leaves out is as in ``Decision``; so it
is for the keys of ``semantic``, ``grace``, ``coalescing``, ``prefix``, ``compress`` and ``hints``.
"""

from dataclasses import replace
from typing import Any

from policies.decision import DEFAULT_RULE, Decision, PiiAction, Priority, Scope
from policies.format import synonyms
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

DEFAULT_MAX_WRONG_HITS = 0.005
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
        "Error budget: the share of hits by meaning that may be wrong, `0.01%` to `20%`. The "
        "threshold of a hit follows from it.",
        ("1%", "0.5%"),
    ),
    Key(
        "min_similarity",
        SIMILARITY,
        "A second minimum, which never loosens the budget: the cosine similarity of the two "
        "questions.",
        (0.97,),
    ),
    Key(
        "shadow",
        ON_OFF,
        "Look up but serve nothing, and compare what is found with the fresh answer.",
    ),
    Key(
        "sample",
        PERCENT,
        "Share of the hits that are compared with a fresh answer in the background. Each costs a "
        "call.",
        ("1%",),
    ),
    Key(
        "promote",
        ON_OFF,
        "If a question was just below the threshold and its fresh answer is the same, later "
        "requests of it may get the entry.",
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
        "How long a stale answer is served at once, while a fresh one is fetched in the "
        "background (RFC 5861).",
        ("1m", "off"),
        sets="grace_revalidate",
    ),
    Key(
        "if_error",
        DURATION_OR_OFF,
        "How long a stale answer is served if the upstream cannot be reached or answers 500, 502,"
        " 503 or 504 (RFC 5861).",
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
    Key("enabled", ON_OFF, "Identical misses wait for one call.", sets="max_followers", unset=True),
    Key(
        "followers",
        whole(1, MOST_FOLLOWERS),
        "The most requests that wait for one call. Further requests make their own calls.",
        (10000,),
        sets="max_followers",
    ),
    Key(
        "wait",
        DURATION,
        "The longest time that a request waits for the answer to begin.",
        ("10m",),
        sets="follow_seconds",
    ),
    short=on_or_off("{followers: 1000}"),
)

SETTINGS = Table(
    "DefaultSpec",
    "Settings for requests that match no rule, and for keys that a rule omits.",
    Key(
        "exact",
        ON_OFF,
        "Answer a request with the stored answer of the same request.",
        required=True,
    ),
    Key(
        "semantic",
        SEMANTIC,
        "Answer a question with the stored answer of a question of the same meaning. Everything "
        "else in the request must be equal.",
        ("off", {"max_wrong_hits": "0.5%"}),
        required=True,
    ),
    Key(
        "freshness",
        DURATION,
        "How long an answer stays fresh: a number and a unit (s, m, h, d or w), 68 years at most.",
        ("10m", "24h", "7d"),
        sets="lifetime",
        required=True,
    ),
    Key(
        "jitter",
        PERCENT,
        "Each answer expires sooner by its own share of the lifetime, up to this. So answers that"
        " were stored together do not expire together.",
        ("10%",),
    ),
    Key(
        "grace",
        GRACE,
        "How long a stale answer may still be served, and when. One duration sets both times.",
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
        "An answer with one of these finish reasons may be stored. `length` stores answers that "
        "were cut.",
        (["stop", "tool_calls", "function_call"], ["stop", "length"]),
    ),
    Key(
        "max_temperature",
        or_word(decimal(0, MOST_TEMPERATURE), ANY, None),
        "Requests with a higher temperature bypass the cache. A request without a temperature "
        "does not.",
        (0.3, "any"),
    ),
    Key(
        "max_prompt_tokens",
        or_word(whole(1, MOST_PROMPT_TOKENS), ANY, None),
        "Longer prompts are refused with 400.",
        (32000, "any"),
    ),
    Key(
        "priority",
        members(Priority),
        "The engine's queue for forwarded requests. Other upstreams do not get it.",
    ),
    Key(
        "scope",
        members(Scope, synonyms.SCOPE),
        "Who shares answers. `tenant`: one API key with its organization and project. `team`: "
        "gateway keys of one team; without a team, as `tenant`. `user`: one end user of a tenant,"
        " named by the request's `safety_identifier` or `user`; without a name the request is not"
        " cached. `public`: everybody.",
        required=True,
    ),
    Key(
        "pii",
        members(PiiAction, synonyms.PII),
        "`bypass`: a prompt with personal data or secrets is not looked up, and an answer with "
        "them is not stored. `user`: both are stored in the end user's own scope. `allow`: "
        "nothing is scanned.",
        required=True,
    ),
    Key(
        "tags",
        ListOf(TAG, least=0, into=unique),
        "Words to find and purge entries by.",
        ("catalog", ["catalog", "team:shop"]),
    ),
    Key(
        "prefix",
        PREFIX,
        "How prompts are rewritten before they are forwarded, so that the upstream's prefix cache"
        " hits. Cache keys, the scan and the last user turn do not change.",
        ({"tools": "sorted", "volatile": ["timestamps"]}, "off"),
        sets="prefix",
    ),
    Key(
        "compress",
        COMPRESS,
        "How declared context is shortened before it is forwarded. Cache keys, the scan, the "
        "user's own words, and system and developer messages do not change.",
        ({"documents": {"begin": "<document>", "end": "</document>"}}, "off"),
        sets="compress",
    ),
    Key(
        "hints",
        HINTS,
        "Marks and keys that tell the upstream about a prompt's stable prefix, so that a "
        "provider's prefix cache hits. The client's own marks and keys stay.",
        ({"breakpoints": "system"}, {"cache_key": "on", "keys": 4}, "off"),
        sets="hints",
    ),
    Key(
        "fallback_model",
        or_word(MODEL, "off", None),
        "A smaller model that answers if every upstream of the requested model is at its limits, "
        "in a pause, or fails. The reply names it.",
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
