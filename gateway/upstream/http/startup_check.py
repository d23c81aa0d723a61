"""At start each upstream is asked for its models, so that a wrong address is found at once.

Law: nothing depends on the answer. The upstream may be started later; hits need none.
"""

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus

import orjson
from aiohttp import web

from gateway.protocol.errors import UpstreamError
from gateway.upstream.http.client import HttpUpstream

log = logging.getLogger(__name__)

UPSTREAMS: web.AppKey[tuple[HttpUpstream, ...]] = web.AppKey("upstreams")

SECONDS = 10.0
_MOST_BYTES = 4 * 2**20


async def greet(upstreams: Iterable[HttpUpstream]) -> None:
    """Ask all at once and log a line for each."""
    await asyncio.gather(*map(_greet, upstreams))


async def _greet(upstream: HttpUpstream) -> None:
    told, well = await _asked(upstream)
    log.log(logging.INFO if well else logging.WARNING, "upstream %s %s", upstream.url("/v1"), told)


async def _asked(upstream: HttpUpstream) -> tuple[str, bool]:
    """Return what is to be said of an upstream, and whether it is well."""
    try:
        async with (
            asyncio.timeout(SECONDS),
            upstream.request("GET", "/v1/models", (), None) as reply,
        ):
            body = bytearray()
            async for piece in upstream.body(reply):
                body += piece
                if len(body) > _MOST_BYTES:
                    break
            return _told(
                reply.status,
                reply.content_type,
                bytes(body),
                own_credential=upstream.own_credential,
            )
    except UpstreamError as error:
        return f"does not answer: {error.detail or error.message}", False
    except TimeoutError:
        return f"has not answered within {SECONDS:.0f} s", False


def _told(status: int, content_type: str, body: bytes, *, own_credential: bool) -> tuple[str, bool]:
    if status == HTTPStatus.LOOP_DETECTED:
        return "is this gateway itself; give it the URL of a model server", False
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        if own_credential:
            return f"refuses the key that the gateway has for it (status {status})", False
        return "answers, and wants a key, which clients must send", True
    if status != HTTPStatus.OK:
        hint = "; is its path right?" if status == HTTPStatus.NOT_FOUND else ""
        return f"answers its list of models with status {status}{hint}", False
    try:
        match orjson.loads(body):
            case {"data": list(models)}:
                count = "1 model" if len(models) == 1 else f"{len(models)} models"
                return f"answers, {count}", True
    except orjson.JSONDecodeError:
        pass
    return f"answers with {content_type}, which is no list of models; is its path right?", False
