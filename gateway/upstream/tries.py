"""Whether, where and how a request is sent again: the one table, and the machine that reads it.

Laws:
- A request of a client makes at most ``MOST_CALLS`` calls, whatever happens. Only an upstream that
  does not know an id gives its call back: each upstream says so once.
- A request that surely was not processed may go to every other upstream.
- A request that may have been processed costs money twice, and may be what breaks upstreams. This
  risk is taken once, and the retry budget pays. Only a connection that broke before the head was
  most often idle and just closed: so the same upstream may get the request again.
- What the gateway adds fails no request. If an upstream refuses a request with an addition, it gets
  the request once more, as the client sent it. If that gets no reply, the refusal is the reply.
- After the first token nothing is sent again.

States are values and do nothing: the driver (``call``) does what a state says, and gives the result
to ``Send.next``.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum, auto
from http import HTTPStatus
from typing import NamedTuple

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import LONGEST_RETRY_AFTER

MOST_CALLS = 8
"""Of one client's request: five upstreams, the same one twice more, and once without additions."""
MOST_TRIES = 5
MOST_RISKED = 1
MOST_SAME_RETRIES = 2
FIRST_BACKOFF = 0.1
"""Seconds before the same upstream gets the request again; the next pause may be twice as long."""

_REFUSED = frozenset({429, 503, 529})
_FAILED = frozenset({500, 502, 504, *range(520, 525)})
"""520 to 524 come from a content network that cannot reach its server."""


class Kind(StrEnum):
    """What came of a call that gave no answer, in words for the docs."""

    UNREACHABLE = "no connection"
    UNREACHED = "no connection in time"
    LIMITED = "status 429, 503 or 529"
    FAILED = "status 500, 502, 504 or 520 to 524"
    BROKE = "the connection broke before the head of the reply"
    STALLED = "no head or no first token in time"
    CUT = "the reply broke off before its first token, or could not be read"
    KEY_REFUSED = "the gateway's key was refused"
    MODEL_UNKNOWN = "the upstream does not have the model"
    ID_UNKNOWN = "the upstream does not know the id that the request names"
    ADDITION_REFUSED = "status 400 or 422, and the gateway had added or moved something"


class Pays(StrEnum):
    """What a further call costs, in words for the docs."""

    NOTHING = "nobody"
    RETRY = "the retry budget"
    RETRY_IF_LEFT = "the retry budget, if it has something left"


class Row(NamedTuple):
    """What may follow, the first that can be, and who pays for it; None: that never follows."""

    other: Pays | None = None
    """Another upstream gets the request."""
    same: Pays | None = None
    """The same upstream gets it again, after a pause."""
    plain: Pays | None = None
    """It is sent as the client sent it, if what the gateway added may be what was refused."""


TABLE = {
    Kind.UNREACHABLE: Row(other=Pays.NOTHING, same=Pays.NOTHING),
    Kind.UNREACHED: Row(other=Pays.NOTHING),
    Kind.LIMITED: Row(other=Pays.NOTHING),
    Kind.FAILED: Row(other=Pays.RETRY, plain=Pays.RETRY),
    Kind.BROKE: Row(other=Pays.RETRY, same=Pays.RETRY),
    Kind.STALLED: Row(other=Pays.RETRY),
    Kind.CUT: Row(other=Pays.RETRY),
    Kind.KEY_REFUSED: Row(other=Pays.NOTHING),
    Kind.MODEL_UNKNOWN: Row(other=Pays.NOTHING),
    Kind.ID_UNKNOWN: Row(other=Pays.NOTHING, plain=Pays.RETRY_IF_LEFT),
    Kind.ADDITION_REFUSED: Row(plain=Pays.RETRY_IF_LEFT),
}
"""A request of which another upstream's call costs a retry may have been processed: it is a risk.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an upstream gave no answer."""

    kind: Kind
    reason: Reason
    retry_after: float | None = None
    """Seconds of the pause that a limited upstream asks for, if it says how long."""
    personal: bool = False
    """True if the limit may be the client's own quota: it must not eject the upstream."""

    @property
    def risky(self) -> bool:
        """Tell whether the request may have been processed."""
        return TABLE[self.kind].other is Pays.RETRY

    @property
    def may_be_provoked(self) -> bool:
        """Tell whether the request itself may be the cause: it has reached the upstream."""
        return self.risky or self.reason in (Reason.UPSTREAM_LIMITED, Reason.UPSTREAM_REFUSED)


NOT_KEPT = Failure(Kind.ID_UNKNOWN, Reason.NOT_KEPT, personal=True)
"""Another upstream may keep the id; this one is as well as before."""
NOT_SERVED = Failure(Kind.MODEL_UNKNOWN, Reason.NOT_KEPT, personal=True)
"""Another upstream may have the model."""
ADDITION_REFUSED = Failure(Kind.ADDITION_REFUSED, Reason.UPSTREAM_STATUS, personal=True)


def failure_of(error: UpstreamError, *, head: bool = False) -> Failure:
    """Return what an upstream's fault means; ``head`` says that the reply had begun."""
    kind = Kind.STALLED
    if error.reason is Reason.UPSTREAM_REFUSED:
        kind = Kind.KEY_REFUSED
    elif not error.sent:
        late = error.reason is Reason.UPSTREAM_TIMEOUT
        kind = Kind.UNREACHED if late else Kind.UNREACHABLE
    elif head or error.answered:
        kind = Kind.CUT
    elif error.reason is Reason.UPSTREAM_BROKE:
        kind = Kind.BROKE
    return Failure(kind, error.reason, personal=kind is Kind.KEY_REFUSED and error.of_model)


def refusal_of(
    status: int, fields: Iterable[tuple[str, str]], wall: float, *, personal: bool = False
) -> Failure | None:
    """Return the failure that a reply's status means, None if the reply is an answer.

    ``wall`` is the time of day in seconds since the epoch; ``personal`` says that the request bore
    the client's own credential, whose quota a 429 may be about.
    """
    if status in _REFUSED:
        return Failure(
            Kind.LIMITED,
            Reason.UPSTREAM_LIMITED,
            retry_after(fields, wall),
            personal and status == HTTPStatus.TOO_MANY_REQUESTS,
        )
    return Failure(Kind.FAILED, Reason.UPSTREAM_STATUS) if status in _FAILED else None


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
class Tries:
    """The calls of one request that gave no answer."""

    failed: tuple[tuple[str, Reason], ...] = ()
    risked: int = 0
    same_retries: int = 0
    plain: bool = False
    """Whether it is sent as the client sent it: what the gateway adds was refused."""

    def after(self, name: str, failure: Failure) -> "Tries":
        """Return the tries with one more that failed."""
        if failure.kind is Kind.ADDITION_REFUSED:
            return self  # the upstream is as well as before, and may get the request again
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
    def searched(self) -> bool:
        """Tell whether an upstream did not know the id or the model."""
        return any(reason is Reason.NOT_KEPT for _, reason in self.failed)

    @property
    def may_go_on(self) -> bool:
        """Tell whether another upstream may be tried. For an id any number may be."""
        counted = sum(reason is not Reason.NOT_KEPT for _, reason in self.failed)
        return self.risked <= MOST_RISKED and counted < MOST_TRIES


class Where(Enum):
    """The upstream that gets the request."""

    BEST = auto()
    """The best one, once it has room."""
    OTHER = auto()
    """One that has not failed, if one has room now."""
    SAME = auto()
    """The one that failed last."""


class Deliver(NamedTuple):
    """The last reply is for the client; or the one to the request ``with_additions``."""

    with_additions: bool = False


class Fail(NamedTuple):
    """There is no reply: the last fault is for the client."""


NO_REPLY = Fail()


@dataclass(frozen=True, slots=True)
class Facts:
    """What ``next`` needs to know beside the failure."""

    calls_left: int = MOST_CALLS
    jitter: float = 0.0
    """A random number from 0 to 1."""
    _: KW_ONLY
    has_reply: bool = False
    added: bool = False
    """Whether the reply may be due to what the gateway added or moved."""
    resends: bool = True
    """Whether the request can be sent again: its body is kept."""
    risks: bool = True
    """Whether a request that may have been processed may be sent again."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request; if it cannot be sent there, or paid for, ``otherwise`` follows."""

    where: Where
    tries: Tries
    pays: Pays = Pays.NOTHING
    otherwise: "Step" = NO_REPLY

    def next(self, name: str, failure: Failure | None, facts: Facts) -> "Step":
        """Return what follows the call to the upstream ``name``; without a failure, its reply."""
        if failure is None:
            return Deliver()
        tries = self.tries.after(name, failure)
        row = TABLE[failure.kind]
        step: Step = Deliver(with_additions=tries.plain and not facts.has_reply)
        if not (facts.has_reply or tries.plain):
            step = NO_REPLY
        if not facts.resends or facts.calls_left <= 0 or (failure.risky and not facts.risks):
            return step
        if row.plain is not None and facts.added and not tries.plain:
            # If an id was searched, all are asked again.
            plain = replace(tries, plain=True, failed=() if tries.searched else tries.failed)
            step = Send(Where.BEST if tries.searched else Where.SAME, plain, row.plain, step)
        if row.same is not None and tries.may_go_on and tries.same_retries < MOST_SAME_RETRIES:
            again = replace(tries, same_retries=tries.same_retries + 1)
            seconds = facts.jitter * FIRST_BACKOFF * 2**tries.same_retries
            step = Wait(seconds, Send(Where.SAME, again, row.same, step))
        if row.other is not None and tries.may_go_on:
            step = Send(Where.OTHER, tries, row.other, step)
        return step


class Wait(NamedTuple):
    """Pause for some seconds."""

    seconds: float
    then: Send


Step = Send | Wait | Deliver | Fail

START = Send(Where.BEST, Tries())
