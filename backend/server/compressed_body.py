"""Compressed bodies: inflated a little at a time, and no further than they are read.

aiohttp inflates on the event loop, and once it is answered it would go on to a body's end, however
large that is: a quarter of a megabyte on the wire can be a second of everybody's time.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler


async def read_body(request: web.Request) -> bytes:
    """Return the body. Raises HTTPRequestEntityTooLarge, RequestPayloadError."""
    if not _is_compressed(request):
        return await request.read()
    body = bytearray()
    while piece := await request.content.readany():
        body += piece
        if len(body) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
        await asyncio.sleep(0)  # the next piece may be there at once
    return bytes(body)


@web.middleware
async def leave_unread(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let nothing more be inflated after the answer; the connection closes where more would be."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        _leave(request, error)
        raise
    _leave(request, response)
    return response


def _leave(request: web.Request, response: web.StreamResponse) -> None:
    if _is_compressed(request) and not request.content.is_eof():
        response.force_close()
        # What ends aiohttp's wait for the rest of a body.
        request.content.set_exception(TimeoutError("nobody reads the rest"))


def _is_compressed(request: web.Request) -> bool:
    return "Content-Encoding" in request.headers
