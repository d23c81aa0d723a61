"""The overview: figures of all workers that the operator's page polls and draws.

Laws. Counts are sums since the start, so the page takes differences, and a poll that is lost loses
nothing. Several pages share one look. An engine that does not answer is left alone for a while.
"""

import asyncio
import importlib.metadata
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from prometheus_client.metrics_core import Metric

from gateway.cache.append_files import replace_file
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import LEFT_BY_CLIENT, Reason
from gateway.protocol.http.messages import read_up_to
from gateway.server.admin.operations import Fields
from gateway.upstream.pool.watch.engine_load import EngineLoad, parse_load
from gateway.upstream.wire.http_client import HttpUpstream

EVERY_SECONDS = 5.0
"""Between two samples of the history."""
HISTORY_SECONDS = 600.0
SHARED_SECONDS = 1.0
"""For so long, all pages see the same look."""
ENGINE_SECONDS = 1.0
PAUSE_SECONDS = 60.0
"""Between two questions to a server that has no figures of an engine."""

LATEST_EVENTS = 5
HISTORY_FILE = "overview-history.json"

_MAX_BYTES = 4 * 2**20
_DRAWN = frozenset({"requests", "saved", "ttft", "calls", "waiting"})
"""What charts need of the past."""

log = logging.getLogger(__name__)

_HITS = frozenset({Reason.EXACT, Reason.SEMANTIC})
_KINDS = {
    "miss": "miss",
    "bypass": "bypass",
    "pass": "bypass",
    "refused": "refused",
    "invalid": "refused",
    "error": "error",
}
"""Kinds of requests by outcome. Calls of the gateway itself are no requests."""

_SAVED = {
    "refrain_tokens_saved_total": "tokens",
    "refrain_cost_saved_dollars_total": "dollars",
    "refrain_seconds_saved_total": "seconds",
}


@dataclass(kw_only=True)
class Overview:
    """Looks at the gateway and its engines, at most once in ``SHARED_SECONDS``."""

    families: Callable[[], Awaitable[Iterable[Metric]]]
    readiness: Callable[[], Awaitable[Fields]]
    """Returns what ``/readyz`` reports."""
    check_store: Callable[[], Awaitable[None]]
    """Looks whether the store answers; ``readiness`` reports it."""
    rules: Callable[[], Fields]
    """Returns the figures of comparisons, by rule."""
    upstreams: Mapping[str, HttpUpstream]
    load: Callable[[str], EngineLoad | None]
    """Returns the load of an engine as routing knows it."""
    events: Callable[[], Awaitable[list[Fields]]]
    """Returns the latest events, the newest first. Raises OSError."""
    now: Callable[[], float]
    workers: int = 1
    keeps_history: bool = True
    clock: Callable[[], float] = time.monotonic
    started: float = 0.0
    """When the gateway was started: before the process that answers, if it was reloaded."""
    kept: Path | None = None
    """The file of the history, which outlasts a worker."""
    _version: str = ""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _latest: tuple[float, Fields] | None = None
    _paused: dict[str, float] = field(default_factory=dict)
    """Until when an upstream is not asked for figures of an engine."""
    _samples: deque[Fields] = field(
        default_factory=lambda: deque(maxlen=int(HISTORY_SECONDS / EVERY_SECONDS))
    )

    async def watch(self) -> None:
        """Keep a history, with which the page opens, until cancelled."""
        try:
            while self.keeps_history:
                try:
                    figures = await self._figures()
                except Exception:  # the next sample may succeed
                    log.exception("overview: a sample of the figures could not be taken")
                else:
                    self._samples.append({"time": self.now(), **self._drawn(figures)})
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            # The worker that takes the place of this one goes on from here.
            await asyncio.to_thread(self._keep)

    def _drawn(self, figures: Fields) -> Fields:
        known = {name: self.load(name) for name in self.upstreams}
        engines = {name: load._asdict() for name, load in known.items() if load is not None}
        return {**{name: figures[name] for name in _DRAWN}, "engines": engines}

    def _keep(self) -> None:
        if self.kept is None or not self._samples:
            return
        try:
            replace_file(self.kept, orjson.dumps(self._whole_history()))
        except OSError as error:
            log.warning("overview: the history could not be kept: %s", error)

    async def history(self) -> Fields:
        """Return samples of the last ten minutes, the oldest first."""
        return {"samples": await asyncio.to_thread(self._whole_history)}

    def _whole_history(self) -> list[Fields]:
        """Return what earlier workers have kept, and the samples of this one."""
        samples, now = list(self._samples), self.now()
        first = samples[0]["time"] if samples else now
        earlier = _read_history(self.kept)
        return [*(one for one in earlier if now - HISTORY_SECONDS < one["time"] < first), *samples]

    async def page(self) -> Fields:
        """Return the figures of the page's overview, which may be a moment old."""
        async with self._lock:
            if self._latest is None or self.clock() - self._latest[0] >= SHARED_SECONDS:
                self._latest = self.clock(), await self._look()
            return self._latest[1]

    async def _look(self) -> Fields:
        # Reading it takes as long as starting, so it is read when somebody looks.
        self._version = self._version or await asyncio.to_thread(
            importlib.metadata.version, "refrain-gateway"
        )
        upstreams = dict(self.upstreams)  # replicas come and go during a look
        self._paused = {name: until for name, until in self._paused.items() if name in upstreams}
        _, figures, events, engines = await asyncio.gather(
            self.check_store(),
            self._figures(),
            self._events(),
            asyncio.gather(*(self._engine(*one) for one in upstreams.items())),
        )
        found = zip(upstreams, engines, strict=True)
        return {
            "time": self.now(),
            "started": self.started,
            "version": self._version,
            "workers": self.workers,
            **figures,
            "ready": _with_outage(await self.readiness(), events),
            "upstreams": list(upstreams),
            "engines": {name: figures for name, figures in found if figures is not None},
            "budgets": self.rules(),
            "events": events[:LATEST_EVENTS],
        }

    async def _figures(self) -> Fields:
        # Thousands of samples, if there are many rules.
        return await asyncio.to_thread(summarize, await self.families())

    async def _events(self) -> list[Fields]:
        try:
            return await self.events()
        except OSError:  # the page of events says why
            return []

    async def _engine(self, name: str, upstream: HttpUpstream) -> dict[str, float] | None:
        if (load := self.load(name)) is not None:
            return load._asdict()
        if self.clock() < self._paused.get(name, 0.0):
            return None
        try:
            async with (
                asyncio.timeout(ENGINE_SECONDS),
                upstream.request("GET", "/metrics", [], None) as reply,
            ):
                if reply.status == 200:
                    page = await read_up_to(reply.read, _MAX_BYTES)
                    load = await asyncio.to_thread(parse_load, page)
        except (UpstreamError, TimeoutError):
            pass
        if load is None:
            self._paused[name] = self.clock() + PAUSE_SECONDS
            return None
        return load._asdict()


def _read_history(file: Path | None) -> list[Fields]:
    """Return what an earlier worker has kept; nothing if there is none, or it cannot be read."""
    try:
        found = [] if file is None else orjson.loads(file.read_bytes())
        whole = [one for one in found if isinstance(one["time"], float) and one.keys() >= _DRAWN]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
    return whole


def _with_outage(ready: Fields, events: Iterable[Fields]) -> Fields:
    """Return what ``/readyz`` reports; a store is down since the first worker found it so."""
    store = ready.get("store", {})
    if "since" not in store:
        return ready
    since = store["since"]
    for event in events:
        if event["event"] == "store":
            if event["level"] == "info":
                break
            since = min(since, event["time"])
    return ready | {"store": store | {"since": since}}


def summarize(families: Iterable[Metric]) -> Fields:
    """Return the figures of the gateway's metrics that the page draws."""
    sums = _Sums()
    for family in families:
        for sample in family.samples:
            sums.take(sample.name, sample.labels, sample.value)
    return {
        "requests": sums.requests,
        "rules": sums.rules,
        "errors": sums.errors,
        "saved": sums.saved,
        "ttft": {outcome: _buckets(buckets) for outcome, buckets in sums.ttft.items()},
        "store": sums.store,
        "calls": int(sums.calls),
        "waiting": int(sums.waiting),
    }


class _Sums:
    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.rules: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.errors: Counter[str] = Counter()
        self.saved: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.ttft: defaultdict[str, Counter[float]] = defaultdict(Counter)
        self.store: dict[str, float] = {}
        self.calls = self.waiting = 0.0

    def take(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Take a sample of a metric, if the page draws it."""
        match name:
            case "refrain_requests_total":
                self._take_requests(labels, int(value))
            case "refrain_time_to_first_token_seconds_bucket":
                if labels["outcome"] in ("hit", "miss"):
                    self.ttft[labels["outcome"]][float(labels["le"])] += int(value)
            case "refrain_entries" | "refrain_entry_bytes" | "refrain_evicted_entries":
                self.store[name.removeprefix("refrain_")] = value
            case "refrain_calls_in_flight":
                self.calls = value
            case "refrain_upstream_waiting":
                self.waiting = value
            case _ if name in _SAVED:
                self.saved[labels["by"]][_SAVED[name]] = value

    def _take_requests(self, labels: Mapping[str, str], number: int) -> None:
        kind = kind_of(labels["outcome"], labels["reason"])
        if kind is None:
            return
        self.requests[kind] += number
        self.rules[labels["rule"]][kind] += number
        if kind in ("error", "refused"):
            self.errors[labels["reason"]] += number


def kind_of(outcome: str, reason: str) -> str | None:
    """Return the kind of a request, None for a call of the gateway itself."""
    if outcome == "hit":
        return reason if reason in _HITS else "stale"
    if outcome == "miss" and reason == Reason.COLLAPSED:
        return "shared"
    if outcome == "error" and reason in LEFT_BY_CLIENT:
        return "left"
    return _KINDS.get(outcome)


def _buckets(buckets: Mapping[float, int]) -> list[tuple[float | None, int]]:
    """Return upper bounds and cumulative counts; None is no bound."""
    return [
        (None if most == float("inf") else most, int(count))
        for most, count in sorted(buckets.items())
    ]
