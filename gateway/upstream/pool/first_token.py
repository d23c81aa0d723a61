"""Detects the first content token of a reply; before it, failover is still allowed.

Law: comments, blank lines, the role alone and usage alone say nothing that a
client could show. They are held back, within a bound in bytes and in time, so that nothing is sent
before the first token. What is not understood counts as content.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import orjson

from gateway.protocol.cache_status import Reason
from gateway.protocol.stream import DONE, Decoder
from gateway.upstream.pool.retry import Failure

HELD_BYTES = 65_536
HELD_SECONDS = 15.0
"""Servers send comments so that proxies do not take a connection for dead, about as often as this
(WHATWG HTML, 9.2.7); proxies wait for 60 s and more."""


class FirstToken(Enum):
    """What is known of a reply so far."""

    PENDING = auto()
    SEEN = auto()
    REFUSED = auto()
    """The server says that the request is at fault: an answer, and no failure of the server."""
    NONE = auto()
    """It has ended, or says that it ends, without a token."""


@dataclass(slots=True)
class FirstTokenDetector:
    """Looks at the first pieces of a body as they come; ``events`` says that it is a stream."""

    events: bool
    held: list[bytes] = field(default_factory=list)
    _size: int = 0
    _since: float | None = None
    _decoder: Decoder = field(default_factory=Decoder)

    def add(self, piece: bytes, now: float) -> FirstToken | Failure:
        """Take the next piece, and return what is known then."""
        self.held.append(piece)
        self._size += len(piece)
        if self._since is None:
            self._since = now
        if not self.events:
            found: FirstToken | Failure = FirstToken.PENDING if piece.isspace() else FirstToken.SEEN
        else:
            found = self._judged(piece)
        waited = self._size > HELD_BYTES or now - self._since >= HELD_SECONDS
        return FirstToken.SEEN if found is FirstToken.PENDING and waited else found

    def end(self) -> FirstToken | Failure:
        """Return what is known of a reply that has ended now."""
        last = self._decoder.end()
        found = FirstToken.PENDING if last is None else _judgement(last.data, whole=False)
        return FirstToken.NONE if found is FirstToken.PENDING else found

    def _judged(self, piece: bytes) -> FirstToken | Failure:
        for event in self._decoder.feed(piece):
            if (found := _judgement(event.data)) is not FirstToken.PENDING:
                return found
        return FirstToken.PENDING


def _judgement(data: bytes | None, *, whole: bool = True) -> FirstToken | Failure:
    if data is None:
        return FirstToken.PENDING
    if data == DONE:
        return FirstToken.NONE
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return FirstToken.SEEN if whole else FirstToken.NONE
    if isinstance(said, dict):
        if said.get("type") == "error" or said.get("error"):
            return _error(said)
        choices = said.get("choices")
        if isinstance(choices, list) and not any(map(says_something, choices)):
            return FirstToken.PENDING
    return FirstToken.SEEN


def says_something(choice: Any) -> bool:
    """Tell whether a choice has more than a role, or has finished."""
    match choice:
        case {"finish_reason": str()}:
            return True
        case {"delta": dict(delta)}:
            return any(value for name, value in delta.items() if name != "role")
        case {"text": ""}:
            return False
        case _:
            return True


def _error(said: dict[str, Any]) -> FirstToken | Failure:
    """Return what an error means: some servers answer 200 before they know whether they can.

    What they say of the request (a 4xx, an invalid request) is an answer.
    """
    error = said.get("error") or said
    match error:
        case {"code": 429 | "rate_limit_exceeded" | "insufficient_quota"}:
            # It may be about the client's own account, so the upstream is not paused.
            return Failure(Reason.UPSTREAM_LIMITED, risky=False, refused=429, personal=True)
        case {"code": int(code)} if 400 <= code < 500:
            return FirstToken.REFUSED
        case {"type": str(kind)} if "invalid_request" in kind or "BadRequest" in kind:
            return FirstToken.REFUSED
        case dict() | str():
            return Failure(Reason.UPSTREAM_STATUS, risky=True)
        case _:
            return FirstToken.SEEN
