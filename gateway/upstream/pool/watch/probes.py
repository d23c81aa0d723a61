"""Probes of upstreams: of all at startup, of a pool's again and again.

Laws:
- No request waits for a probe, and hits need no upstream: an upstream may be started later.
- A probe is cheap and bounded: the readiness path if the upstream has one, else its list of models.
  Any answer but a server error is a good one, also that a key is missing.
- At startup a wrong address is found at once, and the log says what to do.
- What engines say of their load is asked for where it is wanted, bounded in time and bytes. An
  engine that does not answer keeps its last figures until they are stale.
- The lists of models are read at start, again and again, and soon after a request for a model that
  no list has. An upstream that does not answer keeps its last list.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from typing import NamedTuple

import orjson
from aiohttp import web

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import declared_name, read_up_to, read_whole
from gateway.upstream.pool.health import Open
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.watch.engine_load import parse_load
from gateway.upstream.wire.http_client import HttpUpstream, Listing

log = logging.getLogger(__name__)

GREET: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("greet")
"""Logs how the upstreams answer."""

STARTUP_SECONDS = 10.0
_MAX_BYTES = 4 * 2**20

PROBE_SECONDS = 2.0
EVERY_SECONDS = 10.0
"""The longest silence of an upstream."""
PATHS = ("/readyz", "/health", "/v1/models")
LOAD_SECONDS = 2.0
"""Between two readings of an engine's load."""
MODELS_SECONDS = 60.0
"""Between two readings of a list of models."""
MODELS_SOONEST = 5.0
"""The same if a request names a model that no list has."""
_NO_DEPLOYMENTS = ".azure.com"
"""Hosts whose lists name other models than requests do: there requests name a deployment."""
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 0.5

_NO_SUCH_PATH = frozenset({404, 405, 501})


@dataclass(eq=False)
class Prober:
    """Probes the upstreams that are due: ``paths`` of each in turn. Without paths there is none.

    Replicas have the paths of the upstream for which they were found. ``on_probe`` is called after
    each probe; ``warm`` before an upstream becomes half-open. ``with_load`` names the declared
    upstreams whose engines are asked for their load.
    """

    upstreams: Mapping[str, HttpUpstream]
    paths: Mapping[str, tuple[str, ...]]
    table: PoolTable
    clock: Callable[[], float]
    on_probe: Callable[[], None]
    warm: Callable[[str], Awaitable[None]] | None = None
    with_load: Collection[str] = ()
    lists: "ModelLists | None" = None
    is_lone: bool = False
    """Whether the only upstream is given by its URL alone: then it is probed only while it is out,
    since it gets every call."""
    _found: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """The path that an upstream turned out to have."""
    _no_load: dict[str, str] = field(default_factory=dict, init=False)
    """Why an engine's load is not known."""

    async def watch(self, name: str) -> None:
        """Probe one upstream and read its load until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._probe_when_due(name))
                if declared_name(name) in self.with_load:
                    group.create_task(self._follow_load(name))
                if self.lists is not None:
                    group.create_task(self.lists.follow(name))
        finally:
            self._found.pop(name, None)
            self._no_load.pop(name, None)

    async def _follow_load(self, name: str) -> None:
        while True:
            try:
                await self.read_load(name)
            except Exception:
                log.exception("the load of upstream %s could not be read", name)
            await asyncio.sleep(LOAD_SECONDS)

    async def read_load(self, name: str) -> None:
        """Read what an engine says of its load; the log has a line where it begins to fail."""
        load, why = None, "it has no figures of a known engine"
        try:
            async with (
                asyncio.timeout(PROBE_SECONDS),
                self.upstreams[name].request("GET", "/metrics", [], None) as reply,
            ):
                page = await read_whole(reply.read, _MAX_BYTES)
            if reply.status != HTTPStatus.OK:
                why = f"status {reply.status}"
            elif page is None:
                why = f"it has more than {_MAX_BYTES} bytes"
            else:
                load = await asyncio.to_thread(parse_load, page)
        except UpstreamError as error:
            why = error.detail or error.message
        except TimeoutError:
            why = f"no answer within {PROBE_SECONDS:.0f} s"
        self.table.record_load(name, load, self.clock())
        if load is not None:
            self._no_load.pop(name, None)
        elif self._no_load.get(name) != why:
            self._no_load[name] = why
            log.warning(
                "upstream %s: /metrics does not tell its load (%s); routing uses its last "
                "figures, then the figures of the others (load_signal: false asks no more)",
                name,
                why,
            )

    async def _probe_when_due(self, name: str) -> None:
        while True:
            every = inf if self.is_lone else EVERY_SECONDS
            wait = self.table.probe_at(name, every) - self.clock()
            if wait <= 0:
                try:
                    await self.probe(name)
                except Exception:
                    log.exception("a probe of upstream %s failed", name)
            await asyncio.sleep(min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))

    async def probe(self, name: str) -> None:
        """Probe one upstream, and note the outcome in the table."""
        paths = self._found.get(name) or self.paths[declared_name(name)]
        fault, for_sure = await self._health_fault(name, paths) if paths else (None, False)
        was_open = isinstance(self.table.upstreams[name].health.breaker, Open)
        if fault is None and self.warm is not None and was_open:
            await self.warm(name)
        self.table.record_probe(name, fault, self.clock(), for_sure=for_sure)
        self.on_probe()

    async def _health_fault(self, name: str, paths: tuple[str, ...]) -> tuple[Reason | None, bool]:
        """Return the fault, if any, and whether the upstream itself reports it."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for path in paths:
                    async with self.upstreams[name].request("GET", path, [], None) as reply:
                        if reply.status in _NO_SUCH_PATH:
                            continue
                        self._found[name] = (path,)
                        if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                            return None, False
                        own_word = b'"reasons"' in await reply.read()
                        return Reason.UPSTREAM_STATUS, own_word
        except UpstreamError as error:
            return error.reason, False
        except TimeoutError:
            return Reason.UPSTREAM_TIMEOUT, False
        return None, False


@dataclass(eq=False)
class ModelLists:
    """Reads which models each upstream lists; ``record`` takes the names, none if unknown."""

    upstreams: Mapping[str, HttpUpstream]
    clock: Callable[[], float]
    record: Callable[[str, frozenset[str]], None]
    _read_at: dict[str, float] = field(default_factory=dict, init=False)
    _wanted_at: float = field(default=-inf, init=False)

    def want(self, _model: str) -> None:
        """Note that a request named a model that no list has."""
        self._wanted_at = self.clock()

    async def read_all(self, seconds: float) -> None:
        """Read the lists of all upstreams, as far as they come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*map(self.read, self.upstreams))

    def is_due(self, name: str) -> bool:
        """Tell whether a list is to be read again."""
        read_at = self._read_at.get(name, -inf)
        every = MODELS_SOONEST if read_at <= self._wanted_at else MODELS_SECONDS
        return self.clock() - read_at >= every

    async def follow(self, name: str) -> None:
        """Keep the list of one upstream fresh until cancelled."""
        try:
            while True:
                if self.is_due(name):
                    await self.read(name)
                await asyncio.sleep(1.0)
        finally:
            self._read_at.pop(name, None)

    async def read(self, name: str) -> None:
        """Read the list of one upstream; a fault changes nothing."""
        upstream = self.upstreams[name]
        try:
            async with (
                asyncio.timeout(STARTUP_SECONDS),
                upstream.request("GET", "/v1/models", (), None) as reply,
            ):
                status, body = reply.status, await read_whole(reply.read, _MAX_BYTES)
        except (UpstreamError, TimeoutError):
            status, body = 0, None
        self._read_at[name] = self.clock()
        if not status and upstream.listing is None:
            self._read_at[name] -= MODELS_SECONDS - MODELS_SOONEST  # it may be starting
        listing = listing_of(body) if body is not None and status == HTTPStatus.OK else None
        if listing is not None and (upstream.url.host or "").endswith(_NO_DEPLOYMENTS):
            listing = listing._replace(names=frozenset())
        if listing is not None:
            upstream.listing = listing
            self.record(name, listing.names)


def listing_of(body: bytes) -> Listing | None:
    """Return the list of models in a body; one of several pages names none for sure."""
    try:
        match orjson.loads(body):
            case {"data": list(data)} as page:
                models = [one for one in data if isinstance(one, dict)]
            case _:
                return None
    except orjson.JSONDecodeError:
        return None
    models = [one for one in models if isinstance(one.get("id"), str)]
    names = set[str]() if page.get("has_more") else {one["id"] for one in models}
    names |= {name.removeprefix("models/") for name in names}
    names |= {name.removesuffix(":latest") for name in names}
    return Listing(models, frozenset(names))


async def log_upstreams(upstreams: Iterable[HttpUpstream]) -> None:
    """Request the models of all upstreams at once, and log one line for each."""
    await asyncio.gather(*map(log_upstream, upstreams))


async def log_upstream(upstream: HttpUpstream) -> None:
    """Request the models of an upstream, and log a line."""
    answer = await models_answer(upstream)
    level = logging.INFO if answer.is_healthy else logging.WARNING
    log.log(level, "upstream %s %s", upstream.url, answer.text)


class ModelsAnswer(NamedTuple):
    """How an upstream answers the request for its models."""

    text: str
    is_healthy: bool
    date: str | None = None
    """The upstream's clock, as it stands in the header."""
    models: frozenset[str] = frozenset()
    """The models that it lists."""


async def models_answer(upstream: HttpUpstream) -> ModelsAnswer:
    """Request the models of an upstream."""
    try:
        async with (
            asyncio.timeout(STARTUP_SECONDS),
            upstream.request("GET", "/v1/models", (), None) as reply,
        ):
            body = await read_up_to(reply.read, _MAX_BYTES)
            verdict = _models_verdict(
                reply.status, reply.content_type, body, own_credential=upstream.own_credential
            )
            date = next((text for name, text in reply.headers if name.lower() == "date"), None)
            listing = listing_of(body) if reply.status == HTTPStatus.OK else None
            return ModelsAnswer(*verdict, date, frozenset() if listing is None else listing.names)
    except UpstreamError as error:
        return ModelsAnswer(f"does not answer: {error.detail or error.message}", False)
    except TimeoutError:
        return ModelsAnswer(f"has not answered within {STARTUP_SECONDS:.0f} s", False)


def _models_verdict(
    status: int, content_type: str, body: bytes, *, own_credential: bool
) -> tuple[str, bool]:
    if status == HTTPStatus.LOOP_DETECTED:
        return "is this gateway itself; give it the URL of a model server", False
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        if own_credential:
            return f"refuses the key that the gateway has for it (status {status})", False
        return "answers, and wants a key, which clients must send", True
    if status != HTTPStatus.OK:
        hint = "; is its path right?" if status == HTTPStatus.NOT_FOUND else ""
        return f"answers its list of models with status {status}{hint}", False
    try:
        match orjson.loads(body):
            case {"data": list(models)}:
                count = "1 model" if len(models) == 1 else f"{len(models)} models"
                return f"answers, {count}", True
    except orjson.JSONDecodeError:
        pass
    return f"answers with {content_type}, which is no list of models; is its path right?", False
