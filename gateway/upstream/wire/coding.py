"""Bodies that an upstream compresses, although no request asks for a compressed one."""

import asyncio
import zlib
from collections.abc import AsyncIterator

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason

PIECE = 65_536
"""Bytes inflated at a time."""

_CODINGS = ("gzip", "x-gzip", "deflate")


class EndlessReplyError(Exception):
    """The head of a reply does not end within its bound, or the framing of its body does not."""


def odd_reply(what: str) -> UpstreamError:
    """Return the fault of an upstream whose reply is no answer."""
    message = f"The upstream sent {what}.".encode("ascii", "replace").decode()
    return UpstreamError(502, message, Reason.UPSTREAM_BROKE, answered=True)


def is_coded(encoding: str) -> bool:
    """Tell whether a Content-Encoding names one that is inflated. Raises UpstreamError."""
    named = [token.strip().lower() for token in encoding.split(",")]
    codings = [coding for coding in named if coding not in ("", "identity")]
    if len(codings) > 1 or any(coding not in _CODINGS for coding in codings):
        raise odd_reply(f"the unasked Content-Encoding {', '.join(codings)[:40]}")
    return bool(codings)


def inflated(body: bytes, most: int) -> bytes:
    """Return the beginning of a body that may be compressed, as far as it can be read."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)
    except zlib.error:
        return body


async def inflate(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a gzip or deflate body decoded; an incomplete one is an error. Raises UpstreamError."""
    inflater = None
    async for chunk in chunks:
        rest, more = chunk, bool(chunk)
        while more:
            if inflater is None or inflater.eof:
                inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its head
            try:
                piece = inflater.decompress(rest, PIECE)
            except zlib.error:
                raise odd_reply("a body that could not be decoded") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            more = bool(rest) or (len(piece) == PIECE and not inflater.eof)
            if piece:
                yield piece
            if more:
                await asyncio.sleep(0)  # others come between two pieces
    if inflater is not None and not inflater.eof:
        raise odd_reply("a body that was cut short")
