"""The facts of one request for metrics, trace and log: figures and reasons, never text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from gateway.cache.lookup import Hit
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol.http.cache_status import LEFT_BY_CLIENT, ForwardStatus, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage
from gateway.semantic.ports import SurestCandidate


class Place(NamedTuple):
    """An upstream as traces name it. ``api`` is the form of its requests."""

    name: str
    address: str
    port: int
    preset: str | None = None
    api: str = "openai"


@dataclass(slots=True, eq=False)
class Attempt:
    """One request to one upstream, noted for traces. Times are readings of ``clock``."""

    place: Place
    clock: Callable[[], float]
    began: float
    span: tuple[int, int] = (0, 0)
    """The ids of its trace and of its span."""
    fields: Fields = ()
    """The headers by which the upstream continues the trace."""
    model: str | None = None
    """The upstream's name of the model, if it is not the client's."""
    status: int = 0
    first_chunk: float | None = None
    ended: float | None = None
    fault: str | None = None
    """Why the reply did not come, or not in whole."""

    def note_chunk(self) -> None:
        """Note the first piece of the reply's body."""
        if self.first_chunk is None:
            self.first_chunk = self.clock()

    def end(self, error: BaseException | None) -> None:
        """Note the end; a second call changes nothing."""
        if self.ended is None:
            self.ended = self.clock()
            if error is not None:
                reason = getattr(error, "reason", None)
                self.fault = str(reason) if isinstance(reason, Reason) else type(error).__name__


class AnswerFacts(NamedTuple):
    """What an answer says of itself."""

    model: str | None = None
    response_id: str | None = None
    finish_reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class CallFacts:
    """A call to the upstream, as its driver notes it. All requests that share it have the same.

    Times are readings of the requests' clock.
    """

    started: float | None = None
    head: float | None = None
    """When the head of the reply came."""
    ended: float | None = None
    """None until the whole answer has come."""
    usage: PromptUsage = NOTHING_SAID
    upstream: str | None = None
    """Which of several upstreams answered; ``tried`` are the upstreams that failed before."""
    tried: tuple[tuple[str, Reason], ...] = ()
    received: int = 0
    """Bytes of a stream."""
    stored: bool = False
    declined: Reason | None = None
    """Why the answer was not stored."""
    attempts: list[Attempt] = field(default_factory=list)
    """Its requests, if they are traced."""
    answer: AnswerFacts | None = None
    """Of an answer that came in whole, if it is traced."""


class CallShare(NamedTuple):
    """The part of a call that counts for one request.

    The leader has times, upstream and rewrites. The request that ``pays`` has usage and what was
    stored. The two differ if the leader has left.
    """

    started: float | None = None
    head: float | None = None
    upstream: str | None = None
    tried: tuple[tuple[str, Reason], ...] = ()
    pays: bool = False
    """Whether the call counts for this request, also if its answer does not come in whole."""
    usage: PromptUsage = NOTHING_SAID
    """The upstream's token counts for the call."""
    usage_so_far: PromptUsage = NOTHING_SAID
    """What it had said when a call ended early; ``produced_bytes`` is what had come of the answer,
    whether its client got it or not."""
    produced_bytes: int = 0
    stored: bool = False
    declined: Reason | None = None
    """Why the answer was not stored."""
    whole: CallFacts | None = None
    """The call, if it came in whole and its tokens count for this request."""
    followed: CallFacts | None = None
    """The call of another request that this one joined."""
    rewrites: tuple[Rewrite, ...] = ()
    """The rewrites that were applied to the prompt, and the others with their reasons."""
    not_rewritten: tuple[Declined, ...] = ()
    compression: Compression | None = None
    """The outcome for its declared context, if any."""
    fault: Reason | None = None
    """Why a stream failed whose failure was its last event."""
    earlier: tuple[CallFacts, ...] = ()
    """Whole calls that the request paid for before this one: another was needed."""


NO_CALL = CallShare()


class CallSource(Protocol):
    """The call that a request shares, while it runs."""

    @property
    def status(self) -> ForwardStatus:
        """Why the request was forwarded, and whether it joined the call of another."""

    def share(self, then: Callable[[], None] | None = None) -> CallShare | None:
        """Return what counts for the request, so far.

        With ``then``: if the call goes on for its usage, return None, and call back at its end.
        """


class Asked(NamedTuple):
    """What a request asks for, and the rule that decides."""

    model: str = ""
    rule: str = ""
    holder: str = ""
    """The name of the gateway key, if there are gateway keys."""
    team: str = ""
    """The team of its holder, if it has one."""
    streamed: bool = False
    fallback_model: str | None = None
    """The smaller model that answers in place of ``model``, which had no room."""
    record: dict[str, Any] | None = None
    """The request's record in the decision log; None without a log."""

    @property
    def answering_model(self) -> str:
        """The model that answers."""
        return self.fallback_model or self.model


class Lookup(NamedTuple):
    """What came of the lookup. It holds no prompt: observations wait for the sinks."""

    key: bytes = b""
    """Of the entry that was served or may be stored; empty if there is none."""
    forward: ForwardStatus | None = None
    """Why the request was forwarded, if it was."""
    ineligible: Reason | None = None
    """Why the request was not looked up by meaning."""
    hit: Hit | None = None
    """The stored answer that was served."""
    semantic_fault: str | None = None
    """Why the lookup by meaning ended early."""
    verified: tuple[tuple[str, float | None], ...] = ()
    """Of each candidate that was looked into: ``hit`` or why not, and its score if it has one."""
    surest: SurestCandidate | None = None


_NOT_READ, _NOT_LOOKED_UP = Asked(), Lookup()


class Outcome(NamedTuple):
    """How a request was answered: see ``Observation``."""

    outcome: str
    reason: Reason | None
    hit: Hit | None = None
    """The stored answer that is served."""
    call: CallShare | None = None
    """The call that answered. It is final if the reply is whole."""


class RequestTrace(Protocol):
    """Records one request for OpenTelemetry. A request without one leaves no trace."""

    @property
    def fields(self) -> Fields:
        """The headers by which a server continues the trace of a request that passes through."""

    def note_step(self, name: str, began: float, attributes: Mapping[str, Any]) -> None:
        """Note that a step has ended now."""

    def attempt(self, call: CallFacts, place: Place) -> Attempt:
        """Begin a request of the call to an upstream."""

    def end_call(
        self,
        call: CallFacts,
        request: CacheRequest,
        fault: Reason | None,
        tried: Mapping[str, Reason],
    ) -> None:
        """Record a call that is over: why it failed, and why each upstream before the last did."""

    def background(self) -> "RequestTrace":
        """Return what records a call of ours that the request gives rise to."""

    def end(self, seen: "Observation") -> None:
        """Record the request."""


@dataclass(slots=True)
class Observation:
    """One request, for the sinks; it decides nothing. ``finish`` hands it over, once.

    The pipeline sets what it found. All others call a method.

    Times are readings of one monotonic clock in seconds. ``outcome`` is ``hit``, ``miss``,
    ``bypass``, ``refused`` (only-if-cached), ``pass`` (a path that is not cached), ``invalid``
    (the client's fault), ``error`` (the upstream's own among them), or a call of ours: ``refresh``
    for a stale entry, ``sample`` to compare answers.
    """

    endpoint: str
    started: float
    clock: Callable[[], float]
    sinks: tuple["Sink", ...]
    method: str = "POST"
    """The method of the client's request, empty for a call of ours."""
    trace: RequestTrace | None = None
    request_bytes: int = 0
    asked: Asked = _NOT_READ
    lookup: Lookup = _NOT_LOOKED_UP
    outcome: str = "error"
    reason: Reason | None = None
    status: int = 0
    call: CallShare = NO_CALL
    answer_bytes: int = 0
    first_token: float | None = None
    ended: float | None = None
    _source: CallSource | None = None
    """The call, until ``call`` is final."""

    @property
    def hit(self) -> Hit | None:
        """The stored answer that was served."""
        return self.lookup.hit

    @property
    def forward(self) -> ForwardStatus | None:
        """Why the request was forwarded, and whether it joined the call of another."""
        return self.lookup.forward if self._source is None else self._source.status

    def note_passed(self, model: str) -> None:
        """Note the model of a request that passes through."""
        self.asked = Asked(model)

    def note_fallback(self, model: str) -> None:
        """Note the model that answers in place of the requested one."""
        self.asked = self.asked._replace(fallback_model=model)

    def note_semantic_fault(self, fault: str) -> None:
        """Note why a lookup by meaning ended early."""
        self.lookup = self.lookup._replace(semantic_fault=fault)

    def note_verified(
        self, result: str, score: float | None, candidate: SurestCandidate | None = None
    ) -> None:
        """Note what a verifier said of a candidate."""
        verified, surest = (*self.lookup.verified, (result, score)), self.lookup.surest
        if candidate and (surest is None or candidate.features.score > surest.features.score):
            surest = candidate
        self.lookup = self.lookup._replace(verified=verified, surest=surest)

    def follow(self, source: CallSource) -> None:
        """Note the call that is to answer. A call before it counts as far as it was paid for."""
        if self._source is not None or self.call is not NO_CALL:
            before = self.call_so_far()
            whole = before.whole if before.pays else None
            paid = () if whole is None or whole.usage == NOTHING_SAID else (whole,)
            self.call = CallShare(earlier=self.call.earlier + paid)
        self._source = source

    def call_so_far(self) -> CallShare:
        """Return what counts of the call for the request."""
        share = None if self._source is None else self._source.share()
        return self.call if share is None else share

    def note_call(self, call: CallShare) -> None:
        """Note what is final of the call. What was known before it stays known."""
        tried, earlier = self.call.tried, self.call.earlier
        if tried or earlier:
            call = call._replace(tried=call.tried or tried, earlier=earlier)
        self.call, self._source = call, None

    def note_tried(self, tried: tuple[tuple[str, Reason], ...]) -> None:
        """Note the upstreams that failed, where none answered."""
        self.call = self.call._replace(tried=tried)

    def end(self, outcome: str, reason: Reason | None, status: int | None = None) -> None:
        """Note how the request ends. ``status`` is the reply's, if there is one."""
        self.outcome, self.reason = outcome, reason
        if status is not None:
            self.status = status

    def note_body(self, size: int) -> None:
        """Note the bytes of the request's body."""
        self.request_bytes = size

    def note_sent(self, size: int, *, whole: bool = False) -> None:
        """Note bytes that are sent, the ``whole`` body or a piece of it."""
        self.answer_bytes = size if whole else self.answer_bytes + size
        if self.first_token is None:
            self.first_token = self.clock()

    def of_background(self, outcome: str) -> "Observation":
        """Return the observation of a call of ours that this request gives rise to."""
        return Observation(
            self.endpoint,
            self.clock(),
            self.clock,
            self.sinks,
            method="",
            trace=None if self.trace is None else self.trace.background(),
            asked=self.asked._replace(fallback_model=None, record=None),
            outcome=outcome,
        )

    def finish(self, *sinks: "Sink") -> None:
        """Hand over to the sinks and to these, once the usage is known; later calls do nothing."""
        if self.ended is not None:
            return
        self.ended = self.clock()
        self._hand_over(sinks)

    def _hand_over(self, sinks: tuple["Sink", ...]) -> None:
        if self._source is not None:
            call = self._source.share(partial(self._hand_over, sinks))
            if call is None:
                return
            self.note_call(call)
            if call.fault is not None and self.reason not in LEFT_BY_CLIENT:
                self.outcome, self.reason = "error", call.fault
        for sink in (*self.sinks, *sinks):
            sink(self)
        if self.trace is not None:
            self.trace.end(self)


Sink = Callable[[Observation], None]

OnStep = Callable[[object, float, Observation, object], None]
"""Takes a step of a request: what was done, when it began, for whom, and what came of it."""
