"""From the facts of a request to what the cache may do with it.

A policy is compiled once (``policies.parse``) and then only read: deciding is a pure function of
the facts, the first rule that matches wins, and ``default`` answers for all that no rule matches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.hints import NO_HINTS, HintSettings
from policies.plain_enum import plain_members


@plain_members
class Scope(StrEnum):
    """Who shares an entry: one tenant, one end user of one tenant, or everybody."""

    TENANT = "tenant"
    USER = "user"
    PUBLIC = "public"


@plain_members
class PiiAction(StrEnum):
    """What personal data in the prompt or the answer does."""

    BYPASS = "bypass"
    USER = "user"
    """What holds personal data is kept within the end user's own scope."""
    ALLOW = "allow"


@plain_members
class Priority(StrEnum):
    """The engine's lane for a request that is forwarded."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@plain_members
class SchemaKeys(StrEnum):
    """Which keys of a tool's schema go in one order."""

    ON = "on"
    KEYWORDS = "keywords"
    """The schema language's own, and not the names of properties."""
    OFF = "off"


@plain_members
class VolatileKind(StrEnum):
    """What the built-in detectors find in a prompt that is another at every request."""

    TIMESTAMPS = "timestamps"
    DATES = "dates"
    UUIDS = "uuids"
    REQUEST_IDS = "request_ids"
    COMMITS = "commits"
    USER_NAMES = "user_names"


@plain_members
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

    @property
    def changes_texts(self) -> bool:
        """Tell whether anything but tools is rewritten."""
        return bool(self.whitespace or self.volatile or self.patterns or self.documents)


@plain_members
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


CLEAN_FINISH_REASONS = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons of an answer that said all it had to say."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """All that a policy may look at."""

    endpoint: str
    """Path, such as ``/v1/chat/completions``."""
    model: str
    headers: Mapping[str, str]
    """Names in lower case."""
    credential_sha256: str | None
    """Lower-case hex digest of the API key; None when the client sent none."""
    organization: str | None
    project: str | None
    last_user_text: str | None
    """All text parts of the last user message; None when it has none."""
    system_text: str | None
    """System and developer messages joined by line feeds; hashed only if a rule asks."""


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


Test = Callable[[RequestFacts], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a ``match``, and whether facts meet it."""

    key: str
    """Its place in ``match``, such as ``content.keywords``."""
    wanted: tuple[str, ...]
    """What the key holds, as written; any one will do."""
    holds: Test


@dataclass(frozen=True, slots=True)
class Considered:
    """A rule that was looked at, and what kept it from deciding; nothing if it decided."""

    rule: str
    failed: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for the requests that meet all conditions."""

    conditions: tuple[Condition, ...]
    decision: Decision

    @property
    def name(self) -> str:
        """Unique within the policy."""
        return self.decision.rule


@dataclass(frozen=True, slots=True)
class Policy:
    """A compiled policy file."""

    source: str
    """Where the text came from, for messages."""
    generation: int
    regions: tuple[str, ...]
    """ISO 3166 codes of the regions whose phone numbers the PII scan knows."""
    rules: tuple[Rule, ...]
    default: Decision
    allowed: tuple[str, ...] = ()
    """The operator's public contacts, which are no personal data."""

    def decide(self, facts: RequestFacts) -> Decision:
        """Return the decision of the first rule that matches, else the default. Never raises."""
        for rule in self.rules:
            for condition in rule.conditions:
                if not condition.holds(facts):
                    break
            else:
                return rule.decision
        return self.default

    def considered(self, facts: RequestFacts) -> tuple[Considered, ...]:
        """Return what ``decide`` looks at in turn, the rule that decides last; all that failed."""
        found = []
        for rule in self.rules:
            failed = tuple(each for each in rule.conditions if not each.holds(facts))
            found.append(Considered(rule.name, failed))
            if not failed:
                return tuple(found)
        return (*found, Considered(self.default.rule, ()))
