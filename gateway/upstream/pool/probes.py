"""Probes of upstreams: of all at startup, of a pool's again and again.

Laws:
- No request waits for a probe, and hits need no upstream: an upstream may be started later.
- A probe is cheap and bounded: the readiness path if the upstream has one, else its list of models.
  Any answer but a server error is a good one, also that a key is missing.
- At startup a wrong address is found at once, and the log says what to do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from aiohttp import web

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError
from gateway.protocol.messages import read_up_to
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.pool.health import Open
from gateway.upstream.pool.table import PoolTable

log = logging.getLogger(__name__)

UPSTREAMS: web.AppKey[tuple[HttpUpstream, ...]] = web.AppKey("upstreams")

STARTUP_SECONDS = 10.0
_MAX_BYTES = 4 * 2**20

PROBE_SECONDS = 2.0
EVERY_SECONDS = 10.0
"""The longest silence of an upstream."""
PATHS = ("/readyz", "/health", "/v1/models")
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 0.5

_NO_SUCH_PATH = frozenset({404, 405, 501})


@dataclass(eq=False)
class Prober:
    """Probes the upstreams that are due: ``paths`` of each in turn. Without paths there is none.

    ``on_probe`` is called after each probe; ``warm`` before an upstream becomes half-open.
    """

    upstreams: Mapping[str, HttpUpstream]
    paths: dict[str, tuple[str, ...]]
    table: PoolTable
    clock: Callable[[], float]
    on_probe: Callable[[], None]
    warm: Callable[[str], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Probe until cancelled, one probe of each upstream at a time."""
        async with asyncio.TaskGroup() as group:
            for name in self.upstreams:
                group.create_task(self._probe_when_due(name))

    async def _probe_when_due(self, name: str) -> None:
        while True:
            wait = self.table.probe_at(name, EVERY_SECONDS) - self.clock()
            if wait <= 0:
                try:
                    await self.probe(name)
                except Exception:
                    log.exception("a probe of upstream %s failed", name)
            await asyncio.sleep(min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))

    async def probe(self, name: str) -> None:
        """Probe one upstream, and note the outcome in the table."""
        fault, for_sure = await self._health_fault(name) if self.paths[name] else (None, False)
        was_open = isinstance(self.table.upstreams[name].health.breaker, Open)
        if fault is None and self.warm is not None and was_open:
            await self.warm(name)
        self.table.record_probe(name, fault, self.clock(), for_sure=for_sure)
        self.on_probe()

    async def _health_fault(self, name: str) -> tuple[Reason | None, bool]:
        """Return the fault, if any, and whether the upstream itself reports it."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for path in self.paths[name]:
                    async with self.upstreams[name].request("GET", path, [], None) as reply:
                        if reply.status in _NO_SUCH_PATH:
                            continue
                        self.paths[name] = (path,)
                        if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                            return None, False
                        own_word = b'"reasons"' in await reply.read()
                        return Reason.UPSTREAM_STATUS, own_word
        except UpstreamError as error:
            return error.reason, False
        except TimeoutError:
            return Reason.UPSTREAM_TIMEOUT, False
        return None, False


async def log_upstreams(upstreams: Iterable[HttpUpstream]) -> None:
    """Request the models of all upstreams at once, and log one line for each."""
    await asyncio.gather(*map(_log_upstream, upstreams))


async def _log_upstream(upstream: HttpUpstream) -> None:
    text, healthy = await _models_answer(upstream)
    log.log(logging.INFO if healthy else logging.WARNING, "upstream %s %s", upstream.url, text)


async def _models_answer(upstream: HttpUpstream) -> tuple[str, bool]:
    """Return the line of an upstream, and whether it is healthy."""
    try:
        async with (
            asyncio.timeout(STARTUP_SECONDS),
            upstream.request("GET", "/v1/models", (), None) as reply,
        ):
            body = await read_up_to(reply.read, _MAX_BYTES)
            return _models_verdict(
                reply.status, reply.content_type, body, own_credential=upstream.own_credential
            )
    except UpstreamError as error:
        return f"does not answer: {error.detail or error.message}", False
    except TimeoutError:
        return f"has not answered within {STARTUP_SECONDS:.0f} s", False


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
