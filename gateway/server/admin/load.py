"""Store an answer that is known already, by the way that every answer takes.

Law: there is no second path into the cache. The request goes through the pipeline, policy, scan
and admission included, and only the upstream is a stand-in that answers what is known.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.errors import RequestError
from gateway.protocol.messages import Inbound
from gateway.server.admin.selection import SelectionError, read_headers, read_holder
from gateway.server.pipeline import Pipeline
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.ports import Upstream
from gateway.upstream.request import Outgoing, Served


@dataclass(frozen=True, slots=True)
class KnownReply:
    """A reply whose body is there already; see the port ``UpstreamReply``."""

    body: bytes
    served: Served
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),)
    content_type: str = "application/json"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self.body


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Stands in for the upstream ``name``; see the port ``Upstream``."""

    name: str
    body: bytes

    @asynccontextmanager
    async def send(self, outgoing: Outgoing) -> AsyncIterator[KnownReply]:
        """Answer what is known, whatever is asked."""
        del outgoing
        yield KnownReply(self.body, Served(self.name))


@dataclass(frozen=True, slots=True)
class Loader:
    """Stores known answers. ``coalescer`` makes one for an upstream that stands in."""

    pipeline: Pipeline
    coalescer: Callable[[Upstream], Coalescer]
    clock: Callable[[], float]
    holder_of: Callable[[Mapping[str, str]], str | None]

    async def load(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Store ``answer`` for ``request`` in place of any other, as the tenant of ``headers``.

        Where the gateway has keys of its own, ``holder`` may name the tenant instead.

        Return ``stored`` and, where it was not, the ``reason``. Raises SelectionError.
        """
        endpoint, headers, request, answer = _read(asked)
        upstream = KnownAnswer(self.pipeline.coalescer.upstream.name, orjson.dumps(answer))
        coalescer = self.coalescer(upstream)
        pipeline = replace(self.pipeline, coalescer=coalescer)
        seen = Observation(endpoint.value, self.clock(), self.clock, ())
        asking = {**headers, "cache-control": "no-cache"}
        holder = read_holder(asked.get("holder"), headers, self.holder_of)
        fields = tuple(asking.items())
        inbound = Inbound(endpoint.value, asking, fields, orjson.dumps(request), holder)
        try:
            reply = await pipeline.answer(endpoint, inbound, seen)
            if reply.resources is not None:
                await reply.resources.aclose()
        except RequestError as error:
            raise SelectionError("request", f"a request that can be made ({error})") from None
        finally:
            await coalescer.close()
        if seen.stored:
            return {"stored": True, "reason": None}
        reason = seen.declined or seen.reason
        return {"stored": False, "reason": None if reason is None else reason.value}


def _read(
    asked: Mapping[str, Any],
) -> tuple[Endpoint, dict[str, str], dict[str, Any], dict[str, Any]]:
    fields = ("endpoint", "headers", "holder", "request", "answer")
    for field in asked:
        if field not in fields:
            raise SelectionError(field, f"one of the fields {', '.join(fields)}")
    try:
        endpoint = Endpoint(asked.get("endpoint", Endpoint.CHAT.value))
    except ValueError:
        known = ", ".join(endpoint.value for endpoint in Endpoint)
        raise SelectionError("endpoint", f"one of {known}") from None
    headers = read_headers(asked.get("headers", {}))
    for field in ("request", "answer"):
        if not isinstance(asked.get(field), dict):
            raise SelectionError(field, "an object")
    return endpoint, headers, {**asked["request"], "stream": False}, asked["answer"]
