"""Codings of a request's body (RFC 9110, 8.4.1), undone in steps of bounded size."""

import sys
import zlib
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ACCEPTED = "gzip, deflate, zstd"

_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "zstd": "zstd"}
_MOST_CODINGS = 3
_MOST_MEMBERS = 1_000
"""Of gzip, or frames of zstd, in one body: each may be empty."""

_WINDOW_LOG = 23
"""Of zstd: 8 MiB, the most that a sender may rely on (RFC 9659)."""


class CodingError(ValueError):
    """The bytes are not of this coding, or end too early."""


def codings_of(content_encoding: str) -> tuple[str, ...] | None:
    """Return the codings in the order of undoing; None if one is unknown, or there are too many."""
    given = [each.strip().lower() for each in content_encoding.split(",")]
    found = [_NAMES.get(each) for each in given if each not in ("", "identity")]
    known = tuple(each for each in found if each is not None)
    return None if len(known) < len(found) or len(known) > _MOST_CODINGS else known[::-1]


class _Member(Protocol):
    """One member of gzip, one stream of deflate, or one frame of zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _ZlibMember:
    def __init__(self, window_bits: int) -> None:
        self._zlib = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _member(coding: str, first: int) -> _Member:
    if coding == "zstd":
        return zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        )
    if coding == "gzip":
        return _ZlibMember(16 + zlib.MAX_WBITS)
    # Some clients leave zlib's header out of deflate.
    return _ZlibMember(zlib.MAX_WBITS if first & 0xF == zlib.DEFLATED else -zlib.MAX_WBITS)


class Inflater:
    """Undoes one coding."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._member: _Member | None = None
        self._members = 0
        self._ahead = b""
        """Behind the last member that has ended."""

    def step(self, data: bytes, most: int) -> bytes:
        """Take bytes in; return at most so many, and none where more are needed.

        Raises CodingError.
        """
        self._ahead += data
        try:
            while self._member is not None or self._ahead:
                if piece := self._step(most):
                    return piece
                if self._member is not None:
                    break
        except (zlib.error, zstd.ZstdError) as error:
            raise CodingError(str(error)) from None
        return b""

    def finish(self) -> None:
        """Raise CodingError if the body ends too early."""
        if self._member is not None:
            raise CodingError("it ends too early")

    def _step(self, most: int) -> bytes:
        data, self._ahead = self._ahead, b""
        if self._member is None:
            self._members += 1
            if self._members > (1 if self._coding == "deflate" else _MOST_MEMBERS):
                raise CodingError("more follows its end")
            self._member = _member(self._coding, data[0])
        piece = self._member.decompress(data, most)
        if self._member.eof:
            self._ahead, self._member = self._member.unused_data, None
        return piece
