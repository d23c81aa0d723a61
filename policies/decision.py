"""What the cache may do with a request: the values that a policy sets and the gateway obeys."""

from dataclasses import dataclass
from enum import StrEnum


class Endpoint(StrEnum):
    """Path of a cached endpoint: a policy matches it, and it is part of every cache key."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    RERANK = "/v1/rerank"


class Scope(StrEnum):
    """Who shares an entry: one tenant, one end user of one tenant, or everybody."""

    TENANT = "tenant"
    USER = "user"
    PUBLIC = "public"


class PiiAction(StrEnum):
    """What personal data in the prompt or the answer does."""

    BYPASS = "bypass"
    USER = "user"
    """What holds personal data is kept within the end user's own scope."""
    ALLOW = "allow"


class Priority(StrEnum):
    """The engine's lane for a request that is forwarded."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class SchemaKeys(StrEnum):
    """Which keys of a tool's schema go in one order."""

    ON = "on"
    KEYWORDS = "keywords"
    """The schema language's own, and not the names of properties."""
    OFF = "off"


class VolatileKind(StrEnum):
    """What the built-in detectors find in a prompt that is another at every request."""

    TIMESTAMPS = "timestamps"
    DATES = "dates"
    UUIDS = "uuids"
    REQUEST_IDS = "request_ids"
    COMMITS = "commits"
    USER_NAMES = "user_names"


class DocumentOrder(StrEnum):
    """How retrieved documents are ordered: by their digest, or what others had first."""

    CONTENT = "content"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class DocumentSettings:
    """By which markers retrieved documents are known, and their order."""

    begin: str
    end: str
    order: DocumentOrder = DocumentOrder.CONTENT


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """What of a prompt is rewritten on its way to the upstream, so that its prefix repeats."""

    schema_keys: SchemaKeys = SchemaKeys.ON
    sorts_tools: bool = False
    whitespace: bool = False
    volatile: tuple[VolatileKind, ...] = ()
    patterns: tuple[str, ...] = ()
    """RE2 patterns of what is volatile, too; where one has a group, that is what moves."""
    documents: DocumentSettings | None = None
    earlier_turns: bool = False
    """Whether texts of earlier turns are looked at, too, and not the system's alone."""


class Protected(StrEnum):
    """What a sentence may hold that keeps it in a prompt, whatever is asked."""

    NUMBERS = "numbers"
    NEGATION = "negation"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class CompressSettings:
    """What of a prompt is declared context, and how it is made shorter before it is sent."""

    enabled: bool = False
    markers: bool = True
    """Whether context in user turns stands between markers."""
    documents: DocumentSettings | None = None
    """Which ones; None: those of ``PrefixSettings``, if any."""
    tool_results: bool = False
    minify: bool = True
    duplicates: bool = True
    keep: float = 1.0
    """Share of a question's context, 0 to 1, down to which passages go that it does not need."""
    protect: frozenset[Protected] = frozenset(Protected)
    history: int = 0
    """User turns that stay of a long conversation, the earlier ones being summed up; 0: all."""
    min_gain: float = 0.05
    """Share of a question's context that must be saved, or all of it is sent as it was."""


class Breakpoints(StrEnum):
    """Where the stable prefix of a prompt is marked for the upstream."""

    OFF = "off"
    SYSTEM = "system"
    """At the ends of the system messages that come first."""
    EARLIER = "earlier"
    """There, and before the last user turn."""


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


class BreakpointLifetime(StrEnum):
    """How long Anthropic keeps what stands before a mark."""

    SHORT = "5m"
    LONG = "1h"


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


NO_HINTS = HintSettings()


CLEAN_FINISH_REASONS = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons of an answer that said all it had to say."""
DEFAULT_RULE = "default"
"""The name of the decision for what no rule matches."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the cache may do with a request, and which rule said so."""

    rule: str
    """Name of the rule, or ``default``."""
    exact: bool
    semantic: bool
    min_similarity: float
    """Least cosine similarity of a semantic hit, 0 to 1: a floor that never loosens the budget."""
    lifetime: float
    """Freshness lifetime in seconds."""
    scope: Scope
    pii: PiiAction
    generation: int
    """Part of every key: raised by the operator, it drops what is older."""
    max_wrong_hits: float = 0.01
    """Error budget: the share of semantic hits that may be wrong, 0 to 1."""
    shadow: bool = False
    """Look up by meaning and compare with the fresh answer, but serve nothing found so."""
    sample: float = 0.0
    """Share of semantic hits, 0 to 1, that are also asked upstream and compared."""
    promote: bool = False
    """Whether a near miss that was answered the same becomes an alias of its entry."""
    jitter: float = 0.0
    """Share of the lifetime, 0 to 1, by which an entry may expire sooner than others."""
    grace_revalidate: float = 0.0
    """Seconds past expiry in which a stale entry is served while it is revalidated."""
    grace_error: float = 0.0
    """Seconds past expiry in which a stale entry is served when the upstream fails."""
    max_followers: int = 10_000
    """Misses that may wait on one upstream call; 0 switches coalescing off."""
    follow_seconds: float = 600.0
    """The longest a follower waits for the first piece of its leader's answer."""
    finish_reasons: frozenset[str] = CLEAN_FINISH_REASONS
    """Finish reasons with which an answer may be stored."""
    max_temperature: float | None = None
    """Requests that ask for a higher temperature bypass; None: any."""
    max_prompt_tokens: int | None = None
    """Longer prompts are refused; None: any."""
    priority: Priority = Priority.NORMAL
    tags: tuple[str, ...] = ()
    """Words by which the operator finds and purges entries."""
    fallback_model: str | None = None
    """The model that answers where nobody who serves the one asked has room; None: none."""
    prefix: PrefixSettings = PrefixSettings()
    compress: CompressSettings = CompressSettings()
    hints: HintSettings = NO_HINTS
