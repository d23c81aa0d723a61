"""Retries: what a reply means, when it has its first token, and which upstream is tried next.

Laws:
- A request that surely was not processed (no connection; 429, 503, 529) may go to every other
  upstream.
- A request that may have been processed costs money twice, and may be what breaks upstreams. This
  risk is taken once, and only on another upstream. There is one exception: a connection that broke
  before the head was most often idle and just closed. So the same upstream may get it again.
- After the first token there is no retry. Every other status (400, 401, 404 ...) is an answer.
- A refusal of the gateway's own credential is no answer (``verdict``): any other upstream may get
  the request. A model that an upstream does not have is searched at the others.
- Comments, blank lines, the role alone and usage alone say nothing that a client could show. They
  are held back, within a bound in bytes and in time, so that nothing is sent before the first
  token. What is not understood counts as content.
- While most calls fail, retries double load and cost without success. So risky retries are a share
  of the requests, plus a burst after a calm time, as in gRPC's retry throttling.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import orjson

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError
from gateway.protocol.streaming.decode import DONE, Decoder
from gateway.upstream.pool.health import LONGEST_RETRY_AFTER
from gateway.upstream.verdict import code_of, error_alone, parsed_or_none, refuses_gateway

MOST_TRIES = 5
MOST_RISKED = 1
MOST_SAME_RETRIES = 2
FIRST_BACKOFF = 0.1
"""Seconds before the same upstream gets the request again; the next pause may be twice as long."""

_REFUSED = frozenset({429, 503, 529})
_FAILED = frozenset({500, 502, 504, *range(520, 525)})
"""520 to 524 come from a content network that cannot reach its server."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an upstream gave no answer; ``risky`` where the request may have been processed."""

    reason: Reason
    risky: bool
    anew: bool = False
    """Whether the same upstream may get the request again."""
    retry_after: float | None = None
    """Seconds of the pause that a limited upstream asks for, if it says how long."""
    personal: bool = False
    """True if the limit may be the client's own quota: it must not eject the upstream."""

    @property
    def may_be_provoked(self) -> bool:
        """Tell whether the request itself may be the cause: it has reached the upstream."""
        return self.risky or self.reason in (Reason.UPSTREAM_LIMITED, Reason.UPSTREAM_REFUSED)


NOT_KEPT = Failure(Reason.NOT_KEPT, risky=False, personal=True)
"""Another upstream may keep the sticky id, or have the model; this one is as well as before."""


def failure_of(error: UpstreamError, *, head: bool = False) -> Failure:
    """Return what an upstream's fault means; ``head`` says that the reply had begun."""
    if error.reason is Reason.UPSTREAM_REFUSED:
        return Failure(error.reason, risky=False, personal=error.of_model)
    broke = error.reason is Reason.UPSTREAM_BROKE and not (head or error.answered)
    return Failure(error.reason, risky=error.sent, anew=broke or not error.sent)


def refusal_of(
    status: int, fields: Iterable[tuple[str, str]], wall: float, *, personal: bool = False
) -> Failure | None:
    """Return the failure that a reply's status means, None if the reply is an answer.

    ``wall`` is the time of day in seconds since the epoch; ``personal`` says that the request bore
    the client's own credential, whose quota a 429 may be about.
    """
    if status in _REFUSED:
        return Failure(
            Reason.UPSTREAM_LIMITED,
            risky=False,
            retry_after=retry_after(fields, wall),
            personal=personal and status == HTTPStatus.TOO_MANY_REQUESTS,
        )
    if status in _FAILED:
        return Failure(Reason.UPSTREAM_STATUS, risky=True)
    return None


def retry_after(fields: Iterable[tuple[str, str]], wall: float) -> float | None:
    """Return the seconds for which a reply asks for a pause, bounded; None if it does not.

    ``Retry-After`` (RFC 9110, 10.2.3) in seconds or as a date, ``retry-after-ms`` before it.
    """
    named = {name.lower(): value.strip() for name, value in fields}
    seconds = None
    if (milliseconds := named.get("retry-after-ms", "")).isdecimal():
        seconds = int(milliseconds[:12]) / 1000
    elif (written := named.get("retry-after", "")).isdecimal() and written.isascii():
        seconds = float(int(written[:12]))
    elif written:
        try:
            seconds = parsedate_to_datetime(written).timestamp() - wall
        except (ValueError, OverflowError):
            return None
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


@dataclass(frozen=True, slots=True)
class RetryState:
    """The attempts for one request."""

    failed: tuple[tuple[str, Reason], ...] = ()
    risked: int = 0
    same_retries: int = 0

    def after(self, name: str, failure: Failure) -> "RetryState":
        """Return the state after one more try that failed."""
        failed = (*self.failed, (name, failure.reason))
        return replace(self, failed=failed, risked=self.risked + failure.risky)

    @property
    def names(self) -> frozenset[str]:
        """The upstreams that have failed already."""
        return frozenset(name for name, _ in self.failed)

    @property
    def last(self) -> str:
        """The upstream that failed last."""
        return self.failed[-1][0]

    @property
    def may_go_on(self) -> bool:
        """Tell whether another upstream may be tried. For a sticky id any number may be."""
        counted = sum(reason is not Reason.NOT_KEPT for _, reason in self.failed)
        return self.risked <= MOST_RISKED and counted < MOST_TRIES

    def may_retry_same(self, failure: Failure) -> bool:
        """Tell whether the upstream that failed last may get the request again."""
        return self.may_go_on and failure.anew and self.same_retries < MOST_SAME_RETRIES

    def backoff(self, jitter: float) -> float:
        """Return how long to wait before that; ``jitter`` is a random number from 0 to 1."""
        return jitter * FIRST_BACKOFF * float(2**self.same_retries)

    def with_same_retry(self) -> "RetryState":
        """Return the state once the same upstream gets the request again."""
        return replace(self, same_retries=self.same_retries + 1)


NOT_TRIED = RetryState()

A_REQUEST = 0.2
MOST = 10.0


class Budget:
    """The retry budget: it grows with each request, up to a bound, and a retry takes 1."""

    def __init__(self) -> None:
        self._left = MOST

    def earn(self) -> bool:
        """Note a request; tell whether the budget has a retry now."""
        self._left = min(MOST, self._left + A_REQUEST)
        return self._left >= 1.0

    def spend(self) -> bool:
        """Take one retry, if there is one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


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
        return Failure(Reason.UPSTREAM_REFUSED, risky=False)
    match error:
        case {"code": 429 | "rate_limit_exceeded" | "insufficient_quota"}:
            # It may be about the client's own account, so the upstream is not paused.
            return Failure(Reason.UPSTREAM_LIMITED, risky=False, personal=True)
        case {"code": int(code)} if 400 <= code < 500:
            return FirstToken.REFUSED
        case {"type": "rate_limit_error"}:
            return Failure(Reason.UPSTREAM_LIMITED, risky=False, personal=True)
        case {"type": "overloaded_error"}:
            return Failure(Reason.UPSTREAM_LIMITED, risky=False)
        case {"type": str(kind)} if (
            "invalid_request" in kind or "BadRequest" in kind or kind in _OF_THE_REQUEST
        ):
            return FirstToken.REFUSED
        case dict() | str():
            return Failure(Reason.UPSTREAM_STATUS, risky=True)
        case _:
            return FirstToken.SEEN
