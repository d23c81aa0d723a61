"""Whether a reply has begun to answer: until then another upstream may take its place.

Law: comments, blank lines, the role of who is about to speak and usage alone say nothing that a
client could show. They are held back, within a bound in bytes and in time, so that nothing was sent
while nothing was said. What is not understood is an answer.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import orjson

from gateway.protocol.reasons import Reason
from gateway.protocol.streaming import sse
from gateway.upstream.pool.retry import Failure

HELD_BYTES = 65_536
HELD_SECONDS = 15.0
"""Servers send comments so that proxies do not take a connection for dead, about as often as this
(WHATWG HTML, 9.2.7); proxies wait for 60 s and more."""


class Begun(Enum):
    """What a reply has come to so far."""

    NOT_YET = auto()
    ANSWER = auto()
    REFUSED = auto()
    """The server says that the request is at fault: an answer, and no failure of the server."""
    NOTHING = auto()
    """It has ended, or said that it ends, without a word."""


@dataclass(slots=True)
class Beginning:
    """The first pieces of a body, each judged as it comes; ``events`` says that it is a stream."""

    events: bool
    held: list[bytes] = field(default_factory=list)
    _size: int = 0
    _since: float | None = None
    _decoder: sse.Decoder = field(default_factory=sse.Decoder)

    def add(self, piece: bytes, now: float) -> Begun | Failure:
        """Take the next piece, and return what is known then."""
        self.held.append(piece)
        self._size += len(piece)
        if self._since is None:
            self._since = now
        if not self.events:
            found: Begun | Failure = Begun.NOT_YET if piece.isspace() else Begun.ANSWER
        else:
            found = self._judged(piece)
        waited = self._size > HELD_BYTES or now - self._since >= HELD_SECONDS
        return Begun.ANSWER if found is Begun.NOT_YET and waited else found

    def end(self) -> Begun | Failure:
        """Return what it was that has ended now."""
        last = self._decoder.end()
        found = Begun.NOT_YET if last is None else _judgement(last.data, whole=False)
        return Begun.NOTHING if found is Begun.NOT_YET else found

    def _judged(self, piece: bytes) -> Begun | Failure:
        for event in self._decoder.feed(piece):
            if (found := _judgement(event.data)) is not Begun.NOT_YET:
                return found
        return Begun.NOT_YET


def _judgement(data: bytes | None, *, whole: bool = True) -> Begun | Failure:
    if data is None:
        return Begun.NOT_YET
    if data == sse.DONE:
        return Begun.NOTHING
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return Begun.ANSWER if whole else Begun.NOTHING
    if isinstance(said, dict):
        if said.get("type") == "error" or said.get("error"):
            return _error(said)
        choices = said.get("choices")
        if isinstance(choices, list) and not any(map(says_something, choices)):
            return Begun.NOT_YET
    return Begun.ANSWER


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


def _error(said: dict[str, Any]) -> Begun | Failure:
    """Return what an error means: some servers answer 200 before they know whether they can.

    What they say of the request (a 4xx, an invalid request) is an answer.
    """
    told = said.get("error") or said
    match told:
        case {"code": 429 | "rate_limit_exceeded" | "insufficient_quota"}:
            # Of whose account is not told: it rests nobody.
            return Failure(Reason.UPSTREAM_LIMITED, risky=False, refused=429, personal=True)
        case {"code": int(code)} if 400 <= code < 500:
            return Begun.REFUSED
        case {"type": str(kind)} if "invalid_request" in kind or "BadRequest" in kind:
            return Begun.REFUSED
        case dict() | str():
            return Failure(Reason.UPSTREAM_STATUS, risky=True)
        case _:
            return Begun.ANSWER
