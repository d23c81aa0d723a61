"""Counts what the holders of limited keys use, and agrees with all who count for the same holders.

What this process has counted goes to the shared counts in the background, and their totals come
back. If the shared counts fail, the process goes on with what it knows, or it refuses all requests
of limited keys: a setting says which. If they have lost what was in them, they get back the totals
that their users know.

Law: what was handed over without an answer may be counted. It is handed over again, as it was and
under the same name, before anything else.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Protocol

from gateway import background
from gateway.cache.ports import StoreError
from gateway.cache.stores.counts import Change, Count
from gateway.cache.stores.windows import PERIODS, RATE
from gateway.server.keys.key_line import Key
from gateway.server.keys.limiter import RETRY_SECONDS, KeyLimiter, Permit
from gateway.server.keys.limits import NO_LIMITS, Usage, Window, is_near
from gateway.telemetry.prices import Prices

EXCHANGE_SECONDS = 0.1
"""Between two exchanges of the counts of holders that are near a limit."""

ROUNDS_OF_ALL = 10
"""In every so many exchanges all holders take part who have used something."""

CLOSED_AFTER = 2
"""Exchanges in a row that fail until holders may be refused: one of them may have come too late."""

_MOST_WARNINGS = 256
_MOST_SHOWN = 8
"""Holders, and models of each, that a text names."""
_MOST_MODELS = 32
"""Refused ones that are kept of a holder, so that no holder's crowd out another's."""
REFUSED_SECONDS = 86_400.0
"""So long after its last refusal a model is a problem: it may have been a slip."""
_LONGEST = 128

_log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "keys"}}

Batch = Mapping[Count, tuple[Window, Change]]
"""Changes that are handed over together, each with the window of this process."""

Gate = Callable[[float], bytes | None]
"""Takes the time of a repeated request. Returns None if the pipeline must see the request, else
what its reply has besides: lines of a head, each behind its line end."""


def _unpriced(name: str, models: Sequence[str]) -> str:
    shown = ", ".join(f"{model!r}" for model in models[:_MOST_SHOWN])
    more = f" and {len(models) - _MOST_SHOWN} more" if len(models) > _MOST_SHOWN else ""
    return (
        f"every request of {name} for {shown}{more} is refused: the key has a budget in dollars, "
        "and no price of the model is known; add it to the file of the setting prices, or give the "
        "upstream the preset of its engine"
    )


class KeyCounts(Protocol):
    """What holders of gateway keys have used, counted by several processes together.

    Failures are StoreErrors.
    """

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        """Return the amounts of all holders in these windows: what is counted, and its number."""

    async def add(self, batch: str, changes: Mapping[Count, Change]) -> Mapping[Count, int]:
        """Add to amounts, zero to some; return the total of each.

        ``batch`` names these changes. If an add fails, it may have been done, whole or in part:
        the same changes under the same name are then counted once. If a total is less than
        ``known``, counts were lost: it is raised to ``known`` first.
        """

    async def close(self) -> None: ...


class UsageSync:
    """The limiters of all holders of limited keys. Used from one event loop."""

    def __init__(
        self,
        counts: KeyCounts | None,
        now: Callable[[], float],
        prices: Prices | None = None,
        *,
        fails_open: bool = True,
        refuse_unknown: Callable[[str], None] | None = None,
    ) -> None:
        """Count with others who have the same ``counts``; without them, all is in memory."""
        self.now = now
        self.prices = Prices({}) if prices is None else prices
        self.problem: str | None = None
        """Why the shared counts do not answer, or None."""
        self._fails_open = fails_open
        self._failures = 0
        self._counts = counts
        self._loaded = counts is None
        self._unanswered: tuple[str, Batch] | None = None
        """What was handed over without an answer, and its name."""
        self._holders: frozenset[str] | None = None
        self._limiters: dict[str, KeyLimiter] = {}
        self._usages: dict[str, Usage] = {}
        self._touched: set[str] = set()
        self._unpriced: set[str] = set()
        self._refuse_unknown = refuse_unknown
        self._refused: dict[str, dict[str, float]] = {}
        """When holders with a budget in dollars last asked for models without a price."""
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether holders are refused, since nobody knows what they have used."""
        return self._failures >= CLOSED_AFTER and not self._fails_open

    def limiter(self, key: Key) -> KeyLimiter | None:
        if key.limits is NO_LIMITS:
            return None
        limiter = self._limiters.get(key.name)
        if limiter is None or limiter.limits is not key.limits:
            usage = self._usage(key.name)
            limiter = self._limiters[key.name] = KeyLimiter(key.name, key.limits, usage, self)
        return limiter

    def begin(self, key: Key) -> Permit | None:
        """Count a request that begins, if its key has limits. Raises LimitError."""
        limiter = self.limiter(key)
        return None if limiter is None else limiter.begin()

    def gate(self, key: Key) -> Gate | None:
        """Return what a repeated hit of this key must pass; None if there is nothing to check."""
        limiter = self.limiter(key)
        if key.expires is None:
            return None if limiter is None else limiter.repeat

        def pass_valid(now: float) -> bytes | None:
            if key.has_expired(now):
                return None
            return b"" if limiter is None else limiter.repeat(now)

        return pass_valid

    def keep(self, holders: Collection[str]) -> None:
        """Drop all other holders, once what they have used is handed over."""
        before, self._holders = self._holders, frozenset(holders)
        self._refused.clear()
        if self._counts is not None and before is not None and not self._holders <= before:
            # A new holder may have been there before.
            self._loaded = False
        for name in self._usages.keys() - self._holders:
            self.touch(name)
        self._news.set()

    def touch(self, name: str) -> None:
        if not self._touched:
            self._news.set()
        self._touched.add(name)

    def warn_unpriced(self, model: str) -> None:
        """Log once that the use of a model costs nothing in budgets."""
        model = model[:_LONGEST]
        if model not in self._unpriced and len(self._unpriced) < _MOST_WARNINGS:
            self._unpriced.add(model)
            _log.warning(
                "keys: the price of %.128r is not known, so soft budgets in dollars leave it out; "
                "add it to the file of prices",
                model,
            )

    def refuse_unpriced(self, name: str, model: str) -> None:
        """Note that a holder gets no answer of a model. Raises ClientError if nobody has it.

        No request of the holder for that model can pass, so operators must learn of it.
        """
        if self._refuse_unknown is not None and model:
            self._refuse_unknown(model)
        model = model[:_LONGEST]
        models = self._refused[name] = self._lately_refused(name)
        if model not in models:
            if len(models) >= _MOST_MODELS:
                return
            _log.warning("keys: %s", _unpriced(name, [model]), extra=_EVENT)
        models[model] = self.now()

    def _lately_refused(self, name: str) -> dict[str, float]:
        models, since = self._refused.get(name, {}), self.now() - REFUSED_SECONDS
        return {model: at for model, at in models.items() if at > since}

    def details(self, problems: Sequence[str]) -> dict[str, Any]:
        """Return for /readyz whether the counts are shared, and what is wrong with keys."""
        found = ((name, [*self._lately_refused(name)]) for name in self._refused)
        models = {name: refused for name, refused in found if refused}
        unpriced = [_unpriced(*each) for each in islice(models.items(), _MOST_SHOWN)]
        if (more := len(models) - len(unpriced)) > 0:
            unpriced.append(f"{more} more holders are refused in this way")
        counts = "ok" if self.problem is None else self.problem
        return {"counts": counts, "problems": [*problems, *unpriced]}

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Know what was used before, and exchange counts until the end."""
        await self.exchange()
        if self._failures:
            # Nothing is known: it needs no second failure.
            self._failures = CLOSED_AFTER
        watch = background.start("counts of keys", self._exchange_often, sleep=self._pause)
        try:
            yield
        finally:
            # Not cancelled: an exchange under way would lose its answer.
            self._closing.set()
            self._news.set()
            await watch
            await self.exchange()
            if self._counts is not None:
                await self._counts.close()

    async def exchange(self, *, near: bool = False) -> None:
        """Hand over what was counted here, and learn what all have counted.

        With ``near``, only holders take part that are near a limit.
        """
        touched = self._touched
        if near:
            now = self.now()
            touched = {name for name in touched if self._is_near(name, now)}
            if not touched and self._loaded:
                return
        self._touched = self._touched - touched
        if not self._touched:
            self._news.clear()
        try:
            await self._share(touched)
        except StoreError as error:
            self._fail(error)
            self._touched |= touched
            self._news.set()
        for name in touched:
            self._settle(name)

    async def _share(self, touched: Collection[str]) -> None:
        """Exchange the counts of these holders. Raises StoreError."""
        counts = self._counts
        if counts is None:
            return
        if not self._loaded:
            await self._load(counts)
        if self._unanswered is not None:
            await self._hand_over(counts, *self._unanswered)
        sent: dict[Count, tuple[Window, Change]] = {}
        for name in touched:
            usage = self._usages.get(name)
            for what, counter in () if usage is None else usage.counters.items():
                newest = next(reversed(counter.windows), None)
                for number, window in counter.windows.items():
                    if window.pending or number == newest:
                        change = Change(window.pending, window.known)
                        sent[Count(name, what, number)] = window, change
        if sent:
            await self._hand_over(counts, secrets.token_hex(8), sent)

    async def _hand_over(self, counts: KeyCounts, name: str, batch: Batch) -> None:
        """Add to the shared counts, and learn their totals. Raises StoreError."""
        self._unanswered = name, batch
        totals = await counts.add(name, {count: change for count, (_, change) in batch.items()})
        self._unanswered = None
        self._recover()
        for count, (window, change) in batch.items():
            window.known = totals[count]
            window.pending -= change.amount

    def _is_near(self, name: str, now: float) -> bool:
        limiter = self._limiters.get(name)
        return limiter is None or is_near(limiter.limits, limiter.usage, now)

    def _settle(self, name: str) -> None:
        """Let the holder's next repeated hit see the new totals, or drop a holder without a key."""
        usage = self._usages.get(name)
        if usage is None:
            return
        usage.second = -1
        windows = (each for it in usage.counters.values() for each in it.windows.values())
        left = self._counts is not None and any(window.pending for window in windows)
        if self._holders is None or name in self._holders:
            if left:
                self.touch(name)  # counted while the exchange was under way
        elif not left and not usage.running:
            del self._usages[name]
            self._limiters.pop(name, None)

    def _usage(self, name: str) -> Usage:
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage()
        return usage

    async def _load(self, counts: KeyCounts) -> None:
        """Learn what was counted before. Raises StoreError."""
        now = self.now()
        # Of minutes the one before counts, too.
        windows = [
            (what, PERIODS[counter.period].window_of(now) - back)
            for what, counter in Usage().counters.items()
            for back in ((1, 0) if counter.period == RATE else (0,))
        ]
        for count, amount in (await counts.load(windows)).items():
            if self._holders is None or count.holder in self._holders:
                usage = self._usage(count.holder)
                usage.second = -1
                if (counter := usage.counters.get(count.what)) is not None:
                    counter.at(count.window).known = amount
        self._loaded = True
        self._recover()

    async def _exchange_often(self) -> None:
        number = 0
        while not self._closing.is_set():
            await self._news.wait()
            number += 1
            pause = EXCHANGE_SECONDS if self.problem is None else RETRY_SECONDS
            await self._pause(pause)
            await self.exchange(near=number % ROUNDS_OF_ALL > 0 and self.problem is None)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _fail(self, error: StoreError) -> None:
        self._failures += 1
        if self.problem is None:
            result = "each process counts by itself"
            if not self._fails_open:
                result = "keys with limits are refused"
            text = "keys: the shared counts do not answer, so %s: %s"
            _log.error(text, result, error, extra=_EVENT)
        self.problem = str(error)

    def _recover(self) -> None:
        if self.problem is not None:
            _log.info("keys: the shared counts answer again", extra=_EVENT)
        self.problem, self._failures = None, 0
