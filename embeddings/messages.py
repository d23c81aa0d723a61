"""What gateway and embeddings service say to each other: frozen values, no I/O."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a call brought no result; the word the gateway shows, logs and counts."""

    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    TEXT_TOO_LONG = "text-too-long"
    EMPTY_TEXT = "empty-text"
    UNREADABLE_TEXT = "unreadable-text"
    INDEX_UNAVAILABLE = "index-unavailable"
    INDEX_TIMEOUT = "index-timeout"
    INDEX_ERROR = "index-error"
    ERROR = "error"


class SemanticUnavailableError(Exception):
    """A call brought no result, so the lookup is a miss. ``reason`` is the word to show and count.

    The message is for the log and never holds user text.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason


Pair = tuple[str, str]
Scored = float | Reason


@dataclass(frozen=True, slots=True)
class Match:
    """A stored vector near the asked text; `similarity` is the cosine, -1 to 1."""

    key: bytes
    similarity: float


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """State of the service; strings are "" and numbers 0 until it is ready.

    `index` names where the vectors are, `fault` says why they are not searched at present;
    `vectors` is the latest known number. `verifier` and its digest are empty where there is none,
    and `verifier_fault` then says why.
    """

    ready: bool = False
    encoder: str = ""
    digest: str = ""
    dimensions: int = 0
    vectors: int = 0
    index: str = ""
    fault: str = ""
    verifier: str = ""
    verifier_digest: str = ""
    verifier_fault: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """Find the `k` stored vectors of `partition` nearest to `text`."""

    partition: bytes
    text: str
    k: int


@dataclass(frozen=True, slots=True)
class Add:
    """Store the vector of `text` under `key`; `expires_at` in seconds since the epoch."""

    partition: bytes
    key: bytes
    text: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Embed:
    """Return the vectors of up to MAX_TEXTS texts; nothing is stored."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Score up to MAX_PAIRS pairs of texts: how surely does one answer fit both."""

    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget these keys, wherever they are."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Ask for an IndexStatus."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the request of this id any more. Has no reply."""


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out and has nothing to tell."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Answer to Search, nearest first."""

    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Answer to Embed: unit vectors of one length in the order of the texts, as 32-bit floats."""

    vectors: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """Answer to Verify: scores from 0 to 1 in the order of the pairs, and whose they are."""

    verifier_digest: str
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not carried out; `message` is for the log and never holds user text."""

    reason: Reason
    message: str


Request = Search | Add | Embed | Verify | Remove | AskStatus | Cancel
Reply = Done | Matches | Vectors | Scores | IndexStatus | Refused
Message = Request | Reply
