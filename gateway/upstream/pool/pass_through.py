"""Requests that pass through to a pool, and its list of models.

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
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from gateway.protocol.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields, without
from gateway.protocol.messages import declared_name, read_whole
from gateway.protocol.paths import ApiPath
from gateway.upstream.connection import HttpReply
from gateway.upstream.http_client import HttpUpstream
from gateway.upstream.passed_body import PassedBody
from gateway.upstream.pool.affinity import Affinity
from gateway.upstream.pool.health import Up
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.request import Served, anyone

SECONDS = 0.8
"""The longest wait for an upstream's list of models: some clients wait 3 s for all of it."""
_MOST_TRIES = 3
"""Replicas of one upstream that are asked for its list of models."""
_MOST_BYTES = 4 * 2**20
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
class PoolRequests:
    """Sends what passes through; ``request`` is that of ``HttpUpstream``."""

    upstreams: Mapping[str, HttpUpstream]
    table: PoolTable
    clock: Callable[[], float]
    affinity: Affinity
    refuse_unknown: Callable[[str], None] | None = None
    """Raises ClientError for a model that no upstream declares."""

    async def list_models(self, path_qs: str, fields: Fields) -> web.Response:
        """Return the models of all upstreams, by their healthy replicas if any is healthy.

        They are those that ``fields`` may see. Raises UpstreamError.
        """
        fields = (*without(fields, "accept-encoding"), ("Accept-Encoding", "identity"))
        states = self.table.upstreams
        names = self.table.first_available(None, self.clock())
        names = [name for name in names if isinstance(states[name].health.breaker, Up)] or names
        replicas: dict[str, list[HttpUpstream]] = {}
        for name in names:
            replicas.setdefault(declared_name(name), []).append(self.upstreams[name])
        results = await asyncio.gather(
            *(self._list_in_time(each, path_qs, fields) for each in replicas.values())
        )
        replies, lists = list[Reply](), list[tuple[Member, Sequence[Mapping[str, Any]]]]()
        for each, reply in zip(replicas.values(), results, strict=True):
            member, known = states[each[0].name].member, each[0].listing
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
        self, replicas: Sequence[HttpUpstream], path_qs: str, fields: Fields
    ) -> Reply | UpstreamError:
        """Return an upstream's list, or why there is none in time."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._list_of_one(replicas, path_qs, fields)
        except TimeoutError:
            message = "The upstream did not answer in time."
            return UpstreamError(504, message, Reason.UPSTREAM_TIMEOUT)

    async def _list_of_one(
        self, replicas: Sequence[HttpUpstream], path_qs: str, fields: Fields
    ) -> Reply | UpstreamError:
        """Return the list of the first of an upstream's replicas that answers well."""
        result: Reply | UpstreamError = _no_upstream()
        for upstream in replicas[:_MOST_TRIES]:
            if upstream.name not in self.upstreams:
                continue  # has left meanwhile
            result = await _list_of(upstream, path_qs, fields)
            if (
                not isinstance(result, UpstreamError)
                and result[0] < HTTPStatus.INTERNAL_SERVER_ERROR
            ):
                break
        return result

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
    async def request(
        self,
        method: str,
        path: ApiPath,
        query: str,
        headers: Fields,
        body: PassedBody | None,
        *,
        model: str = "",
        decode: bool = True,
        logged: Callable[[], bool] = lambda: False,
        scopes: Sequence[bytes] = NOBODYS,
        named: Sequence[str] = (),
    ) -> AsyncIterator[HttpReply]:
        """Send a request to the first that can be reached. Raises UpstreamError.

        ``query`` begins with its question mark. An upstream that renames the ``model`` gets its own
        name of it. ``scopes`` belong to the client. ``named`` is the state that its body names.
        """
        tried, fault = list[tuple[str, Reason]](), None
        sticky_id = sticky_id_in(path.path)
        keeper = await self._keeper(sticky_id, named, model, scopes)
        names = [keeper] if keeper else self.table.first_available(model or None, self.clock())
        upstreams = [self.upstreams[name] for name in names]
        refusing = set[str]()
        async with AsyncExitStack() as stack:
            for upstream in upstreams:
                # It has left meanwhile, or is a replica that gets the key that was refused.
                if upstream.name not in self.upstreams or declared_name(upstream.name) in refusing:
                    continue
                rename = self.table.upstreams[upstream.name].member.rename.get(model)
                # An alias is no name for removal.
                target = path.naming(None if method == "DELETE" else rename)
                framing, pieces = ((), None) if body is None else body.sent(rename)
                fields = (*headers, *framing)
                sending = upstream.request(
                    method,
                    target + query,
                    fields,
                    pieces,
                    decode=decode,
                    logged=logged,
                    judged=method != "OPTIONS",
                )
                try:
                    reply = await stack.enter_async_context(sending)
                except UpstreamError as error:
                    fault = error
                    tried.append((upstream.name, error.reason))
                    is_kept = body is None or body.rest is None
                    if error.reason is Reason.UPSTREAM_REFUSED and is_kept:
                        refusing.add(declared_name(upstream.name))
                        continue
                    if error.sent:
                        break
                    # As a probe that failed: of what is behind a path nothing is known.
                    self.table.record_probe(
                        upstream.name, error.reason, self.clock(), for_sure=False
                    )
                else:
                    missing = bool(sticky_id) and reply.status == HTTPStatus.NOT_FOUND
                    if missing and body is None and (upstream is not upstreams[-1] or fault):
                        tried.append((upstream.name, Reason.NOT_KEPT))
                        await stack.aclose()
                        continue
                    found = reply.status < HTTPStatus.BAD_REQUEST
                    if sticky_id and body is None and found:
                        self.affinity.note((sticky_id,), scopes[0], upstream.name)
                    learn = partial(self.affinity.note, maker=upstream.name)
                    reply.served = Served(upstream.name, tuple(tried), several=True, learn=learn)
                    yield reply
                    return
        if keeper and named and fault is not None and not fault.sent:
            # The client may try again later: nobody else can read what it has.
            message = "The upstream that made a part of this request is not available."
            fault = UpstreamError(503, message, fault.reason, retry_after=1.0, detail=fault.detail)
        fault = fault or _no_upstream()
        fault.tried = tuple(tried)
        raise fault

    async def _keeper(
        self, sticky_id: str, named: Sequence[str], model: str, scopes: Sequence[bytes]
    ) -> str:
        """Return the only upstream that can answer, if one is known."""
        if sticky_id:
            keeper = await self.affinity.maker_of((sticky_id,), scopes)
            if keeper in self.upstreams:
                return keeper
        if named:
            keeper = await self.affinity.maker_of(named, scopes)
            if keeper in self.upstreams and (not model or self.table.serves(keeper, model)):
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


async def _list_of(upstream: HttpUpstream, path_qs: str, fields: Fields) -> Reply | UpstreamError:
    try:
        async with upstream.request("GET", path_qs, fields, None, judged=True) as reply:
            body = await read_whole(reply.read, _MOST_BYTES)
        if body is not None:
            return reply.status, body
        message = "The upstream's list of models is too long."
        fault = UpstreamError(502, message, Reason.UPSTREAM_BROKE)
    except UpstreamError as error:
        fault = error
    upstream.failures.note_failure(fault)
    return fault


def _response(status: int, body: bytes) -> web.Response:
    headers = {"Cache-Status": ForwardStatus(Forwarded.BYPASS).header()}
    return web.Response(body=body, status=status, content_type=_JSON, headers=headers)
