"""The ``Cache-Status`` reply header (RFC 9211), and the reasons for a request's outcome.

Law: metrics, logs, traces and explanations use the same words, all members of ``Reason``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """One word for each way; what is printed never changes its meaning."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    # Why a request was not looked up (fwd=bypass) or its answer not taken (fwd=request).
    NO_STORE = "no-store"
    NO_CACHE = "no-cache"
    PII = "pii"
    STORE_TRUE = "store-true"
    POLICY = "policy"
    NO_USER = "no-user"
    TEMPERATURE = "temperature"
    WEB_SEARCH = "web-search"
    BACKGROUND = "background"
    CONVERSATION = "conversation"
    STORED_PROMPT = "stored-prompt"
    PREVIOUS_RESPONSE = "previous-response-id"
    HOSTED_TOOLS = "hosted-tools"
    REALTIME = "realtime"
    FRESHNESS = "freshness"
    ONLY_IF_CACHED = "only-if-cached"
    # Why a stale entry was served.
    STALE_WHILE_REVALIDATE = "stale-while-revalidate"
    STALE_IF_ERROR = "stale-if-error"
    # Why a request may hit only exactly, and is neither looked up nor found by meaning: its kind,
    # then its question.
    ENDPOINT = "endpoint"
    TOOLS = "tools"
    TOOL_RESULTS = "tool-results"
    NOT_TEXT = "not-text"
    LAST_TURN = "last-turn"
    EMPTY_TEXT = "empty-text"
    TEXT_TOO_LONG = "text-too-long"
    UNREADABLE_TEXT = "unreadable-text"
    LANGUAGE = "language"
    CODE = "code"
    STUFFED = "stuffed"
    INSTRUCTIONS = "instructions"
    PAYLOAD = "payload"
    MANY_QUESTIONS = "many-questions"
    FOLLOW_UP = "follow-up"
    VAGUE = "vague"
    VARIETY = "variety"
    TIME = "time"
    # Why a semantic candidate was not served.
    SHADOW = "shadow"
    SEMANTIC_OFF = "semantic-off"
    # How a miss was answered without its own call.
    COLLAPSED = "collapsed"
    PARTIAL = "partial"
    LOCAL = "local"
    # Why an answer was declined by admission.
    UPSTREAM_STATUS = "upstream-status"
    UNCLEAN = "unclean"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    FINISH_REASON = "finish-reason"
    INVALID_JSON = "invalid-json"
    INVALID_TOOL_CALL = "invalid-tool-call"
    REFUSAL = "refusal"
    EMPTY = "empty"
    UNKNOWN_SHAPE = "unknown-shape"
    TOO_LARGE = "too-large"
    STORE_FAULT = "store-fault"
    SCAN_FAULT = "scan-fault"
    # Faults on the way.
    UPSTREAM_UNREACHABLE = "upstream-unreachable"
    UPSTREAM_TIMEOUT = "upstream-timeout"
    UPSTREAM_BROKE = "upstream-broke"
    UPSTREAM_LIMITED = "upstream-limited"
    UPSTREAM_REFUSED = "upstream-refused"
    UPSTREAM_BUSY = "upstream-busy"
    NOT_KEPT = "not-kept"
    CLIENT_GONE = "client-gone"
    CLIENT_TIMEOUT = "client-timeout"
    UNAUTHORIZED = "unauthorized"
    MODEL_NOT_ALLOWED = "model-not-allowed"
    PATH_NOT_ALLOWED = "path-not-allowed"
    KEY_LIMIT = "key-limit"
    KEY_BUDGET = "key-budget"
    KEY_COUNTS = "key-counts"
    PROMPT_TOO_LONG = "prompt-too-long"
    INVALID_REQUEST = "invalid-request"
    INTERNAL = "internal-error"


WHY = {
    Reason.NO_STORE: "the request says Cache-Control: no-store",
    Reason.STORE_TRUE: "the request asks the upstream to store it",
    Reason.POLICY: "the policy switches the cache off for it",
    Reason.NO_USER: "scope is user, and the request names no end user",
    Reason.TEMPERATURE: "its temperature is over max_temperature",
    Reason.PII: "it holds personal data or secrets",
    Reason.WEB_SEARCH: "it searches the web",
    Reason.BACKGROUND: "it runs in the background",
    Reason.CONVERSATION: "it goes on from what is kept upstream",
    Reason.PREVIOUS_RESPONSE: "it goes on from what is kept upstream",
    Reason.STORED_PROMPT: "its prompt is kept upstream",
    Reason.HOSTED_TOOLS: "it uses tools that run upstream",
    Reason.REALTIME: "it is a live session over a WebSocket",
    Reason.PROMPT_TOO_LONG: "the prompt is over max_prompt_tokens",
    Reason.ONLY_IF_CACHED: "the request wants a stored answer only (504)",
    Reason.NO_CACHE: "the request says Cache-Control: no-cache",
    Reason.FRESHNESS: "the request's Cache-Control refuses the entry's age",
}
"""Why a request was not looked up, or not answered from a store, in words."""

WHY_EXACT_ONLY = {
    Reason.ENDPOINT: "only chat completions and responses are looked up by meaning",
    Reason.TOOLS: "with tools the answer may be an action",
    Reason.TOOL_RESULTS: "what a tool returned holds the particulars",
    Reason.NOT_TEXT: "the conversation holds more than plain text",
    Reason.LAST_TURN: "the last message is not the user's",
    Reason.EMPTY_TEXT: "the last message is empty",
    Reason.TEXT_TOO_LONG: "the text is too long to be compared whole",
    Reason.UNREADABLE_TEXT: "it holds emoji, control or invisible characters",
    Reason.LANGUAGE: "it is not in English, or not in English alone",
    Reason.CODE: "it holds code, which is exact to the character",
    Reason.STUFFED: "it repeats itself, or holds letters that are no word",
    Reason.INSTRUCTIONS: "it gives orders to the model or to the cache",
    Reason.PAYLOAD: "it brings a text to work on, or a link",
    Reason.MANY_QUESTIONS: "it asks several questions at once",
    Reason.FOLLOW_UP: "it leans on the earlier turns",
    Reason.VAGUE: "it says too little by itself",
    Reason.VARIETY: "it asks for another answer, or for one by chance",
    Reason.TIME: "the answer depends on when it is asked",
}
"""Why a request may hit only exactly, in words."""

LEFT_BY_CLIENT = frozenset({Reason.CLIENT_GONE, Reason.CLIENT_TIMEOUT})
"""The client left before the end: no fault of gateway or upstream."""


class Forwarded(StrEnum):
    """Why a request went to the upstream: the ``fwd`` parameter."""

    MISS = "miss"
    STALE = "stale"
    REQUEST = "request"
    BYPASS = "bypass"


class HitStatus(NamedTuple):
    """Answered from an entry; ``ttl`` is negative when the entry is stale.

    ``stale`` says by what grace a stale one is served.
    """

    reason: Reason
    ttl: int
    similarity: float | None = None
    stale: Reason | None = None
    score: float | None = None
    """How sure the verifier is of a semantic hit, and how sure it had to be."""
    threshold: float | None = None

    def header(self) -> str:
        if self.stale is not None:
            return f'refrain; hit; ttl={self.ttl}; detail="{self.reason}; {self.stale}"'
        if self.similarity is None:
            return f"refrain; hit; ttl={self.ttl}; detail={self.reason}"
        # Rounded down: 1.000 is for the same vector only.
        similarity = int(self.similarity * 1000) / 1000
        return f'refrain; hit; ttl={self.ttl}; detail="{self.reason}; similarity={similarity:.3f}"'


def hit_fields(
    content_type: str, status: HitStatus, age: int, key: bytes
) -> tuple[tuple[str, str], ...]:
    """Return the headers of a reply from an entry."""
    return (
        ("Content-Type", content_type),
        ("Cache-Status", status.header()),
        ("Age", str(age)),
        ("Refrain-Entry", key.hex()),
    )


@dataclass(frozen=True, slots=True)
class ForwardStatus:
    """Forwarded to the upstream; ``collapsed`` into a call that another request had made."""

    forwarded: Forwarded
    reason: Reason | None = None
    collapsed: bool = False
    items: tuple[int, int] | None = None
    """Of a batch: how many were found, of how many."""

    def header(self, *, stored: bool = False, declined: Reason | None = None) -> str:
        """Return the list member.

        ``stored`` only when the entry is already there; ``declined`` is why it is not, where that
        is known before the head is sent.
        """
        parts = ["refrain", f"fwd={self.forwarded}"]
        if stored:
            parts.append("stored")
        if self.collapsed:
            parts.append("collapsed")
        words = [str(word) for word in (self.reason, declined) if word is not None]
        if self.items is not None:
            found, of = self.items
            words.insert(1, f"items={found}/{of}")
        if len(words) == 1:
            parts.append(f"detail={words[0]}")
        elif words:
            parts.append(f'detail="{"; ".join(words)}"')
        return "; ".join(parts)


def refused_header(reason: Reason) -> str:
    """Return the list member of a request that is neither answered from an entry nor forwarded."""
    return f"refrain; detail={reason}"
