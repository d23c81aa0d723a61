"""Readiness: encoder warm, engine warm; beside it the state of the policy file."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import ClientError

from gateway.protocol.errors import UpstreamError
from gateway.upstream.http_client import HttpUpstream

PROBE_SECONDS = 2.0

Check = Callable[[], Awaitable[str | None]]
"""Returns why a part is not ready yet, or None. Bounded in time; raises nothing."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Asks every check; ``details`` are shown but do not make the gateway unready."""

    checks: list[Check]
    details: Callable[[], dict[str, Any]]

    async def report(self) -> dict[str, Any]:
        """Return ``{"status": "ready" | "starting", "reasons": [...], ...details}``."""
        reasons = [reason for check in self.checks if (reason := await check()) is not None]
        status = "starting" if reasons else "ready"
        return {"status": status, "reasons": reasons, **self.details()}


def engine_ready(upstream: HttpUpstream, *, required: bool) -> Check:
    """Return a check of an engine's own ``/readyz``, asked until it was ready once.

    Later faults are told request by request: hits need no upstream. One that is not ours has no
    such path, or one that says nothing of reasons; silence counts only where it is ``required``.
    """
    was_ready = False

    async def check() -> str | None:
        nonlocal was_ready
        if was_ready:
            return None
        try:
            async with (
                asyncio.timeout(PROBE_SECONDS),
                upstream.request("GET", "/readyz", [], None) as reply,
            ):
                loading = reply.status == HTTPStatus.SERVICE_UNAVAILABLE and b'"reasons"' in (
                    await reply.response.content.read(4096)
                )
        except (UpstreamError, ClientError, TimeoutError):
            return "engine: not reachable" if required else None
        was_ready = not loading
        return "engine: loading" if loading else None

    return check
