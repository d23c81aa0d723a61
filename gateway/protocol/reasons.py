"""Why a request went the way it went: the words of header, metric, log and trace."""

from enum import StrEnum

from policies.plain_enum import plain_members


@plain_members
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
    FRESHNESS = "freshness"
    ONLY_IF_CACHED = "only-if-cached"
    # How a stale entry came to be served.
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
    # Why what was found by meaning was not served.
    SHADOW = "shadow"
    SEMANTIC_OFF = "semantic-off"
    # How a miss was answered without a call of its own.
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
    UPSTREAM_BUSY = "upstream-busy"
    NOT_KEPT = "not-kept"
    CLIENT_GONE = "client-gone"
    CLIENT_TIMEOUT = "client-timeout"
    UNAUTHORIZED = "unauthorized"
    PROMPT_TOO_LONG = "prompt-too-long"
    INVALID_REQUEST = "invalid-request"
    INTERNAL = "internal-error"
