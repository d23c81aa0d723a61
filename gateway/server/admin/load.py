"""The operator's action that stores an answer which is known already.

Law: there is no second path into the cache. The request goes through the pipeline, policy, scan
and admission included. Only the upstream is a stand-in, which returns the known answer.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.protocol.errors import RequestError
from gateway.protocol.request import read_request
from gateway.server.admin.operations import (
    InvalidFieldError,
    read_headers,
    read_holder,
    refuse_other_fields,
)
from gateway.server.pipeline import Pipeline
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.request import Outgoing, Served, Upstream
from policies.decision import Endpoint


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
    """Stores known answers; ``make_coalescer`` gives one for the stand-in of the upstream."""

    pipeline: Pipeline
    make_coalescer: Callable[[Upstream], Coalescer]
    clock: Callable[[], float]
    holder_of: Callable[[Mapping[str, str]], str | None]

    async def load(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Store ``answer`` for ``request`` in place of any other, as the tenant of ``headers``.

        Where the gateway has keys of its own, ``holder`` may name the tenant instead.

        Return ``stored`` and, where it was not, the ``reason``. Raises InvalidFieldError.
        """
        endpoint, headers, request, answer = _read(fields)
        upstream = KnownAnswer(self.pipeline.coalescer.upstream.name, orjson.dumps(answer))
        coalescer = self.make_coalescer(upstream)
        pipeline = replace(self.pipeline, coalescer=coalescer)
        seen = Observation(endpoint.value, self.clock(), self.clock, ())
        headers["cache-control"] = "no-cache"
        holder = read_holder(fields.get("holder"), headers, self.holder_of)
        raw, lines = orjson.dumps(request), tuple(headers.items())
        try:
            read = read_request(endpoint, raw, headers=headers, fields=lines, holder=holder)
            reply = await pipeline.answer(read, seen)
            if reply.resources is not None:
                await reply.resources.aclose()
        except RequestError as error:
            raise InvalidFieldError("request", f"a request that can be made ({error})") from None
        finally:
            await coalescer.close()
        if seen.stored:
            return {"stored": True, "reason": None}
        reason = seen.declined or seen.reason
        return {"stored": False, "reason": None if reason is None else reason.value}


def _read(
    fields: Mapping[str, Any],
) -> tuple[Endpoint, dict[str, str], dict[str, Any], dict[str, Any]]:
    refuse_other_fields(fields, "endpoint", "headers", "holder", "request", "answer")
    try:
        endpoint = Endpoint(fields.get("endpoint", Endpoint.CHAT.value))
    except ValueError:
        known = ", ".join(endpoint.value for endpoint in Endpoint)
        raise InvalidFieldError("endpoint", f"one of {known}") from None
    headers = read_headers(fields.get("headers", {}))
    for name in ("request", "answer"):
        if not isinstance(fields.get(name), dict):
            raise InvalidFieldError(name, "an object")
    return endpoint, headers, {**fields["request"], "stream": False}, fields["answer"]
