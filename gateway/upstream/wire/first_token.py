"""When a reply has its first token: until then the request may still be sent elsewhere.

Law: comments, blank lines, the role alone and usage alone say nothing that a client could show.
They are held back, within a bound in bytes and in time. What is not understood counts as content.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import orjson

from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import DONE, Decoder
from gateway.upstream.tries import Failure, Kind
from gateway.upstream.wire.verdict import code_of, error_alone, parsed_or_none, refuses_gateway

HELD_BYTES = 65_536
HELD_SECONDS = 15.0
"""Servers send comments so that proxies do not take a connection for dead, about as often as this
(WHATWG HTML, 9.2.7); proxies wait for 60 s and more."""


class FirstToken(Enum):
    """The state of a reply so far."""

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
    own: bool = False
    """Whether the request has no credential of a client."""
    _size: int = 0
    _since: float | None = None
    _decoder: Decoder | None = None

    def add(self, piece: bytes, now: float) -> FirstToken | Failure:
        """Take the next piece, and return the new state."""
        self.held.append(piece)
        self._size += len(piece)
        if self._since is None:
            self._since = now
        if not self.events:
            found: FirstToken | Failure = FirstToken.PENDING if piece.isspace() else FirstToken.SEEN
            if b'"error"' in piece and (error := error_alone(parsed_or_none(piece), bare=True)):
                found = _error(error, own=self.own)
        else:
            found = self._judge_piece(piece)
        waited = self._size > HELD_BYTES or now - self._since >= HELD_SECONDS
        return FirstToken.SEEN if found is FirstToken.PENDING and waited else found

    def end(self) -> FirstToken | Failure:
        """Return the state of a reply that has ended."""
        last = None if self._decoder is None else self._decoder.end()
        found: FirstToken | Failure = FirstToken.PENDING
        if last is not None:
            found = _judge_event(last.data, own=self.own, whole=False)
        return FirstToken.NONE if found is FirstToken.PENDING else found

    def _judge_piece(self, piece: bytes) -> FirstToken | Failure:
        self._decoder = self._decoder or Decoder()
        for event in self._decoder.feed(piece):
            if (found := _judge_event(event.data, own=self.own)) is not FirstToken.PENDING:
                return found
        return FirstToken.PENDING


_BEFORE_TOKENS = frozenset({"message_start", "ping"})
"""Anthropic's events that say nothing yet."""


def _judge_event(data: bytes | None, *, own: bool, whole: bool = True) -> FirstToken | Failure:
    if data is None:
        return FirstToken.PENDING
    if data == DONE:
        return FirstToken.NONE
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return FirstToken.SEEN if whole else FirstToken.NONE
    if event is None:  # a null keeps the connection alive
        return FirstToken.PENDING
    if isinstance(event, dict):
        kind = event.get("type")
        if kind == "error" or event.get("error"):
            return _error(event.get("error") or event, own=own)
        if kind in _BEFORE_TOKENS:
            return FirstToken.PENDING
        choices = event.get("choices")
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


_OF_THE_REQUEST = frozenset(
    {"authentication_error", "billing_error", "permission_error", "not_found_error"}
    | {"request_too_large"}
)
"""Types of Anthropic's errors that another upstream would answer alike."""


def _error(error: Any, *, own: bool) -> FirstToken | Failure:
    """Return what an error with status 200 means: some servers send it before they can fail.

    An error about the request itself (a 4xx, an invalid request) is an answer.
    """
    if own and refuses_gateway(code_of(error), error):
        return Failure(Kind.KEY_REFUSED, Reason.UPSTREAM_REFUSED)
    match error:
        case {"code": 429 | "rate_limit_exceeded" | "insufficient_quota"}:
            # It may be about the client's own account, so the upstream is not paused.
            return Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, personal=True)
        case {"code": int(code)} if 400 <= code < 500:
            return FirstToken.REFUSED
        case {"type": "rate_limit_error"}:
            return Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, personal=True)
        case {"type": "overloaded_error"}:
            return Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED)
        case {"type": str(kind)} if (
            "invalid_request" in kind or "BadRequest" in kind or kind in _OF_THE_REQUEST
        ):
            return FirstToken.REFUSED
        case dict() | str():
            return Failure(Kind.CUT, Reason.UPSTREAM_STATUS)
        case _:
            return FirstToken.SEEN
