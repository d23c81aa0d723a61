"""Fields of the wire protocol: each packed, and read off a body with every read checked. Pure.

What does not fit its place or its bounds is ProtocolError, packed and read alike.
"""

import math
import struct
from typing import Final

from embeddings.messages import Reason

MAX_FIELD_BYTES: Final = 1024

U16: Final = struct.Struct(">H")
U32: Final = struct.Struct(">I")
_F64 = struct.Struct(">d")


class ProtocolError(Exception):
    """The peer's bytes are not a message of this protocol version."""


def packed_field(value: bytes) -> bytes:
    """Return a byte string of up to MAX_FIELD_BYTES."""
    if len(value) > MAX_FIELD_BYTES:
        raise ProtocolError(f"field of {len(value)} bytes, at most {MAX_FIELD_BYTES} allowed")
    return U16.pack(len(value)) + value


def packed_number(value: float) -> bytes:
    """Return a number that is one."""
    if math.isnan(value):
        raise ProtocolError("not a number")
    return _F64.pack(value)


def packed_score(value: float) -> bytes:
    """Return a number from 0 to 1."""
    if not 0 <= value <= 1:
        raise ProtocolError("not a score from 0 to 1")
    return _F64.pack(value)


def packed_count(value: int, most: int) -> bytes:
    """Return a number from 0 to `most`."""
    if not 0 <= value <= most:
        raise ProtocolError(f"count of {value}, 0 to {most} allowed")
    return U16.pack(value)


def packed_text(text: str) -> bytes:
    """Return a text that others follow."""
    data = text.encode()
    return U32.pack(len(data)) + data


def packed_vectors(vectors: tuple[tuple[float, ...], ...]) -> bytes:
    """Return the length of finite vectors, and their numbers."""
    dimensions = len(vectors[0]) if vectors else 0
    if any(len(vector) != dimensions for vector in vectors):
        raise ProtocolError("vectors of several lengths")
    numbers = [number for vector in vectors for number in vector]
    if not all(map(math.isfinite, numbers)):
        raise ProtocolError("not a finite vector")
    try:
        return U32.pack(dimensions) + struct.pack(f">{len(numbers)}f", *numbers)
    except OverflowError:
        raise ProtocolError("not a vector of 32-bit floats") from None


class FieldReader:
    """Reads fields off a body; every read is checked against what is left."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._body) - self._at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise ProtocolError(f"message ends {size - self.left} bytes too early")
        self._at += size
        return self._body[self._at - size : self._at]

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers of fixed size."""
        return fields.unpack(self.take(fields.size))

    def number(self) -> float:
        """Return a float that is a number."""
        value: float = _F64.unpack(self.take(_F64.size))[0]
        if math.isnan(value):
            raise ProtocolError("not a number")
        return value

    def score(self) -> float:
        """Return a number from 0 to 1."""
        value = self.number()
        if not 0 <= value <= 1:
            raise ProtocolError("not a score from 0 to 1")
        return value

    def flag(self) -> bool:
        """Return whether a byte is 1; it may be 0."""
        value = self.take(1)[0]
        if value > 1:
            raise ProtocolError(f"flag of value {value}")
        return value == 1

    def count(self, most: int) -> int:
        """Return a number from 0 to `most`."""
        (value,) = self.unpack(U16)
        if value > most:
            raise ProtocolError(f"count of {value}, 0 to {most} allowed")
        return value

    def vector(self, dimensions: int) -> tuple[float, ...]:
        """Return so many finite 32-bit floats."""
        numbers = struct.unpack(f">{dimensions}f", self.take(4 * dimensions))
        if not all(map(math.isfinite, numbers)):
            raise ProtocolError("not a finite vector")
        return numbers

    def field(self) -> bytes:
        """Return a byte string of up to MAX_FIELD_BYTES."""
        (size,) = self.unpack(U16)
        if size > MAX_FIELD_BYTES:
            raise ProtocolError(f"field of {size} bytes, at most {MAX_FIELD_BYTES} allowed")
        return self.take(size)

    def text(self) -> str:
        """Return the text that goes on to the end."""
        return _utf8(self.take(self.left))

    def long_text(self) -> str:
        """Return a text that others follow."""
        (size,) = self.unpack(U32)
        return _utf8(self.take(size))

    def short_text(self) -> str:
        """Return a byte string as text."""
        return _utf8(self.field())

    def reason(self) -> Reason:
        """Return one of the reasons there are."""
        word = self.short_text()
        try:
            return Reason(word)
        except ValueError:
            raise ProtocolError("unknown reason") from None


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolError("text is not UTF-8") from None
