"""Which upstream keeps what clients name by an id: responses, conversations, files, batches.

Law: what is kept at one upstream is answered there or nowhere; nobody stands in for it. Who keeps
it is not told by the id, so it is learnt: from who made it, and from who knew it when all were
asked. The memory is bounded; what is forgotten is asked for again.

Requests of any kind to a pool: those that pass through, of which nothing is known but the path.

Law: they go to the first upstream of the declaration that is well, so that what it keeps for its
clients is found there again; to another only while nothing was sent. What a path names is looked
for at each of them, since it may have been made while the first was not well.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import ClientResponse
from cachetools import LRUCache

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.reasons import Reason
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.pool.retry import Failure
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.request import Served

MOST_KNOWN = 65_536
LONGEST_ID = 256
_REFUSALS = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""What is said of an id that is not known, or of the field where nothing is ever kept."""
_PATH = re.compile(
    "/v1/(?:responses|conversations|files|uploads|batches|vector_stores|containers"
    "|chat/completions|fine_tuning/jobs)/([^/?]+)"
)
NOT_KEPT = Failure(Reason.NOT_KEPT, risky=False, personal=True)
"""Another is to be asked; it says nothing of the health of who was."""


class Kept:
    """Ids and upstreams; those that were not named for longest are forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._known: LRUCache[str, str] = LRUCache(most)

    def at(self, named: str) -> str:
        """Return who keeps it, nothing where that is not known."""
        return self._known.get(named, "")

    def note(self, named: str, upstream: str) -> None:
        """Note who keeps it."""
        if 0 < len(named) <= LONGEST_ID:
            self._known[named] = upstream


def named_in(endpoint: Endpoint, body: Mapping[str, Any]) -> str:
    """Return the id of the response or conversation that a request goes on with, if any."""
    if not SPECS[endpoint].keeps_by_id:
        return ""
    for value in (body.get("previous_response_id"), body.get("conversation")):
        match value:
            case str(named) | {"id": str(named)} if named:
                return named
    return ""


def named_by(path_qs: str) -> str:
    """Return the id in a path such as ``/v1/files/ID/content``, if any."""
    found = _PATH.match(path_qs)
    return "" if found is None else found[1]


def may_be_elsewhere(status: int) -> bool:
    """Tell whether a request that names an id may have been refused because it is not known."""
    return status in _REFUSALS


class PoolRequests:
    """See ``HttpUpstream``, whose ``request`` and ``body`` it has."""

    def __init__(
        self,
        upstreams: Mapping[str, HttpUpstream],
        table: PoolTable,
        clock: Callable[[], float],
        kept: Kept,
    ) -> None:
        self._upstreams = upstreams
        self._table = table
        self._clock = clock
        self._kept = kept
        self._served: WeakKeyDictionary[ClientResponse, Served] = WeakKeyDictionary()

    def order(self, model: str | None = None) -> list[HttpUpstream]:
        """Return the upstreams, the first to be asked first."""
        names = self._table.first_available(model, self._clock())
        return [self._upstreams[name] for name in names]

    def well(self) -> list[HttpUpstream]:
        """Return those that are not left alone for their failures, all where all are."""
        names = self._table.first_available(None, self._clock())
        up = [name for name in names if self._table.standings[name].is_well]
        return [self._upstreams[name] for name in up or names]

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path_qs: str,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterator[bytes] | None,
        *,
        decode: bool = True,
        logged: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[ClientResponse]:
        """Send a request to the first that can be reached. Raises UpstreamError."""
        tried, fault, named = list[tuple[str, Reason]](), None, named_by(path_qs)
        asked = self._asked(path_qs, named)
        async with AsyncExitStack() as stack:
            for upstream in asked:
                sending = upstream.request(
                    method, path_qs, headers, body, decode=decode, logged=logged
                )
                try:
                    response = await stack.enter_async_context(sending)
                except UpstreamError as error:
                    fault = error
                    tried.append((upstream.name, error.reason))
                    if error.sent:
                        break
                    # As a probe that failed: of what is behind a path nothing is known.
                    self._table.probed(upstream.name, error.reason, self._clock(), for_sure=False)
                else:
                    missing = bool(named) and response.status == HTTPStatus.NOT_FOUND
                    if missing and body is None and (upstream is not asked[-1] or fault):
                        tried.append((upstream.name, Reason.NOT_KEPT))
                        await stack.aclose()
                        continue
                    if named and body is None and response.status < HTTPStatus.BAD_REQUEST:
                        self._kept.note(named, upstream.name)
                    self._served[response] = Served(upstream.name, tuple(tried), several=True)
                    yield response
                    return
        fault = fault or UpstreamError(502, "There is no upstream.", Reason.UPSTREAM_UNREACHABLE)
        fault.tried = tuple(tried)
        raise fault

    def _asked(self, path_qs: str, named: str) -> list[HttpUpstream]:
        """Return who is asked, in turn: who is known to keep what the path names, else all."""
        at = self._kept.at(named)
        return [self._upstreams[at]] if at else self.order(_model_of(path_qs))

    def note_failure(self, response: ClientResponse, error: UpstreamError) -> None:
        """Log that a reply broke off."""
        self._upstreams[self._served[response].upstream].failures.failed(error)

    def served(self, response: ClientResponse) -> Served | None:
        """Return who sent a reply."""
        return self._served.get(response)

    def body(self, response: ClientResponse) -> AsyncIterator[bytes]:
        """Yield a reply's body as it arrives. Raises UpstreamError."""
        return next(iter(self._upstreams.values())).body(response)


def _model_of(path_qs: str) -> str | None:
    """Return the model that a path is about."""
    path = path_qs.partition("?")[0]
    return path.removeprefix("/v1/models/") if path.startswith("/v1/models/") else None
