"""A fresh replica computes the beginnings of prompts that are used most, before clients come to it.

Law: a warm-up is bounded in time and number, and takes nothing from clients: it has the lowest
priority, counts against the replica's limits, and is left where no other replica could answer
meanwhile. A fault ends it and keeps nobody out; what a replica could not take is not sent again. No
client's credential is used, and what may not be stored is not recorded.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from gateway.adapters.upstream_http import HttpUpstream
from gateway.core.access import CREDENTIALS
from gateway.core.errors import UpstreamError
from gateway.core.outbound import OF_AN_ACCOUNT, PRIORITY
from gateway.core.outgoing import Outgoing
from gateway.core.pool.table import PoolTable
from gateway.core.prefix_blocks import PromptChains
from gateway.core.types import Endpoint
from gateway.core.warm_prefixes import WarmPrefix, WarmPrefixes
from policies.decide import Priority

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Of one warm-up."""
MOST = 32
"""Beginnings that one replica is sent."""

_OF_A_CLIENT = (*CREDENTIALS, *OF_AN_ACCOUNT)

_FIELDS = (
    ("Content-Type", "application/json"),
    ("Accept-Encoding", "identity"),
    (PRIORITY, Priority.LOW.value),
)


class Warmed(Protocol):
    """Counts what was computed ahead."""

    def warmed(self, name: str) -> None:
        """Count a beginning that an upstream has computed."""
        ...


class WarmUp:
    """Records what is used, and sends it to who is fresh."""

    def __init__(
        self,
        upstreams: Mapping[str, HttpUpstream],
        table: PoolTable,
        clock: Callable[[], float],
        *,
        own_credentials: bool = False,
        chains: PromptChains | None = None,
        figures: Warmed | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """``own_credentials`` tells that no client's is passed on."""
        self.prefixes = WarmPrefixes()
        self._upstreams = upstreams
        self._table = table
        self._clock = clock
        self._own_credentials = own_credentials
        self._chains = chains
        self._figures = figures
        self._seconds = seconds

    def note(self, endpoint: Endpoint, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Record a request that was answered; ``headers`` are by lower-case name."""
        if self._own_credentials or not any(headers.get(name) for name in _OF_A_CLIENT):
            self.prefixes.note(endpoint, body, self._clock())

    async def warm(self, name: str) -> None:
        """Have a fresh upstream compute what is worth it. Raises nothing."""
        began, done = self._clock(), 0
        why = "all sent"
        try:
            async with asyncio.timeout(self._seconds):
                for prefix in self._due(name):
                    fault = await self._computed(name, prefix)
                    if fault is not None:
                        why = fault
                        break
                    done += 1
        except TimeoutError:
            why = "time is up"
        if done or why != "all sent":
            took = self._clock() - began
            log.info("upstream %s is warm: %d prefixes in %.1f s, %s", name, done, took, why)

    def _due(self, name: str) -> list[WarmPrefix]:
        """Return what the upstream may be sent, in order."""
        return [
            prefix
            for prefix in self.prefixes.worth_most(self._clock())
            if self._table.can_be_spared(name, prefix.model, self._clock())
        ][:MOST]

    async def _computed(self, name: str, prefix: WarmPrefix) -> str | None:
        """Send one beginning; return what went wrong, if anything."""
        if not self._table.can_be_spared(name, prefix.model, self._clock()):
            return "it is needed, or has no room"
        self._table.count(name, self._clock())
        outgoing = Outgoing(Endpoint.CHAT.value, _FIELDS, prefix.raw, prefix.model)
        try:
            async with self._upstreams[name].send(outgoing) as reply:
                async for _ in reply.chunks():
                    pass
        except UpstreamError as error:
            self.prefixes.drop(prefix.digest)
            return error.reason.value
        if reply.status != HTTPStatus.OK:
            self.prefixes.drop(prefix.digest)
            return f"status {reply.status}"
        if self._figures is not None:
            self._figures.warmed(name)
        if self._chains is not None:
            chain = self._chains.of(Endpoint.CHAT, prefix.body, {}, len(prefix.raw))
            self._table.computed(name, chain, self._clock())
        return None
