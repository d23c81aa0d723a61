"""The decision on a request: the values that a policy sets and the gateway obeys.

``policies.format.settings`` and ``prompt_settings`` say what each does.
"""

from dataclasses import dataclass
from enum import StrEnum


class Endpoint(StrEnum):
    """Path of a cached endpoint: a policy matches it, and it is part of every cache key."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    RERANK = "/v1/rerank"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"


class Scope(StrEnum):
    """The clients that share an entry: a tenant, a team, an end user of a tenant, or all."""

    TENANT = "tenant"
    TEAM = "team"
    """Of a client without a team, its tenant."""
    USER = "user"
    PUBLIC = "public"


class PiiAction(StrEnum):
    """The effect of personal data in the prompt or the answer."""

    BYPASS = "bypass"
    USER = "user"
    """Entries with personal data are stored within the end user's own scope."""
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
    """Values that change with every request and that built-in detectors find in prompts."""

    TIMESTAMPS = "timestamps"
    DATES = "dates"
    UUIDS = "uuids"
    REQUEST_IDS = "request_ids"
    COMMITS = "commits"
    USER_NAMES = "user_names"


class DocumentOrder(StrEnum):
    """The order of retrieved documents: by their digest, or documents of earlier requests first."""

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
    """The rewrites of a prompt on its way to the upstream, so that its prefix repeats."""

    schema_keys: SchemaKeys = SchemaKeys.KEYWORDS
    sorts_tools: bool = False
    whitespace: bool = False
    volatile: tuple[VolatileKind, ...] = ()
    patterns: tuple[str, ...] = ()
    documents: DocumentSettings | None = None
    earlier_turns: bool = False


class Protected(StrEnum):
    """Content that keeps a sentence in a prompt, whatever the question is."""

    NUMBERS = "numbers"
    NEGATION = "negation"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class CompressSettings:
    """The declared context in a prompt, and how it is shortened before the prompt is sent."""

    enabled: bool = False
    markers: bool = True
    """Whether context in user turns stands between markers."""
    documents: DocumentSettings | None = None
    """The markers; None for the markers of ``PrefixSettings``, if any."""
    tool_results: bool = False
    minify: bool = True
    duplicates: bool = True
    keep: float = 1.0
    protect: frozenset[Protected] = frozenset(Protected)
    history: int = 0
    """0: all turns stay."""
    min_gain: float = 0.05


class Breakpoints(StrEnum):
    """Where the stable prefix of a prompt is marked for the upstream."""

    OFF = "off"
    SYSTEM = "system"
    """At the ends of the system messages that come first."""
    EARLIER = "earlier"
    """There, and before the last user turn."""


class BreakpointField(StrEnum):
    """The form of a mark."""

    AUTO = "auto"
    """By the model's name."""
    CACHE_CONTROL = "cache_control"
    """Anthropic's."""
    PROMPT_CACHE_BREAKPOINT = "prompt_cache_breakpoint"
    """OpenAI's, from gpt-5.6 on."""


MARKS = frozenset(each.value for each in BreakpointField if each is not BreakpointField.AUTO)
"""The fields in which marks are written."""


class BreakpointLifetime(StrEnum):
    """How long Anthropic keeps the prefix before a mark."""

    SHORT = "5m"
    LONG = "1h"


class KeyRetention(StrEnum):
    """The requested lifetime of prefixes at OpenAI."""

    UNSET = "off"
    DAY = "24h"


@dataclass(frozen=True, slots=True)
class HintSettings:
    """The hints to the upstream about a prompt's stable prefix."""

    breakpoints: Breakpoints = Breakpoints.OFF
    field: BreakpointField = BreakpointField.AUTO
    lifetime: BreakpointLifetime = BreakpointLifetime.SHORT
    min_tokens: int | None = None
    """None: by the model's name."""
    cache_key: bool = False
    keys: int = 1
    retention: KeyRetention = KeyRetention.UNSET


NO_HINTS = HintSettings()


CLEAN_FINISH_REASONS = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons of a complete answer."""
DEFAULT_RULE = "default"
"""The name of the decision for requests that no rule matches."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The cache's permissions for a request, and the rule that gave them.

    Durations are seconds, and shares are 0 to 1.
    """

    rule: str
    exact: bool
    semantic: bool
    min_similarity: float
    lifetime: float
    scope: Scope
    pii: PiiAction
    generation: int
    max_wrong_hits: float = 0.005
    shadow: bool = False
    sample: float = 0.0
    promote: bool = False
    jitter: float = 0.0
    grace_revalidate: float = 0.0
    grace_error: float = 0.0
    max_followers: int = 10_000
    """0 switches coalescing off."""
    follow_seconds: float = 600.0
    finish_reasons: frozenset[str] = CLEAN_FINISH_REASONS
    max_temperature: float | None = None
    """None: no bound."""
    max_prompt_tokens: int | None = None
    """None: no bound."""
    priority: Priority = Priority.NORMAL
    tags: tuple[str, ...] = ()
    fallback_model: str | None = None
    prefix: PrefixSettings = PrefixSettings()
    compress: CompressSettings = CompressSettings()
    hints: HintSettings = NO_HINTS
