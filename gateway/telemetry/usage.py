"""The sums of what requests used and saved: in memory, and every few seconds in a store.

Law: no request waits for a store. What cannot be written is kept and written later, once. Memory is
bounded: beyond ``USAGE_ROWS`` rows of a day, figures are summed as ``other``.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from gateway import background
from gateway.cache.ports import Entry, StoreError, StoreUnavailableError
from gateway.cache.stores.counts import USAGE_ROWS, UsageRow
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage
from gateway.telemetry.observation import Observation
from gateway.telemetry.prices import Prices
from gateway.telemetry.savings import (
    OTHERS,
    Account,
    Figures,
    Labels,
    Way,
    account,
    account_of_earlier,
    add,
    day_of,
    entry_usage,
    report,
)

log = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
SEED_DAYS = 7
"""Days whose mean time of a call holds until the first call of a model."""

COUNTED_ENTRIES = 10_000
"""Of so many entries that were hit last, the hits are counted: about 4 MB."""
_MOST_ENTRIES = 4_096
_MOST_MODELS = 256
_MOST_CALLS = 101
"""Calls of a model of which the median time is taken."""

_MOST_SERIES = 256
"""Models and upstreams that metrics name."""

_MOST_WAITING = 1_024
"""Finished requests that wait to be counted."""

Count = Callable[..., None]
"""Counts in a metric: its name, its labels, and ``by`` how much."""


@dataclass(slots=True, eq=False)
class RepeatedHit:
    """A hit that the hot path may repeat. ``account`` is worked out with the next counting."""

    account: Account | None = None
    key: bytes = b""


class UsageStore(Protocol):
    """Where the figures of usage are summed, for all gateways of one store."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Add the figures to the stored figures. Raises StoreError.

        ``batch`` names these rows: if they are added again under the same name, nothing changes.
        Beyond USAGE_ROWS rows of a day, figures count under USAGE_OTHER.
        """

    async def read(self, since: str) -> list[UsageRow]:
        """Return all rows from a day on. Raises StoreError."""

    async def close(self) -> None: ...


class UsageLedger:
    """A sink of observations. Used from one event loop.

    A request only leaves its observation here. Counting follows with the next look at the figures,
    so that no request waits for it.

    ``count`` counts in the metrics; ``upstream`` names the only upstream, if there is one.
    """

    def __init__(
        self,
        store: UsageStore,
        prices: Prices,
        count: Count,
        *,
        now: Callable[[], float],
        upstream: str = "",
    ) -> None:
        self.repeated: defaultdict[RepeatedHit, int] = defaultdict(int)
        """How often the hot path repeated a hit, since ``collect``."""
        self.remembered: list[tuple[RepeatedHit, Observation]] = []
        """Hits that the hot path may repeat, and the requests that got them, since ``collect``."""
        self._waiting: list[Observation] = []
        self._store = store
        self.prices = prices
        self._count = count
        self._now = now
        self._upstream = upstream
        self._rows: dict[tuple[str, Labels], Figures] = {}
        self._unsent: tuple[str, list[UsageRow]] | None = None
        """A batch that is being written, and its name."""
        self._sending = asyncio.Lock()
        self._fault: StoreError | None = None
        """Why the last figures wait."""
        self._typical = TypicalTimes()
        self._usages: OrderedDict[tuple[bytes, float], PromptUsage] = OrderedDict()
        self._series: set[tuple[str, str]] = set()
        self._hits: OrderedDict[bytes, int] = OrderedDict()
        """Hits by the key of the entry, the latest hit at the end."""

    def observe(self, seen: Observation) -> None:
        self._waiting.append(seen)
        if len(self._waiting) >= _MOST_WAITING:
            self.collect()

    def hits_of(self, key: bytes) -> int:
        self.collect()
        return self._hits.get(key, 0)

    def _observe(self, seen: Observation) -> None:
        if seen.hit is not None:
            self._count_hits(seen.hit.entry.key, 1)
        for call in seen.call.earlier:
            price = self.prices.find(seen.asked.model)
            self._add(account_of_earlier(seen, call, price, self._upstream), 1)
        counted = self.account(seen)
        if counted is None:
            return
        self._add(counted, 1)
        if (seconds := counted.figures.get("call_seconds")) is not None:
            self._typical.note(counted.labels.model, seconds)

    def account(self, seen: Observation) -> Account | None:
        hit = NOTHING_SAID if seen.hit is None else self._usage_of(seen.hit.entry)
        model = seen.asked.answering_model
        seconds = self._typical.seconds(model) if seen.hit is not None else None
        return account(seen, hit, self.prices.find(model), seconds, self._upstream)

    def collect(self) -> None:
        """Count the requests that wait, and the hits that the hot path repeated."""
        waiting, self._waiting = self._waiting, []
        for seen in waiting:
            self._observe(seen)
        remembered, self.remembered = self.remembered, []
        for hit, seen in remembered:
            hit.account = self.account(seen)
            hit.key = b"" if seen.hit is None else seen.hit.entry.key
        repeated, self.repeated = self.repeated, defaultdict(int)
        for hit, times in repeated.items():
            if hit.account is not None:
                self._add(hit.account, times)
                self._count_hits(hit.key, times)

    async def report(self, since: str, by: str, team: str | None = None) -> dict[str, Any]:
        """Return the figures from a day on, summed as ``report`` does. Raises StoreError."""
        await self.flush()
        if isinstance(self._fault, StoreUnavailableError):
            raise self._fault  # a read would wait as long again
        rows = [*await self._store.read(since), *self._pending()]
        return {"since": since, **report(rows, by, team), "prices": self.prices.source}

    async def flush(self) -> None:
        """Write what was counted. What cannot be written waits for the next time."""
        async with self._sending:
            self.collect()
            if self._unsent is None and self._rows:
                self._unsent = secrets.token_hex(8), self._take()
            if self._unsent is None:
                return
            try:
                await self._store.add(*self._unsent)
            except StoreError as error:
                if self._fault is None:
                    log.warning("usage: figures wait for the store: %s", error)
                self._fault = error
            else:
                self._unsent = self._fault = None

    async def seed(self) -> None:
        """Read how long calls took on earlier days. Raises StoreError."""
        earlier = await self._store.read(day_of(self._now() - SEED_DAYS * 86_400))
        self._typical.seed(report(earlier, "model")["rows"])

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Write every few seconds, and at the end."""
        flushes = background.start("sums of usage", self._flush_often)
        try:
            yield
        finally:
            flushes.cancel()
            await asyncio.wait([flushes])
            await self.flush()
            await self._store.close()

    async def _flush_often(self) -> None:
        with contextlib.suppress(StoreError):
            await self.seed()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    def _pending(self) -> list[UsageRow]:
        waiting = [] if self._unsent is None else self._unsent[1]
        return [*waiting, *self._as_rows()]

    def _take(self) -> list[UsageRow]:
        rows, self._rows = self._as_rows(), {}
        return rows

    def _as_rows(self) -> list[UsageRow]:
        return [
            UsageRow(day, labels.text(), dict(figures))
            for (day, labels), figures in self._rows.items()
        ]

    def _add(self, counted: Account, times: int) -> None:
        row = day_of(self._now()), counted.labels
        if row not in self._rows and len(self._rows) >= USAGE_ROWS:
            row = row[0], OTHERS
        add(self._rows.setdefault(row, Figures()), counted.figures, times)
        self._count_metrics(counted, times)

    def _count_hits(self, key: bytes, times: int) -> None:
        self._hits[key] = self._hits.pop(key, 0) + times
        if len(self._hits) > COUNTED_ENTRIES:
            self._hits.popitem(last=False)

    def _count_metrics(self, counted: Account, times: int) -> None:
        figures, count = counted.figures, self._count
        for way in Way:
            if f"{way}_requests" not in figures:
                continue
            for name in ("tokens", "dollars", "seconds"):
                if value := figures.get(f"{way}_{name}"):
                    metric = "cost" if name == "dollars" else name
                    unit = "_dollars" if name == "dollars" else ""
                    count(f"{metric}_saved{unit}", way.value, by=value * times)
        if "prompt_tokens" not in figures:
            return
        series = counted.labels.model, counted.labels.upstream
        if series not in self._series and len(self._series) >= _MOST_SERIES:
            series = OTHERS.model, OTHERS.upstream
        self._series.add(series)
        for kind in ("prompt", "completion"):
            count("tokens_used", *series, kind, by=figures[f"{kind}_tokens"] * times)

    def _usage_of(self, entry: Entry) -> PromptUsage:
        """Return the usage in an entry's result, which is read once."""
        name = entry.key, entry.stored_at
        found = self._usages.get(name)
        if found is None:
            found = self._usages[name] = entry_usage(entry)
            if len(self._usages) > _MOST_ENTRIES:
                self._usages.popitem(last=False)
        return found


class TypicalTimes:
    """How long a call for a model usually takes, in seconds from forwarding to its last byte."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()
        self._medians: dict[str, float] = {}

    def note(self, model: str, seconds: float) -> None:
        recent = self._recent.setdefault(model, deque(maxlen=_MOST_CALLS))
        recent.append(seconds)
        self._medians[model] = median(recent)
        if len(self._recent) > _MOST_MODELS:
            oldest, _ = self._recent.popitem(last=False)
            del self._medians[oldest]

    def seed(self, rows: list[dict[str, Any]]) -> None:
        """Take the mean of earlier days for models without a call so far."""
        for row in rows[:_MOST_MODELS]:
            if row["mean_seconds"] is not None:
                self._medians.setdefault(row["model"], row["mean_seconds"])

    def seconds(self, model: str) -> float | None:
        """Return the median of recent calls; None where nothing is known."""
        return self._medians.get(model)
