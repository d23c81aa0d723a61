"""The facts of one request for metrics, trace and log: figures and reasons, never text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from gateway.cache.lookup import Forward, Hit
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage


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
    """A call to the upstream. All requests that share it have the same value.

    Times are readings of the requests' clock. ``ended`` is None until the whole answer has come.
    """

    started: float | None = None
    ended: float | None = None
    usage: PromptUsage = NOTHING_SAID
    attempts: list[Attempt] = field(default_factory=list)
    """Its requests, if they are traced."""
    answer: AnswerFacts | None = None
    """Of an answer that came in whole, if it is traced."""


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
    """Filled in along the pipeline, handed to the sinks once by ``finish``.

    Times are readings of one monotonic clock in seconds. ``outcome`` is ``hit``, ``miss``,
    ``bypass``, ``refused`` (only-if-cached), ``pass`` (a path that is not cached), ``invalid``
    (the client's fault), ``error`` (the upstream's own among them), or a call of ours: ``refresh``
    for a stale entry, ``sample`` to compare answers. ``declined`` is the reason why an answer was
    not stored.
    """

    endpoint: str
    started: float
    clock: Callable[[], float]
    sinks: tuple["Sink", ...]
    model: str = ""
    fallback_model: str | None = None
    """The smaller model that answers in place of ``model``, which had no room."""
    rule: str = ""
    holder: str = ""
    """The name of the gateway key, if there are gateway keys."""
    team: str = ""
    """The team of its holder, if it has one."""
    streamed: bool = False
    outcome: str = "error"
    reason: Reason | None = None
    semantic_fault: str | None = None
    ineligible: Reason | None = None
    """Why the request was not looked up by meaning."""
    status: int = 0
    forward: ForwardStatus | None = None
    stored: bool = False
    declined: Reason | None = None
    upstream: str | None = None
    """Which of several upstreams answered; ``tried`` are the upstreams that failed before."""
    tried: tuple[tuple[str, Reason], ...] = ()
    upstream_started: float | None = None
    upstream_head: float | None = None
    first_token: float | None = None
    ended: float | None = None
    request_bytes: int = 0
    answer_bytes: int = 0
    usage: PromptUsage = NOTHING_SAID
    """The upstream's token counts for the call."""
    usage_so_far: PromptUsage = NOTHING_SAID
    """What it had said when a call ended early; ``produced_bytes`` is what had come of the answer,
    whether its client got it or not."""
    produced_bytes: int = 0
    limited: bool = False
    """Whether the tokens of its key's holder are limited, so that they must be known."""
    pending: bool = False
    """Whether its client has left, and its call is read on to the usage."""
    on_settled: Callable[["Observation"], None] | None = None
    """Called once that is over."""
    call: CallFacts | None = None
    """The whole call that was made for this request, and whose tokens count for it."""
    billed: bool = False
    """Whether the call counts for this request, also if its answer does not come in whole."""
    followed: CallFacts | None = None
    """The call of another request that this one joined."""
    rewrites: tuple[Rewrite, ...] = ()
    """The rewrites that were applied to the prompt, and the others with their reasons."""
    not_rewritten: tuple[Declined, ...] = ()
    compression: Compression | None = None
    """The outcome for its declared context, if any."""
    record: dict[str, Any] | None = None
    """The request's record in the decision log; None without a log."""
    key: bytes | None = None
    hit: Hit | None = None
    """The stored answer that was served."""
    verified: list[tuple[str, float | None]] = field(default_factory=list)
    """Of each candidate that was looked into: ``hit`` or why not, and its score if it has one."""
    trace: RequestTrace | None = None
    method: str = "POST"
    """The method of the client's request, empty for a call of ours."""
    handed_over: bool = False
    """Whether the sinks have it."""

    def note_request(self, request: CacheRequest, rule: str) -> None:
        """Note the request's model and the rule that decides."""
        self.model, self.streamed, self.rule = request.model, request.streamed, rule
        self.holder, self.team = request.holder or "", request.team or ""

    def note_hit(self, hit: Hit) -> None:
        """Note the entry that is served."""
        status = hit.status
        self.end("hit", status.reason if status.stale is None else status.stale, 200)
        self.hit, self.key = hit, hit.entry.key

    def note_forward(self, state: Forward) -> None:
        """Note why the request goes to the upstream."""
        bypass = state.status.forwarded is Forwarded.BYPASS
        self.outcome = "bypass" if bypass else "miss"
        self.forward, self.reason = state.status, state.status.reason
        self.ineligible = state.ineligible
        self.key = None if state.store is None else state.store.key

    def note_refusal(self, status: int) -> None:
        """Note an error of the upstream that passes through: it is ill, or at its limits."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.outcome, self.reason = "error", Reason.UPSTREAM_STATUS
        elif status == HTTPStatus.TOO_MANY_REQUESTS:
            self.outcome, self.reason = "error", Reason.UPSTREAM_LIMITED

    def end(self, outcome: str, reason: Reason | None, status: int | None = None) -> None:
        """Note how the request ends. ``status`` is the reply's, if there is one."""
        self.outcome, self.reason = outcome, reason
        if status is not None:
            self.status = status

    def of_background(self, outcome: str) -> "Observation":
        """Return the observation of a call of ours that this request gives rise to."""
        return Observation(
            self.endpoint,
            self.clock(),
            self.clock,
            self.sinks,
            model=self.model,
            rule=self.rule,
            holder=self.holder,
            team=self.team,
            streamed=self.streamed,
            outcome=outcome,
            trace=None if self.trace is None else self.trace.background(),
            method="",
        )

    def settle(self) -> None:
        """Note that its call is over, after its client."""
        self.pending = False
        self.finish()
        if self.on_settled is not None:
            self.on_settled(self)

    def finish(self) -> None:
        """Hand over to the sinks, once and not before the usage is known."""
        if self.ended is None:
            self.ended = self.clock()
        if not (self.pending or self.handed_over):
            self.handed_over = True
            for sink in self.sinks:
                sink(self)
            if self.trace is not None:
                self.trace.end(self)


Sink = Callable[[Observation], None]

OnStep = Callable[[object, float, Observation, object], None]
"""Takes a step of a request: what was done, when it began, for whom, and what came of it."""
