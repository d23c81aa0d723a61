"""Bodies that an upstream, or a proxy before it, compressed though it was asked not to.

Law: what does not decode to its very end is a broken reply and no shorter answer. No more than
PIECE is inflated at a time, and others come between two pieces.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator

PIECE = 65_536

_GZIP = zlib.MAX_WBITS | 16
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}
_COMPRESSED = 8
"""What the lower half of a zlib stream's first byte says; some servers leave out its head."""


class CodingError(ValueError):
    """A body is not what its Content-Encoding says, or cannot be decoded here."""


def coding_of(written: str) -> str:
    """Return the coding that a Content-Encoding names, empty for none. Raises CodingError."""
    named = [token.strip().lower() for token in written.split(",")]
    codings = [coding for coding in named if coding not in ("", "identity")]
    if len(codings) > 1 or any(coding not in _WINDOWS for coding in codings):
        raise CodingError(f"the unasked Content-Encoding {', '.join(codings)[:40]}")
    return codings[0] if codings else ""


async def inflated(chunks: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """Yield a body decoded. Raises CodingError."""
    inflater = None
    async for chunk in chunks:
        rest, more = chunk, bool(chunk)
        while more:
            if inflater is None or inflater.eof:
                inflater = _inflater(coding, rest)
            try:
                piece = inflater.decompress(rest, PIECE)
            except zlib.error:
                raise CodingError("a body that could not be decoded") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            more = bool(rest) or (len(piece) == PIECE and not inflater.eof)
            if piece:
                yield piece
            if more:
                await asyncio.sleep(0)
    if inflater is not None and not inflater.eof:
        raise CodingError("a body that was cut short")


def _inflater(coding: str, data: bytes) -> "zlib._Decompress":
    window = _WINDOWS[coding]
    bare = coding == "deflate" and data[0] & 0xF != _COMPRESSED
    return zlib.decompressobj(-window if bare else window)
