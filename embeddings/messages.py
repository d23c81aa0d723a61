"""What gateway and embeddings service say to each other: frozen values, no I/O.

The annotations bound what is sent and received; `wire.py` applies them.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import FailFast, Field

MAX_MATCHES: Final = 256
MAX_TEXTS: Final = 16
MAX_PAIRS: Final = 16
MAX_KEYS: Final = 512
MAX_FIELD: Final = 1024

Key = Annotated[bytes, Field(max_length=MAX_FIELD)]
Word = Annotated[str, Field(max_length=MAX_FIELD)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(ge=-math.inf)]  # any number, and so not NaN
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Reason(StrEnum):
    """Why a call brought no result; the word the gateway shows, logs and counts."""

    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    BUSY = "semantic-busy"
    """The encoder has so much to do that the request goes on without a search."""
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

    key: Key
    similarity: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """State of the service; strings are "" and numbers 0 until it is ready.

    `index` names where the vectors are, `fault` says why they are not searched at present;
    `vectors` is the latest known number. `verifier` and its digest are empty where there is none,
    and `verifier_fault` then says why.
    """

    ready: bool = False
    encoder: str = ""
    digest: Word = ""
    dimensions: Count = 0
    vectors: Count = 0
    index: Word = ""
    fault: Word = ""
    verifier: Word = ""
    verifier_digest: Word = ""
    verifier_fault: Word = ""


@dataclass(frozen=True, slots=True)
class Search:
    """Find the `k` stored vectors of `partition` nearest to `text`."""

    partition: Key
    text: str
    k: Annotated[int, Field(ge=0, le=MAX_MATCHES)]


@dataclass(frozen=True, slots=True)
class Add:
    """Store the vector of `text` under `key`; `expires_at` in seconds since the epoch."""

    partition: Key
    key: Key
    text: str
    expires_at: Time


@dataclass(frozen=True, slots=True)
class Embed:
    """Return the vectors of up to MAX_TEXTS texts; nothing is stored."""

    texts: Annotated[tuple[str, ...], Field(max_length=MAX_TEXTS), FailFast()]


@dataclass(frozen=True, slots=True)
class Verify:
    """Score up to MAX_PAIRS pairs of texts: how surely does one answer fit both."""

    pairs: Annotated[tuple[Pair, ...], Field(max_length=MAX_PAIRS), FailFast()]


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget up to MAX_KEYS keys, wherever they are."""

    keys: Annotated[tuple[Key, ...], Field(max_length=MAX_KEYS), FailFast()]


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
    """Answer to Search, nearest first. `waited`: seconds in the queue of the encoder."""

    matches: Annotated[tuple[Match, ...], Field(max_length=MAX_MATCHES), FailFast()]
    waited: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True, slots=True)
class Vectors:
    """Answer to Embed: a unit vector for each text, in order.

    A row holds the 32-bit floats of one vector in the machine's order of bytes.
    """

    rows: Annotated[tuple[bytes, ...], Field(max_length=MAX_TEXTS), FailFast()]

    @classmethod
    def packed(cls, vectors: Iterable[Sequence[float]]) -> "Vectors":
        """Return the message for these vectors."""
        return cls(tuple(array("f", vector).tobytes() for vector in vectors))

    def unpacked(self) -> list[list[float]]:
        """Return the vectors. Raises ValueError unless they are finite and of one length."""
        vectors = [array("f", row).tolist() for row in self.rows]
        if len({len(vector) for vector in vectors}) > 1:
            raise ValueError("vectors of several lengths")
        if not all(math.isfinite(number) for vector in vectors for number in vector):
            raise ValueError("not a finite vector")
        return vectors


@dataclass(frozen=True, slots=True)
class Scores:
    """Answer to Verify: scores from 0 to 1 in the order of the pairs, and whose they are."""

    verifier_digest: Word
    scores: Annotated[tuple[Score, ...], Field(max_length=MAX_PAIRS), FailFast()]


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not carried out; `message` is for the log and never holds user text."""

    reason: Reason
    message: str


Request = Search | Add | Embed | Verify | Remove | AskStatus | Cancel
Reply = Done | Matches | Vectors | Scores | IndexStatus | Refused
Message = Request | Reply
