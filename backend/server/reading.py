"""A request's body as a checked value, large ones off the event loop."""

import asyncio
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel

from backend.server.body import parse_body
from backend.server.compressed_body import read_body
from backend.server.errors import ApiError
from backend.server.validation import validate

ON_LOOP_BYTES = 64 * 1024
ON_LOOP_OBJECTS = 100
"""Parsing and checking what is within both takes a millisecond or two."""

RequestT = TypeVar("RequestT", bound=BaseModel)


async def read_request(request: web.Request, schema: type[RequestT]) -> RequestT:
    """Return what the body says. Raises ApiError (400, 413)."""
    try:
        raw = await read_body(request)
    except web.RequestPayloadError as error:
        # aiohttp cannot tell where the next request begins, and closes the connection.
        raise ApiError(
            400, "The request body could not be decoded.", headers={"Connection": "close"}
        ) from error
    if len(raw) <= ON_LOOP_BYTES and raw.count(b"{") <= ON_LOOP_OBJECTS:
        return validate(schema, parse_body(raw))
    return await asyncio.to_thread(lambda: validate(schema, parse_body(raw)))
