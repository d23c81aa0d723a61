"""A request's body as a checked value, large ones off the event loop."""

import asyncio
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel

from backend.server.body import parse_body
from backend.server.errors import ApiError
from backend.server.http_server import read_body
from backend.server.validation import validate

ON_LOOP_BYTES = 64 * 1024
ON_LOOP_OBJECTS = 100
"""Parsing and checking what is within both takes a millisecond or two."""

allow_unknown_key = web.AppKey("allow_unknown", bool)
"""Whether fields of requests that no server is known to read are ignored."""

RequestT = TypeVar("RequestT", bound=BaseModel)


async def read_request(request: web.Request, schema: type[RequestT]) -> RequestT:
    """Return what the body says. Raises ApiError (400, 408, 413)."""
    try:
        raw = await read_body(request)
    except TimeoutError:
        raise ApiError(
            408,
            "The body of your request did not come in time.",
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    except web.RequestPayloadError as error:
        # aiohttp cannot tell where the next request begins, and closes the connection.
        raise ApiError(
            400, "The request body could not be decoded.", headers={"Connection": "close"}
        ) from error
    allow_unknown = request.app[allow_unknown_key]

    def check() -> RequestT:
        return validate(schema, parse_body(raw), allow_unknown=allow_unknown)

    if len(raw) <= ON_LOOP_BYTES and raw.count(b"{") <= ON_LOOP_OBJECTS:
        return check()
    return await asyncio.to_thread(check)
