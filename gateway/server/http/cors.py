"""Pages of other origins (CORS): what the upstream lets them read, they may read here.

Laws:
- The upstream decides. Its word on an origin is taken from its replies. If none is known, the
  upstream is asked. So a hit, which has no upstream's headers, is as readable as the miss before.
- A preflight needs no key, since browsers send none. It passes without body, query, and all other
  headers, and its reply has the headers of CORS alone.
- Every page may read the gateway's own errors, which hold no answer.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web
from cachetools import LRUCache
from multidict import CIMultiDict

from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.paths import ApiPath, read_path
from gateway.telemetry.observation import Observation
from gateway.upstream.wire.connection import HttpReply
from policies.decision import Endpoint

SECONDS = 2.0
"""The longest wait for the upstream's word."""
PATIENCE = 0.3
"""The longest wait of a reply for it; the upstream may take longer, for the next reply."""
MOST_ASKED = 16
"""Questions and preflights under way."""
MOST_ORIGINS = 1_024
_LONGEST_ORIGIN = 256
ALLOWED_SECONDS = 600.0
DENIED_SECONDS = 60.0
UNKNOWN_SECONDS = 60.0

_ALLOW_ORIGIN = "Access-Control-Allow-Origin"
_OF_REPLIES = (_ALLOW_ORIGIN, "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers")
_OF_PREFLIGHTS = ("access-control-", "allow", "vary")
_ASKED = ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")
_READABLE: Fields = ((_ALLOW_ORIGIN, "*"),)
_ANY = "*"

Ask = Callable[[ApiPath, Fields], AbstractAsyncContextManager[HttpReply]]
"""Sends OPTIONS to an upstream."""


class Word(NamedTuple):
    """What an upstream said of an origin, until when it is believed."""

    until: float
    fields: Fields


class Cors:
    """The upstreams' words on origins."""

    def __init__(self, ask: Ask, clock: Callable[[], float], patience: float = PATIENCE) -> None:
        self._ask, self._clock, self._patience = ask, clock, patience
        self._words: LRUCache[str, Word] = LRUCache(MOST_ORIGINS)
        self._asked: dict[str, asyncio.Task[Fields]] = {}
        self._under_way = 0

    async def complete(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add to a reply whose head is not sent what lets its page read it."""
        if (origin := origin_of(request)) is None or self._take(origin, response.headers):
            return
        fields = self._known(origin)
        if fields is None:
            fields = await self._find(origin)
        if not fields and OWN_ERROR in request:
            fields = _READABLE
        _add(response.headers, fields)

    def complete_stream(self, request: web.Request, response: web.StreamResponse) -> None:
        if (origin := origin_of(request)) is not None and not self._take(origin, response.headers):
            _add(response.headers, self._known(origin) or ())

    async def preflight(self, request: web.Request, seen: Observation) -> web.StreamResponse:
        """Answer a preflight as the upstream does. Raises UpstreamError and ClientError."""
        if self._under_way >= MOST_ASKED:
            raise ClientError(503, "Too many preflights are under way. Please try again.")
        seen.end("pass", None)
        asked = [(name, request.headers[name]) for name in _ASKED if name in request.headers]
        path = read_path(request.path_qs.partition("?")[0])
        status, fields = await self._send(path, tuple(asked))
        seen.end("pass", None, status)
        origin = origin_of(request)
        if origin is not None and self._known(origin) is None and status < HTTPStatus.BAD_REQUEST:
            self._note(origin, fields)
        response = web.Response(status=status)
        response.headers.extend(
            each for each in fields if each[0].lower().startswith(_OF_PREFLIGHTS)
        )
        response.headers["Cache-Status"] = ForwardStatus(Forwarded.BYPASS).header()
        return response

    def _known(self, origin: str) -> Fields | None:
        now = self._clock()
        words = (self._words.get(each) for each in (origin, _ANY))
        return next((each.fields for each in words if each is not None and each.until > now), None)

    def _take(self, origin: str, headers: CIMultiDict[str]) -> bool:
        """Take the upstream's word from its reply; tell whether it is for this origin."""
        allowed = headers.get(_ALLOW_ORIGIN)
        if allowed in (origin, _ANY):
            self._note(origin, headers.items())
            return True
        for name in _OF_REPLIES:  # of the client whose reply is shared
            headers.popall(name, None)
        return False

    def _note(self, origin: str, headers: Iterable[tuple[str, str]]) -> Fields:
        given = CIMultiDict(headers)
        fields = tuple((name, given[name]) for name in _OF_REPLIES if name in given)
        allowed = given.get(_ALLOW_ORIGIN)
        if allowed not in (origin, _ANY):
            fields = ()
        seconds = ALLOWED_SECONDS if fields else DENIED_SECONDS
        self._words[_ANY if allowed == _ANY else origin] = Word(self._clock() + seconds, fields)
        return fields

    async def _find(self, origin: str) -> Fields:
        """Ask the upstream, once for all that wait."""
        task = self._asked.get(origin)
        if task is None:
            if self._under_way >= MOST_ASKED:
                return ()
            task = self._asked[origin] = asyncio.create_task(self._question(origin))
            task.add_done_callback(lambda _: self._asked.pop(origin, None))
        done, _ = await asyncio.wait([task], timeout=self._patience)
        return task.result() if done else ()

    async def _question(self, origin: str) -> Fields:
        asked = (origin, "POST", "authorization, content-type")
        path = ApiPath(Endpoint.CHAT.value)
        try:
            _, headers = await self._send(path, tuple(zip(_ASKED, asked, strict=True)))
        except UpstreamError:
            self._words[origin] = Word(self._clock() + UNKNOWN_SECONDS, ())
            return ()
        return self._note(origin, headers)

    async def _send(self, path: ApiPath, fields: Fields) -> tuple[int, Fields]:
        self._under_way += 1
        try:
            async with asyncio.timeout(SECONDS), self._ask(path, fields) as reply:
                return reply.status, tuple(reply.headers)
        except TimeoutError:
            message = "The upstream did not answer in time."
            raise UpstreamError(504, message, Reason.UPSTREAM_TIMEOUT) from None
        finally:
            self._under_way -= 1


CORS: web.AppKey[Cors] = web.AppKey("cors", Cors)

OWN_ERROR = web.RequestKey("own_error", bool)
"""Set if the reply to a request is an error of the gateway's own."""


def origin_of(request: web.BaseRequest) -> str | None:
    """Return the origin of the page that asks the API, if it is one."""
    origin = request.headers.get("Origin")
    is_api = request.path.startswith(("/v1/", "/openai/"))
    return origin if is_api and origin and len(origin) <= _LONGEST_ORIGIN else None


def is_preflight(request: web.BaseRequest) -> bool:
    """Tell whether a browser asks whether it may send a request."""
    asks = "Access-Control-Request-Method" in request.headers and "Origin" in request.headers
    return request.method == "OPTIONS" and asks


def _add(headers: CIMultiDict[str], fields: Fields) -> None:
    headers.extend(fields)
    if any(name == _ALLOW_ORIGIN and value != _ANY for name, value in fields):
        headers.add("Vary", "Origin")
