"""The facts of one request for metrics, trace and log: figures and reasons, never text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from gateway.cache.lookup import Forward, Hit
from gateway.prompts.outcome import Compression, Declined, Rewrite
from gateway.protocol.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage


@dataclass(slots=True)
class CallFacts:
    """A call to the upstream. All requests that share it have the same value.

    Times are readings of the requests' clock. ``ended`` is None until the whole answer has come.
    """

    started: float | None = None
    ended: float | None = None
    usage: PromptUsage = NOTHING_SAID


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
    trace_headers: dict[str, str] = field(default_factory=dict)
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
    looking: bool = False
    """Whether the request is looked up, and has joined no upstream call yet."""
    record: dict[str, Any] | None = None
    """The request's record in the decision log; None without a log."""
    key: bytes | None = None
    hit: Hit | None = None
    """The stored answer that was served."""
    verified: list[tuple[str, float | None]] = field(default_factory=list)
    """Of each candidate that was looked into: ``hit`` or why not, and its score if it has one."""
    span: "Sink | None" = None
    """A sink for this request alone."""
    method: str = "POST"
    """The method of the client's request, empty for a call of ours."""

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
        """Note how the request ends. ``status`` is that of the reply, if there is one."""
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
            method="",
        )

    def finish(self) -> None:
        """Hand over to the sinks; a second call does nothing."""
        if self.ended is None:
            self.ended = self.clock()
            for sink in self.sinks:
                sink(self)
            if self.span is not None:
                self.span(self)


Sink = Callable[[Observation], None]
