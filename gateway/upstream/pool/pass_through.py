"""Requests that pass through to a pool, and its list of models.

The driver is ``upstream/call.py``.

Laws:
- What names an object in its path or its body goes to the upstream that is known to keep it.
- All else goes to the first healthy upstream of its model, in the order of the declaration. Another
  one gets it only if nothing was sent, or if the gateway's key was refused. If a path has an id,
  each of them is tried: its object may have been made while the first was not healthy.
- ``GET /v1/models`` names what a request may name. Each upstream's list counts as far as its
  declared models go. One replica answers for all of its upstream, the next one if it fails. If an
  upstream does not answer in time, its last list counts. An error passes only if there is no list.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import declared_name, read_whole
from gateway.protocol.http.paths import ApiPath
from gateway.upstream.call import drive
from gateway.upstream.pool.affinity import Affinity
from gateway.upstream.pool.health import Up
from gateway.upstream.pool.retry_budget import Budget, Forwarding
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.request import Served, anyone, unencoded_fields
from gateway.upstream.tries import NOT_KEPT, Facts, Failure, Kind, Send, Where, failure_of
from gateway.upstream.wire.connection import HttpReply
from gateway.upstream.wire.http_client import HttpUpstream, with_query
from gateway.upstream.wire.passed_body import PassedBody

SECONDS = 0.8
"""The longest wait for an upstream's list of models: some clients wait 3 s for all of it."""
_MOST_TRIES = 3
"""Replicas of one upstream that are asked for its list of models."""
_MOST_BYTES = 4 * 2**20
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods of requests that may have been processed, and may be sent again nevertheless."""
_NO_OTHER = frozenset({Kind.BROKE, Kind.STALLED, Kind.CUT})
_JSON = "application/json"

_NO_CHAT = re.compile(
    r"embed|rerank|moderation|whisper|transcribe|tts|dall-e|image|minilm|(^|[/_-])(bge|e5|gte)-",
    re.IGNORECASE,
)
"""Names of models that no conversation is held with: clients take the first of the list."""

_KINDS = (
    "/v1/(?:responses|conversations|files|uploads|batches|vector_stores|containers|assistants"
    "|threads|skills|evals|videos|chat/completions|fine_tuning/jobs|messages/batches)"
)
_ID_PATH = re.compile(_KINDS + "/([^/?]+)")
_OBJECTS = re.compile(_KINDS + "(?![^/?])")

NOBODYS = anyone()

Reply = tuple[int, bytes]


@dataclass(eq=False)
class PassedRequest:
    """A request that passes through; see ``HttpUpstream.request`` for ``decode`` and ``logged``.

    ``query`` begins with its question mark. An upstream that renames the ``model`` gets its own
    name of it. ``scopes`` belong to the client. ``named`` is the state that its body names. If it
    ``upgrades``, it goes to upstreams that may have realtime, and its query names the model.
    """

    method: str
    path: ApiPath
    query: str
    fields: Fields
    body: PassedBody | None = None
    _: KW_ONLY
    model: str = ""
    decode: bool = True
    logged: Callable[[], bool] = lambda: False
    scopes: Sequence[bytes] = NOBODYS
    named: Sequence[str] = ()
    upgrades: bool = False

    @property
    def resends(self) -> bool:
        """Tell whether it can be sent again: nothing of its body is gone."""
        return self.body is None or self.body.rest is None


@dataclass(eq=False)
class PassedTry:
    """One try at one upstream, with its reply or its fault."""

    name: str
    context: AbstractAsyncContextManager[HttpReply]
    reply: HttpReply | None = None
    error: UpstreamError | None = None
    failure: Failure | None = None

    async def close(self, error: BaseException | None = None) -> None:
        """Leave the reply, if there is one."""
        reply, self.reply = self.reply, None
        if reply is not None:
            await self.context.__aexit__(None if error is None else type(error), error, None)


@dataclass(eq=False)
class PassedCall:
    """A passed request, and the upstreams that may get it, in order. The context has the reply.

    ``sticky_id`` is the id in its path. If ``statuses`` is set, a server error is no answer.
    """

    requests: "PoolRequests"
    request: PassedRequest
    names: Sequence[str]
    _: KW_ONLY
    sticky_id: str = ""
    keeper: str = ""
    statuses: bool = False
    forwarding: Forwarding = field(default_factory=Forwarding)
    _refusing: set[str] = field(default_factory=set)
    """The declared upstreams that refuse the gateway's key."""
    _last: PassedTry | None = None
    _fault: UpstreamError | None = None
    """The first one."""

    async def __aenter__(self) -> HttpReply:
        """Return the reply. Raises UpstreamError if there is none."""
        last, tries, _ = await drive(self, self.requests.retry_budget)
        if last.failure is NOT_KEPT and self._fault is not None:
            await last.close()  # who could not be asked may keep it
        if last.reply is not None:
            several, pool = self.requests.several, self.requests
            tried = tries.failed[:-1] if last.failure else tries.failed
            learn = partial(pool.affinity.note, maker=last.name) if several else None
            found = last.reply.status < HTTPStatus.BAD_REQUEST
            if self.sticky_id and several and self.request.body is None and found:
                pool.affinity.note((self.sticky_id,), self.request.scopes[0], last.name)
            last.reply.served = Served(last.name, tried, several=several, learn=learn)
            return last.reply
        fault = (last.error or self._fault or _no_upstream()).again()
        if self.keeper and self.request.named and not fault.sent:
            # The client may try again later: nobody else can read what it has.
            message = "The upstream that made a part of this request is not available."
            detail = fault.detail
            fault = UpstreamError(503, message, fault.reason, retry_after=1.0, detail=detail)
        if self.requests.several:
            fault.tried = tries.failed
        raise fault

    async def __aexit__(self, _: object, error: BaseException | None, _traceback: object) -> None:
        """Leave the reply."""
        if self._last is not None:
            await self._last.close(error)

    async def send(self, step: Send) -> PassedTry | None:
        """Send the request where a step says; None if it cannot be sent there."""
        name = self._name_for(step)
        if name is None:
            return None
        self.forwarding.calls_left -= 1
        if self._last is not None:
            await self._last.close()
        self._last = found = PassedTry(name, self._sending(self.requests.upstreams[name]))
        try:
            found.reply = await found.context.__aenter__()
        except UpstreamError as error:
            found.error, found.failure = error, failure_of(error)
            self._fault = self._fault or error
            if error.reason is Reason.UPSTREAM_REFUSED:
                self._refusing.add(declared_name(name))
            elif not error.sent and name not in step.tries.names:
                self.requests.note_probe(name, error.reason)
            if self.statuses:
                found.failure = Failure(Kind.LIMITED, error.reason)  # a list costs nothing
        else:
            found.failure = self._failure_in(found.reply)
            self.requests.note_probe(name, None)
        if found.failure is NOT_KEPT:
            self.forwarding.calls_left += 1
        return found

    def facts(self, last: PassedTry) -> Facts:
        """Return what the next step depends on."""
        return Facts(
            self.forwarding.calls_left,
            self.requests.jitter(),
            has_reply=last.reply is not None,
            resends=self.request.resends or (last.error is not None and not last.error.sent),
            risks=self.request.method in _IDEMPOTENT,
        )

    def _name_for(self, step: Send) -> str | None:
        """Return the upstream for a step. Raises UpstreamError if there is none at all."""
        upstreams, last = self.requests.upstreams, self._last
        if step.where is Where.SAME:
            return step.tries.last if step.tries.last in upstreams else None
        # A connection that broke says nothing of another upstream, which may keep other objects.
        failure = None if last is None or self.statuses else last.failure
        if failure is not None and failure.kind in _NO_OTHER:
            return None
        # Others have left meanwhile, or are replicas that get the key that was refused.
        left = (
            name
            for name in self.names
            if name in upstreams
            and name not in step.tries.names
            and declared_name(name) not in self._refusing
        )
        name = next(left, None)
        if name is None and step.where is Where.BEST:
            raise _no_upstream()
        return name

    def _sending(self, upstream: HttpUpstream) -> HttpReply:
        request = self.request
        rename = self.requests.table.upstreams[upstream.name].member.rename.get(request.model)
        # An alias is no name for removal.
        target = request.path.naming(None if request.method == "DELETE" else rename) + request.query
        if request.upgrades and rename is not None:
            target = with_query(target, {"model": rename})
        framing, pieces = ((), None) if request.body is None else request.body.sent(rename)
        return upstream.request(
            request.method,
            target,
            (*request.fields, *framing),
            pieces,
            decode=request.decode,
            logged=request.logged,
            judged=request.method != "OPTIONS",
            upgrades=request.upgrades,
        )

    def _failure_in(self, reply: HttpReply) -> Failure | None:
        """Return why a reply is none, if another upstream may have a better one."""
        if self.statuses and reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Failure(Kind.LIMITED, Reason.UPSTREAM_STATUS)  # nothing was processed
        is_missing = self.sticky_id and reply.status == HTTPStatus.NOT_FOUND
        return NOT_KEPT if is_missing and self.request.body is None else None


@dataclass(eq=False)
class PoolRequests:
    """Sends what passes through; if there are ``several`` upstreams, replies say which answered."""

    upstreams: Mapping[str, HttpUpstream]
    table: PoolTable
    clock: Callable[[], float]
    affinity: Affinity
    refuse_unknown: Callable[[str], None] | None = None
    """Raises ClientError for a model that no upstream declares."""
    _: KW_ONLY
    retry_budget: Budget = field(default_factory=Budget)
    jitter: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    several: bool = True

    @property
    def lists_models(self) -> bool:
        """Tell whether the list of models is ours: merged, or with aliases."""
        members = (state.member for state in self.table.upstreams.values())
        return self.several or any(member.rename for member in members)

    def note_probe(self, name: str, fault: Reason | None) -> None:
        """Note as of a probe whether an upstream answers: of what is behind a path is not known."""
        upstream = self.table.upstreams.get(name)
        is_up = upstream is not None and isinstance(upstream.health.breaker, Up)
        if is_up is not (fault is None):  # an open breaker stays so, and its probes stay due
            self.table.record_probe(name, fault, self.clock(), for_sure=False)

    async def list_models(self, path_qs: str, fields: Fields) -> web.Response:
        """Return the models of all upstreams, by their healthy replicas if any is healthy.

        Only models that ``fields`` may see are listed. Raises UpstreamError.
        """
        fields = unencoded_fields(fields)
        states = self.table.upstreams
        names = self.table.first_available(None, self.clock())
        names = [name for name in names if isinstance(states[name].health.breaker, Up)] or names
        listings = {name: one.listing for name, one in self.upstreams.items()}
        replicas: dict[str, list[str]] = {}
        for name in names:
            replicas.setdefault(declared_name(name), []).append(name)
        results = await asyncio.gather(
            *(self._list_in_time(each, path_qs, fields) for each in replicas.values())
        )
        replies, lists = list[Reply](), list[tuple[Member, Sequence[Mapping[str, Any]]]]()
        for each, reply in zip(replicas.values(), results, strict=True):
            member, known = states[each[0]].member, listings.get(each[0])
            if isinstance(reply, UpstreamError):
                data = None if known is None else known.models
            else:
                replies.append(reply)
                data = _models(*reply, has_aliases=bool(member.rename))
            if data is not None:
                lists.append((member, data))
        if lists:
            body = orjson.dumps({"object": "list", "data": merge(lists)})
            return _response(HTTPStatus.OK, body)
        for reply in replies:
            return _response(*reply)
        faults = (each for each in results if isinstance(each, UpstreamError))
        raise next(faults, _no_upstream())

    async def _list_in_time(
        self, names: Sequence[str], path_qs: str, fields: Fields
    ) -> Reply | UpstreamError:
        """Return the list of one of an upstream's replicas, or why there is none in time."""
        path, mark, query = path_qs.partition("?")
        request = PassedRequest("GET", ApiPath(path), mark + query, fields)
        call = PassedCall(self, request, names[:_MOST_TRIES], statuses=True)
        try:
            async with asyncio.timeout(SECONDS), call as reply:
                body = await read_whole(reply.read, _MOST_BYTES)
                if body is not None:
                    return reply.status, body
                message = "The upstream's list of models is too long."
                fault = UpstreamError(502, message, Reason.UPSTREAM_BROKE)
        except TimeoutError:
            message = "The upstream did not answer in time."
            return UpstreamError(504, message, Reason.UPSTREAM_TIMEOUT)
        except UpstreamError as error:
            fault = error
        if (upstream := self.upstreams.get(names[0])) is not None:  # it may have left meanwhile
            upstream.failures.note(fault)
        return fault

    async def describe_alias(self, model: str, fields: Fields) -> web.Response | None:
        """Return what the list says of an alias; None for a model that no upstream renames."""
        members = (state.member for state in self.table.upstreams.values())
        if not any(model in member.rename for member in members):
            return None
        listed = await self.list_models("/v1/models", fields)
        if listed.status >= HTTPStatus.BAD_REQUEST or not isinstance(listed.body, bytes):
            return listed
        models = _models(listed.status, listed.body, has_aliases=True) or []
        found = (one for one in models if one["id"] == model)
        return _response(HTTPStatus.OK, orjson.dumps(next(found, _unlisted(model))))

    @asynccontextmanager
    async def request(self, request: PassedRequest) -> AsyncIterator[HttpReply]:
        """Send a request to the first that can be reached. Raises UpstreamError."""
        self.retry_budget.earn()
        sticky_id = sticky_id_in(request.path.path)
        keeper = await self._keeper(sticky_id, request)
        known = self.table.first_available(request.model or None, self.clock())
        names = [keeper] if keeper else known
        if request.upgrades and not (names := self._with_realtime(names)):
            message = "The upstreams of this model have no /v1/realtime, as far as is known."
            raise ClientError(501, message, code="realtime_not_supported")
        call = PassedCall(self, request, names, sticky_id=sticky_id, keeper=keeper)
        async with call as reply:
            yield reply

    def _with_realtime(self, names: Sequence[str]) -> list[str]:
        states = self.table.upstreams
        return [name for name in names if name in states and states[name].member.realtime]

    async def _keeper(self, sticky_id: str, request: PassedRequest) -> str:
        """Return the only upstream that can answer, if one is known."""
        if not self.several:
            return ""
        if sticky_id:
            keeper = await self.affinity.maker_of((sticky_id,), request.scopes)
            if self.table.takes_requests(keeper):
                return keeper
        if request.named:
            model = request.model
            keeper = await self.affinity.maker_of(request.named, request.scopes)
            if self.table.serves(keeper, model) if model else self.table.takes_requests(keeper):
                return keeper
        return ""


def _no_upstream() -> UpstreamError:
    message = "No upstream is known at the moment. Please try again later."
    return UpstreamError(503, message, Reason.UPSTREAM_UNREACHABLE, sent=False, retry_after=1.0)


def sticky_id_in(path_qs: str) -> str:
    """Return the id in a path such as ``/v1/files/ID/content``, if any."""
    found = _ID_PATH.match(path_qs)
    return "" if found is None else found[1]


def names_objects(path_qs: str) -> bool:
    """Tell whether a path is about objects that an upstream keeps, or brings one's description."""
    path = path_qs.partition("?")[0]
    return _OBJECTS.match(path) is not None and not path.endswith("/content")


def merge(lists: Sequence[tuple[Member, Sequence[Mapping[str, Any]]]]) -> list[Mapping[str, Any]]:
    """Return each model once, in the order of the upstreams, those for conversations first.

    Aliases come before the upstreams' own names.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for member, models in lists:
        known = {model["id"]: model for model in models}
        for alias, name in member.rename.items():
            found.setdefault(alias, {**known.get(name, _unlisted(alias)), "id": alias})
    for member, models in lists:
        for model in models:
            if member.serves(model["id"]):
                found.setdefault(model["id"], model)
    return sorted(found.values(), key=lambda model: bool(_NO_CHAT.search(model["id"])))


def _unlisted(alias: str) -> dict[str, Any]:
    return {"id": alias, "object": "model", "created": 0, "owned_by": "refrain"}


def _models(status: int, body: bytes, *, has_aliases: bool) -> list[dict[str, Any]] | None:
    if status == HTTPStatus.NOT_FOUND and has_aliases:
        return []  # such as one deployment, which has no list
    if status != HTTPStatus.OK:
        return None
    try:
        match orjson.loads(body):
            case {"data": list(data)}:
                return [
                    one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)
                ]
    except orjson.JSONDecodeError:
        pass  # another form: it passes if it is the only list
    return None


def _response(status: int, body: bytes) -> web.Response:
    headers = {"Cache-Status": ForwardStatus(Forwarded.BYPASS).header()}
    return web.Response(body=body, status=status, content_type=_JSON, headers=headers)
