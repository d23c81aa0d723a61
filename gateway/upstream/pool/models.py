"""``GET /v1/models`` of a pool: one list made of its upstreams' own.

Law: it names what a request may name. Each upstream's list counts as far as its declared models
go; one that does not answer in time is left out, and an error passes only where nobody answers.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import ClientError, web

from gateway.protocol.cache_status import Forwarded, ForwardStatus
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields, without
from gateway.protocol.reasons import Reason
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.pool.affinity import PoolRequests
from gateway.upstream.pool.upstream_state import Member

SECONDS = 5.0
_MOST_BYTES = 4 * 2**20
_JSON = "application/json"

_NO_CHAT = re.compile(
    r"embed|rerank|moderation|whisper|transcribe|tts|dall-e|image|minilm|(^|[/_-])(bge|e5|gte)-",
    re.IGNORECASE,
)
"""Names of models that no conversation is held with: clients take the first of the list."""

Reply = tuple[int, bytes]


class ModelList:
    """Asks all upstreams that are well."""

    def __init__(self, upstreams: PoolRequests, members: Mapping[str, Member]) -> None:
        self._upstreams = upstreams
        self._members = members

    async def answer(self, path_qs: str, fields: Fields) -> web.Response:
        """Return the list as ``fields`` may see it. Raises UpstreamError."""
        fields = (*without(fields, "accept-encoding"), ("Accept-Encoding", "identity"))
        asked = self._upstreams.well()
        got = await asyncio.gather(*(_list_of(one, path_qs, fields) for one in asked))
        lists = [
            (self._members[one.name], data)
            for one, reply in zip(asked, got, strict=True)
            if not isinstance(reply, UpstreamError) and (data := _models(*reply)) is not None
        ]
        if lists:
            body = orjson.dumps({"object": "list", "data": merged(lists)})
            return _response(HTTPStatus.OK, body)
        for reply in got:
            if not isinstance(reply, UpstreamError):
                return _response(*reply)
        raise next(iter(got))  # type: ignore[misc]


def merged(lists: Sequence[tuple[Member, Sequence[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return each model once, in the order of the upstreams, those for conversations first."""
    found: dict[str, dict[str, Any]] = {}
    for member, models in lists:
        for model in models:
            if member.serves(model["id"]):
                found.setdefault(model["id"], model)
    return sorted(found.values(), key=lambda model: bool(_NO_CHAT.search(model["id"])))


def _models(status: int, body: bytes) -> list[dict[str, Any]] | None:
    if status != HTTPStatus.OK:
        return None
    try:
        match orjson.loads(body):
            case {"data": list(data)}:
                return [one for one in data if isinstance(one, dict) and _named(one)]
    except orjson.JSONDecodeError:
        pass  # of some other form: it passes where it is the only one
    return None


def _named(model: dict[str, Any]) -> bool:
    return isinstance(model.get("id"), str)


async def _list_of(upstream: HttpUpstream, path_qs: str, fields: Fields) -> Reply | UpstreamError:
    try:
        async with (
            asyncio.timeout(SECONDS),
            upstream.request("GET", path_qs, fields, None) as reply,
        ):
            return reply.status, await _read(upstream.body(reply))
    except UpstreamError as error:
        upstream.failures.failed(error)
        return error
    except (TimeoutError, ClientError):
        message = "The upstream did not answer in time."
        return UpstreamError(504, message, Reason.UPSTREAM_TIMEOUT)


async def _read(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _MOST_BYTES:
            raise UpstreamError(
                502, "The upstream's list of models is too long.", Reason.UPSTREAM_BROKE
            )
    return body


def _response(status: int, body: bytes) -> web.Response:
    headers = {"Cache-Status": ForwardStatus(Forwarded.BYPASS).header()}
    return web.Response(body=body, status=status, content_type=_JSON, headers=headers)
