"""Counts what the holders of limited keys use, and agrees with all who count for the same holders.

Law: a decision needs no I/O. What this process has counted goes to the shared counts in the
background, and their totals come back. If these fail, the process goes on with what it knows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from math import ceil
from typing import Any

from gateway.cache.ports import Count, KeyCounts, StoreError
from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import ClientError
from gateway.protocol.headers import Fields
from gateway.protocol.request import CacheRequest
from gateway.protocol.tokens import NOTHING_SAID, prompt_tokens, tokens_in
from gateway.server.keys.key_line import Key, format_time
from gateway.server.keys.limits import (
    NO_LIMITS,
    Limits,
    Refusal,
    Usage,
    Window,
    limit_fields,
    limit_lines,
    over_soft_budget,
    refusal,
    window_of,
)
from gateway.telemetry.observation import Observation

EXCHANGE_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""Between two exchanges with the shared counts while there is something to exchange, and before a
failed one is tried again."""

STREAM_BYTES_A_TOKEN = 200
"""Bytes of a stream for each token, where nothing better is known."""

_UPSTREAMS_OWN = "x-ratelimit-"

_LEFT = frozenset({Reason.CLIENT_GONE, Reason.CLIENT_TIMEOUT})

_log = logging.getLogger(__name__)

Gate = Callable[[float], bytes | None]
"""Takes the time of a repeated request. Returns None if the pipeline must see the request, else
what its reply has besides: lines of a head, each behind its line end."""


class LimitError(ClientError):
    """The holder of the key has used what it may. ``fields`` are headers of the reply."""

    def __init__(self, tab: "Tab", refused: Refusal, now: float) -> None:
        limits, seconds = tab.limits, ceil(refused.wait)
        again = f"Please try again in {seconds} s."
        kind, code, self.reason = refused.what, "rate_limit_exceeded", Reason.KEY_LIMIT
        match refused.what:
            case "budget":
                kind = code = "insufficient_quota"
                self.reason = Reason.KEY_BUDGET
                message = (
                    f"This API key has used its budget of {limits.budget}. "
                    f"It may be used again from {format_time(now + refused.wait)} on."
                )
            case "concurrency":
                kind = "requests"
                most = f"{limits.concurrency} requests at a time"
                message = f"Too many requests of this API key: it may have {most}. {again}"
            case what:
                most = f"{limits.rpm if what == 'requests' else limits.tpm:,} {what} a minute"
                message = f"Rate limit reached for this API key: {most}. {again}"
        super().__init__(429, message, kind=kind, code=code)
        self.fields = (("Retry-After", str(seconds)), *limit_fields(limits, tab.usage, now))


class Tab:
    """What one holder of limited keys has used, and may use."""

    __slots__ = ("_meter", "limits", "name", "usage")

    def __init__(self, name: str, limits: Limits, usage: Usage, meter: "Meter") -> None:
        self.name, self.limits, self.usage, self._meter = name, limits, usage, meter

    def repeat(self, now: float) -> bytes | None:
        """Count a repeated hit: the gate of ``Gate``."""
        self._meter.touch(self.name)
        if refusal(self.limits, self.usage, now) is not None:
            return None
        self.usage.count_request(self.limits, now)
        return limit_lines(self.limits, self.usage, now)

    def begin(self) -> "Ticket":
        """Count a request that begins. Raises LimitError."""
        now = self._meter.now()
        self._meter.touch(self.name)
        if (refused := refusal(self.limits, self.usage, now)) is not None:
            raise LimitError(self, refused, now)
        self.usage.count_request(self.limits, now)
        self.usage.running += 1
        return Ticket(self)

    def charge(self, tokens: int) -> None:
        """Count tokens; log once in each window that the soft budget is used up."""
        now, soft = self._meter.now(), self.limits.soft_budget
        self.usage.count_tokens(self.limits, tokens, now)
        self._meter.touch(self.name)
        if soft is None or not over_soft_budget(self.limits, self.usage, now):
            return
        window = window_of(soft.period, now)
        if self.usage.told != window:
            self.usage.told = window
            _log.warning("keys: %s has used its soft budget of %s", self.name, soft)

    def fields(self) -> Fields:
        """Return the headers that a reply has for the limits."""
        return tuple(limit_fields(self.limits, self.usage, self._meter.now()))


class Ticket:
    """A request under way whose key has limits."""

    __slots__ = ("_charged", "_request", "tab")

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self._charged = False
        self._request: Any = None

    def note(self, request: CacheRequest) -> None:
        """Note what the request is, once it is read."""
        self._request = request

    def label(self, fields: Fields) -> Fields:
        """Return a reply's headers with those of the limits; the upstream's are of another key."""
        kept = (field for field in fields if not field[0].lower().startswith(_UPSTREAMS_OWN))
        return (*kept, *self.tab.fields())

    def charge(self, seen: Observation) -> None:
        """Count the tokens of the upstream's call, once; a hit has none."""
        if self._charged or not self.tab.limits.counts_tokens:
            return
        self._charged = True
        if tokens := self._tokens(seen):
            self.tab.charge(tokens)

    def end(self, seen: Observation) -> None:
        """Count the end of the request."""
        self.charge(seen)
        self.tab.usage.running -= 1

    def _tokens(self, seen: Observation) -> int:
        usage, request, forward = seen.usage, self._request, seen.forward
        if usage != NOTHING_SAID:
            return (usage.prompt or 0) + (usage.completion or 0)
        if request is None or forward is None or forward.collapsed or seen.hit is not None:
            return 0
        if seen.reason not in _LEFT and not HTTPStatus.OK <= seen.status < HTTPStatus.BAD_REQUEST:
            return 0
        # Who leaves early gets no figure, nor does who asks an upstream that has none: such a
        # client must not use up more than its budget.
        prompt, size = prompt_tokens(request.endpoint, request.body), seen.answer_bytes
        spec = SPECS[request.endpoint]
        if spec.streaming is not None:
            return prompt + (size // STREAM_BYTES_A_TOKEN if request.streamed else tokens_in(size))
        # What is neither written nor embedded, such as a ranking, has tokens if the upstream says.
        return prompt if spec.is_batch else 0


class Meter:
    """The tabs of all holders of limited keys. Used from one event loop."""

    def __init__(self, counts: KeyCounts | None, now: Callable[[], float]) -> None:
        """Count with others who have the same ``counts``; without them, all is in memory."""
        self.now = now
        self.problem: str | None = None
        """Why the shared counts do not answer, or None."""
        self._counts = counts
        self._tabs: dict[str, Tab] = {}
        self._usages: dict[str, Usage] = {}
        self._touched: set[str] = set()
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    def tab(self, key: Key) -> Tab | None:
        """Return the tab of a key's holder, None for a key without limits."""
        if key.limits is NO_LIMITS:
            return None
        tab = self._tabs.get(key.name)
        if tab is None or tab.limits is not key.limits:
            usage = self._usage(key.name)
            tab = self._tabs[key.name] = Tab(key.name, key.limits, usage, self)
        return tab

    def begin(self, key: Key) -> Ticket | None:
        """Count a request that begins, if its key has limits. Raises LimitError."""
        tab = self.tab(key)
        return None if tab is None else tab.begin()

    def gate(self, key: Key) -> Gate | None:
        """Return what a repeated hit of this key must pass; None if there is nothing to check."""
        tab = self.tab(key)
        if key.expires is None:
            return None if tab is None else tab.repeat

        def pass_valid(now: float) -> bytes | None:
            if key.has_expired(now):
                return None
            return b"" if tab is None else tab.repeat(now)

        return pass_valid

    def touch(self, name: str) -> None:
        """Note that the holder's counts are to be exchanged."""
        if not self._touched:
            self._news.set()
        self._touched.add(name)

    def details(self) -> dict[str, Any]:
        """Return for /readyz whether the counts are shared."""
        return {"counts": "ok" if self.problem is None else self.problem}

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Know what was used before, and exchange counts until the end."""
        await self._load()
        watch = asyncio.create_task(self._exchange_often())
        try:
            yield
        finally:
            # Not cancelled: what an exchange under way hands over would be counted twice.
            self._closing.set()
            self._news.set()
            await watch
            await self.exchange()
            if self._counts is not None:
                await self._counts.close()

    async def exchange(self) -> None:
        """Hand over what was counted here, and learn what all have counted."""
        counts, touched = self._counts, self._touched
        self._touched = set()
        self._news.clear()
        if counts is None or not touched:
            return
        sent: dict[Count, tuple[Window, int]] = {}
        for name in touched:
            for what, counter in self._usages[name].counters.items():
                newest = next(reversed(counter.windows), None)
                for number, window in counter.windows.items():
                    if window.pending or number == newest:
                        sent[Count(name, what, number)] = window, window.pending
        try:
            totals = await counts.add({count: delta for count, (_, delta) in sent.items()})
        except StoreError as error:
            self._fail(error)
            self._touched |= touched
            self._news.set()
            return
        self._recover()
        for count, (window, delta) in sent.items():
            window.known = totals[count]
            window.pending -= delta

    def _usage(self, name: str) -> Usage:
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage()
        return usage

    async def _load(self) -> None:
        if self._counts is None:
            return
        now = self.now()
        # Of minutes the one before counts, too.
        windows = [
            (what, window_of(counter.period, now) - back)
            for what, counter in Usage().counters.items()
            for back in ((1, 0) if counter.period == "minute" else (0,))
        ]
        try:
            for count, amount in (await self._counts.load(windows)).items():
                counter = self._usage(count.holder).counters.get(count.what)
                if counter is not None:
                    counter.at(count.window).known = amount
        except StoreError as error:
            self._fail(error)

    async def _exchange_often(self) -> None:
        while not self._closing.is_set():
            await self._news.wait()
            pause = EXCHANGE_SECONDS if self.problem is None else RETRY_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            try:
                await self.exchange()
            except Exception:  # noqa: BLE001 - the next exchange may succeed
                _log.exception("keys: the counts could not be shared")

    def _fail(self, error: StoreError) -> None:
        if self.problem is None:
            _log.error(
                "keys: the shared counts do not answer, so each process counts by itself: %s", error
            )
        self.problem = str(error)

    def _recover(self) -> None:
        if self.problem is not None:
            _log.info("keys: the shared counts answer again")
        self.problem = None
