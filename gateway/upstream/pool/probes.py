"""Probes of a pool's upstreams, which nobody waits for.

Law: a probe is cheap and bounded: the upstream's own word on its readiness where it has one, else
its list of models. Any answer but a fault of the server is one: that it wants a key is no illness.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from aiohttp import ClientError

from gateway.protocol.errors import UpstreamError
from gateway.protocol.reasons import Reason
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.pool.table import PoolTable

PROBE_SECONDS = 2.0
EVERY_SECONDS = 10.0
"""How long nothing may be heard of an upstream."""
PATHS = ("/readyz", "/health", "/v1/models")
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 0.5

_NO_SUCH_PATH = frozenset({404, 405, 501})


class Prober:
    """Probes who is due. ``paths`` are those of each upstream: asked in turn, none for no probe."""

    def __init__(
        self,
        upstreams: Mapping[str, HttpUpstream],
        paths: Mapping[str, tuple[str, ...]],
        table: PoolTable,
        clock: Callable[[], float],
        probed: Callable[[], None],
        *,
        warm: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``probed`` is called when one has been, ``warm`` before one is taken back."""
        self._upstreams = upstreams
        self._paths = dict(paths)
        self._table = table
        self._clock = clock
        self._probed = probed
        self._warm = warm
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Probe until cancelled."""
        try:
            while True:
                wait = self.begin_due() - self._clock()
                await asyncio.sleep(min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))
        finally:
            probes = list(self._under_way.values())
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    def begin_due(self) -> float:
        """Begin the probes that are due, and return when the next is."""
        now, times = self._clock(), []
        for name in self._upstreams:
            if name in self._under_way:
                continue
            at = self._table.probe_at(name, EVERY_SECONDS)
            if at <= now:
                self._under_way[name] = asyncio.create_task(self._probe_once(name))
            else:
                times.append(at)
        return min(times, default=now + EVERY_SECONDS)

    async def _probe_once(self, name: str) -> None:
        try:
            await self.probe(name)
        finally:
            self._under_way.pop(name, None)

    async def probe(self, name: str) -> None:
        """Ask one upstream how it is, and tell the table."""
        fault, for_sure = await self._asked(name) if self._paths[name] else (None, False)
        if fault is None and self._warm is not None and self._table.is_left_alone(name):
            await self._warm(name)
        self._table.probed(name, fault, self._clock(), for_sure=for_sure)
        self._probed()

    async def _asked(self, name: str) -> tuple[Reason | None, bool]:
        """Return what is wrong, if anything, and whether the upstream said so itself."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for path in self._paths[name]:
                    async with self._upstreams[name].request("GET", path, [], None) as reply:
                        if reply.status in _NO_SUCH_PATH:
                            continue
                        self._paths[name] = (path,)
                        if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                            return None, False
                        told = b'"reasons"' in await reply.content.read(4096)
                        return Reason.UPSTREAM_STATUS, told
        except UpstreamError as error:
            return error.reason, False
        except TimeoutError:
            return Reason.UPSTREAM_TIMEOUT, False
        except ClientError:
            return Reason.UPSTREAM_BROKE, False
        return None, False
