"""What one holder of limited keys has used and may use, and its requests under way.

Law: a decision needs no I/O. A repeated hit only counts down what was worked out for its second;
any other change of the counts (``Usage.second``) ends that.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from math import ceil
from typing import Protocol

from gateway.cache.stores.windows import PERIODS
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import LEFT_BY_CLIENT, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, asked_tokens, tokens_in
from gateway.server.keys.key_line import ForbiddenError, format_time
from gateway.server.keys.limits import (
    NANO,
    Limits,
    Refusal,
    Usage,
    Window,
    limit_fields,
    limit_lines,
    over_soft_budgets,
    refusal,
)
from gateway.telemetry.observation import Observation
from gateway.telemetry.prices import Price, Prices

RETRY_SECONDS = 1.0
"""Until shared counts that fail are tried again."""

_UPSTREAMS_OWN = "x-ratelimit-"


_log = logging.getLogger(__name__)


class Shared(Protocol):
    """What all limiters have in common: the ``UsageSync``."""

    now: Callable[[], float]
    prices: Prices

    @property
    def is_closed(self) -> bool:
        """Whether holders are refused, since nobody knows what they have used."""

    def touch(self, name: str) -> None: ...
    def warn_unpriced(self, model: str) -> None:
        """Log once that the use of a model costs nothing in budgets."""

    def refuse_unpriced(self, name: str, model: str) -> None:
        """Note that a holder gets no answer of a model. Raises ClientError if nobody has it."""


class LimitError(ClientError):
    """The holder of the key has used what it may. ``fields`` are headers of the reply."""

    def __init__(self, limiter: "KeyLimiter", refused: Refusal, now: float) -> None:
        limits, seconds, status = limiter.limits, ceil(refused.wait), 429
        again = f"Please try again in {seconds} s."
        kind, code, self.reason = refused.what, "rate_limit_exceeded", Reason.KEY_LIMIT
        match refused.what:
            case "budget":
                kind = code = "insufficient_quota"
                self.reason = Reason.KEY_BUDGET
                message = (
                    f"This API key has used its budget of {refused.budget}. "
                    f"It may be used again from {format_time(now + refused.wait)} on."
                )
            case "counts":
                status, kind, code = 503, "server_error", "key_counts_unavailable"
                self.reason = Reason.KEY_COUNTS
                message = f"What this API key has used is not known at present. {again}"
            case "concurrency":
                kind = "requests"
                most = f"{limits.concurrency} requests at a time"
                message = f"Too many requests of this API key: it may have {most}. {again}"
            case what:
                most = f"{limits.rpm if what == 'requests' else limits.tpm:,} {what} a minute"
                message = f"Rate limit reached for this API key: {most}. {again}"
        super().__init__(status, message, kind=kind, code=code)
        self.fields = (("Retry-After", str(seconds)), *limit_fields(limits, limiter.usage, now))


class KeyLimiter:
    """What one holder of limited keys has used, and may use."""

    __slots__ = (
        *("_after", "_before", "_left", "_shared", "_window"),
        *("counts_dollars", "counts_tokens", "limits", "name", "usage"),
    )

    def __init__(self, name: str, limits: Limits, usage: Usage, shared: Shared) -> None:
        self.name, self.limits, self.usage, self._shared = name, limits, usage, shared
        self.counts_tokens, self.counts_dollars = limits.counts_tokens, limits.counts_dollars
        usage.second = -1
        self._window: Window | None = None
        """Where repeated hits of this second count, if they do; ``_left`` of them go on."""
        self._before = self._after = b""
        self._left = 0

    def repeat(self, now: float) -> bytes | None:
        """Count a repeated hit: the gate of ``Gate``."""
        if int(now) != self.usage.second:
            return self._repeat_anew(now)
        window = self._window
        if window is None:
            return self._after
        left = self._left = self._left - 1
        if left < 0:
            return None
        window.pending += 1
        return b"%b%d%b" % (self._before, left, self._after)

    def _repeat_anew(self, now: float) -> bytes | None:
        """Count the first repeated hit of a second, and work out what others get."""
        usage, limits = self.usage, self.limits
        self._shared.touch(self.name)
        if self._refusal(now) is not None:
            return None
        usage.count_request(limits, now)
        lines = limit_lines(limits, usage, now)
        self._before, self._left, self._after = lines
        requests = usage.requests
        self._window = None if limits.rpm is None else requests.at(requests.number(now))
        usage.second = int(now)
        return lines.whole()

    def begin(self) -> "Permit":
        now, usage = self._shared.now(), self.usage
        self._shared.touch(self.name)
        if (refused := self._refusal(now)) is not None:
            raise LimitError(self, refused, now)
        usage.count_request(self.limits, now)
        usage.running += 1
        usage.second = -1
        return Permit(self)

    def check_price(self, model: str, *, writes: bool) -> None:
        """Raise ForbiddenError if a budget in dollars needs the model's price, which is unknown."""
        if not self.counts_dollars:
            return
        if self._shared.prices.knows(model, writes=writes):
            return
        if self.limits.needs_price:
            self._shared.refuse_unpriced(self.name, model)
            raise ForbiddenError(
                "This API key has a budget in dollars, and the price of this model is not known "
                "here. The operator can add it to the file of prices.",
                "model",
            )
        self._shared.warn_unpriced(model)

    def charge(self, used: PromptUsage, model: str, asked: str) -> None:
        """Count the use of a call; log once in each window that a soft budget is used up.

        A fallback ``model`` may have no price. Then the price of the ``asked`` model holds.
        """
        now, usage, limits = self._shared.now(), self.usage, self.limits
        tokens = (used.prompt or 0) + (used.completion or 0)
        cost = self._cost(used, model, asked) if self.counts_dollars else 0
        usage.count_use(limits, tokens, cost, now)
        usage.second = -1
        self._shared.touch(self.name)
        for soft in over_soft_budgets(limits, usage, now) if limits.soft_budget else ():
            window = PERIODS[soft.period].window_of(now)
            if usage.told.get(soft) != window:
                usage.told[soft] = window
                _log.warning("keys: %s has used its soft budget of %s", self.name, soft)

    def end(self) -> None:
        self.usage.running -= 1
        self.usage.second = -1
        self._shared.touch(self.name)

    def fields(self) -> Fields:
        return tuple(limit_fields(self.limits, self.usage, self._shared.now()))

    def check_spent(self) -> None:
        """Raise LimitError if no tokens are left, for who is at work already."""
        now, limits = self._shared.now(), replace(self.limits, rpm=None, concurrency=None)
        if (refused := refusal(limits, self.usage, now)) is not None:
            raise LimitError(self, refused, now)

    def _refusal(self, now: float) -> Refusal | None:
        if self._shared.is_closed:
            return Refusal("counts", RETRY_SECONDS)
        return refusal(self.limits, self.usage, now)

    def _cost(self, used: PromptUsage, model: str, asked: str) -> int:
        """Return thousand millionths of a dollar; what has no price costs nothing."""
        cached = min(used.cached or 0, used.prompt or 0)
        for name in (model, asked):
            price = self._shared.prices.find(name) or Price()
            cost = price.cost(used.prompt or 0, used.completion or 0, cached)
            if cost is not None:
                return round(cost * NANO)
        return 0


class Permit:
    """A request under way whose key has limits."""

    __slots__ = ("_charged", "_passed", "_request", "limiter")

    def __init__(self, limiter: KeyLimiter) -> None:
        self.limiter = limiter
        self._charged = False
        self._request: CacheRequest | None = None
        self._passed = NOTHING_SAID
        """What a request that passes through is charged if the upstream reports no usage."""

    def note(self, request: CacheRequest) -> CacheRequest:
        """Note the request once it is read, and return what is to be sent.

        Raises ForbiddenError.
        """
        writes = SPECS[request.endpoint].streaming is not None
        self.limiter.check_price(request.model, writes=writes)
        self._request = request
        return replace(request, needs_usage=True) if self.limiter.counts_tokens else request

    def note_passed(self, model: str, tokens: int, *, needs_model: bool) -> None:
        """Note a request that passes through, and its estimated tokens. Raises ForbiddenError."""
        if model or needs_model:
            self.limiter.check_price(model, writes=True)
            self._passed = PromptUsage(tokens)

    def label(self, fields: Fields) -> Fields:
        """Return a reply's headers with our headers of limits, in place of the upstream's."""
        kept = [field for field in fields if not field[0].lower().startswith(_UPSTREAMS_OWN)]
        return (*kept, *self.limiter.fields())

    def charge(self, seen: Observation) -> None:
        """Count the use of the upstream's call, once; a hit has none."""
        if self._charged or not self.limiter.counts_tokens:
            return
        self._charged, asked = True, seen.asked
        for call in seen.call.earlier:
            self.limiter.charge(call.usage, asked.model, asked.model)
        if (used := self._use(seen)) != NOTHING_SAID:
            self.limiter.charge(used, asked.answering_model, asked.model)

    def charge_part(self, used: PromptUsage, model: str) -> None:
        """Count the use of one answer of several, which ``charge`` does not count again."""
        self._charged = True
        if self.limiter.counts_tokens:
            self.limiter.charge(used, model, model)

    def end(self) -> None:
        """Count the end of the request."""
        self.limiter.end()

    def _use(self, seen: Observation) -> PromptUsage:
        call, request = seen.call, self._request
        usage = call.usage
        if usage != NOTHING_SAID:
            return usage
        # The client of a request that passes through may leave before any reply.
        paid = call.pays and seen.hit is None
        if not (paid if request is not None else call.started is not None):
            return NOTHING_SAID
        if (
            seen.reason not in LEFT_BY_CLIENT
            and not HTTPStatus.OK <= seen.status < HTTPStatus.BAD_REQUEST
        ):
            return NOTHING_SAID
        if request is None:
            return self._passed
        # The call has no figure if its client leaves early, or if its upstream reports none. The
        # estimate keeps such a client within its budget.
        prompt, size = asked_tokens(request), max(seen.answer_bytes, call.produced_bytes)
        known = call.usage_so_far
        spec = SPECS[request.endpoint]
        if (streaming := spec.streaming) is not None:
            answer = size // streaming.bytes_a_token if request.streamed else tokens_in(size)
            prompt, answer = max(prompt, known.prompt or 0), max(answer, known.completion or 0)
            return PromptUsage(prompt, answer, known.cached)
        # What is neither written nor embedded, such as a ranking, has tokens if the upstream says.
        return PromptUsage(prompt) if spec.is_batch else NOTHING_SAID
