"""Bodies of requests: read in bounded time, compressed ones inflated no further than they are read.

aiohttp inflates on the event loop, and once it is answered it would go on to a body's end, however
large that is: a quarter of a megabyte on the wire can be a second of everybody's time.
"""

import asyncio

from aiohttp import web

STALLED_SECONDS = 30.0
"""How long nothing may come of a body."""

LONGEST_SECONDS = 300.0


async def read_body(request: web.Request, seconds: float = LONGEST_SECONDS) -> bytes:
    """Return the body, which must come within ``seconds`` and without a long pause.

    Raises HTTPRequestEntityTooLarge, RequestPayloadError, TimeoutError.
    """
    if request.content.is_eof() and not _is_compressed(request):  # it came with the head
        return await request.read()
    body = bytearray()
    async with asyncio.timeout(seconds):
        while piece := await next_piece(request, seconds):
            body += piece
            if len(body) > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size)
            await asyncio.sleep(0)  # of a compressed one, the next piece may be there at once
    return bytes(body)


async def next_piece(request: web.Request, seconds: float) -> bytes:
    """Return what comes next of the body, nothing at its end. Raises as ``read_body``."""
    async with asyncio.timeout(min(seconds, STALLED_SECONDS)):
        return await request.content.readany()


def leave_unread(request: web.Request, response: web.StreamResponse) -> None:
    """Let nothing more be inflated after the answer; the connection closes where more would be."""
    if _is_compressed(request) and not request.content.is_eof():
        response.force_close()
        # What ends aiohttp's wait for the rest of a body.
        request.content.set_exception(TimeoutError("nobody reads the rest"))


def _is_compressed(request: web.Request) -> bool:
    return "Content-Encoding" in request.headers
