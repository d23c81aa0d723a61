"""Wire protocol between gateway workers and the embeddings service: bytes in, values out, no I/O.

A frame is a four-byte big-endian length and that many bytes of body. A body is

    version u8 | kind u8 | request id u32 | fields

with byte strings as u16 length + bytes, numbers big-endian, and the one text of a message last, in
UTF-8, up to the end of the body; where there are several, each as u32 length + UTF-8. A reply
carries the id of its request, so one connection serves many requests at once and in any order. A
frame longer than MAX_FRAME_BYTES, another version, an unknown kind, missing bytes and bytes left
over are all ProtocolError: the connection is then unusable and is closed.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from embeddings.messages import (
    Add,
    AskStatus,
    Cancel,
    Done,
    Embed,
    IndexStatus,
    Match,
    Matches,
    Message,
    Reason,
    Refused,
    Remove,
    Reply,
    Request,
    Scores,
    Search,
    Vectors,
    Verify,
)

PROTOCOL_VERSION: Final = 3
MAX_FRAME_BYTES: Final = 1 << 20
MAX_MATCHES: Final = 256
MAX_TEXTS: Final = 16
MAX_PAIRS: Final = 16
MAX_FIELD_BYTES: Final = 1024

_HEAD = struct.Struct(">BBI")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_F64 = struct.Struct(">d")


class ProtocolError(Exception):
    """The peer's bytes are not a message of this protocol version."""


def _pack_field(value: bytes) -> bytes:
    if len(value) > MAX_FIELD_BYTES:
        raise ProtocolError(f"field of {len(value)} bytes, at most {MAX_FIELD_BYTES} allowed")
    return _U16.pack(len(value)) + value


def _pack_number(value: float) -> bytes:
    if math.isnan(value):
        raise ProtocolError("not a number")
    return _F64.pack(value)


def _pack_score(value: float) -> bytes:
    if not 0 <= value <= 1:
        raise ProtocolError("not a score from 0 to 1")
    return _F64.pack(value)


def _pack_count(value: int, most: int) -> bytes:
    if not 0 <= value <= most:
        raise ProtocolError(f"count of {value}, 0 to {most} allowed")
    return _U16.pack(value)


def _pack_text(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


def _pack_vectors(vectors: tuple[tuple[float, ...], ...]) -> bytes:
    dimensions = len(vectors[0]) if vectors else 0
    if any(len(vector) != dimensions for vector in vectors):
        raise ProtocolError("vectors of several lengths")
    numbers = [number for vector in vectors for number in vector]
    if not all(map(math.isfinite, numbers)):
        raise ProtocolError("not a finite vector")
    try:
        return _U32.pack(dimensions) + struct.pack(f">{len(numbers)}f", *numbers)
    except OverflowError:
        raise ProtocolError("not a vector of 32-bit floats") from None


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and the id that ties a reply to its request."""

    request_id: int
    message: Message


_KIND_OF: Final[dict[type[Message], int]] = {
    Search: 1,
    Add: 2,
    Remove: 3,
    AskStatus: 4,
    Cancel: 5,
    Embed: 6,
    Verify: 7,
    Done: 16,
    Matches: 17,
    IndexStatus: 18,
    Refused: 19,
    Vectors: 20,
    Scores: 21,
}
_TYPE_OF: Final = {kind: message for message, kind in _KIND_OF.items()}


def encode(request_id: int, message: Message) -> bytes:
    """Return the frame for a message, length prefix included.

    Raises ProtocolError when a field does not fit its place or the frame its bound, and
    UnicodeEncodeError when the text holds lone surrogates.
    """
    body = _HEAD.pack(PROTOCOL_VERSION, _KIND_OF[type(message)], request_id) + _pack(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(body)} bytes, at most {MAX_FRAME_BYTES} allowed")
    return _U32.pack(len(body)) + body


def _pack(message: Message) -> bytes:
    return _pack_request(message) if isinstance(message, Request) else _pack_reply(message)


def _pack_request(message: Request) -> bytes:
    match message:
        case Search(partition, text, k):
            return _pack_field(partition) + _pack_count(k, MAX_MATCHES) + text.encode()
        case Add(partition, key, text, expires_at):
            return (
                _pack_field(partition) + _pack_field(key) + _pack_number(expires_at) + text.encode()
            )
        case Embed(texts):
            return _pack_count(len(texts), MAX_TEXTS) + b"".join(map(_pack_text, texts))
        case Verify(pairs):
            both = (text for pair in pairs for text in pair)
            return _pack_count(len(pairs), MAX_PAIRS) + b"".join(map(_pack_text, both))
        case Remove(keys):
            return _U32.pack(len(keys)) + b"".join(map(_pack_field, keys))
        case AskStatus() | Cancel():
            return b""


def _pack_reply(message: Reply) -> bytes:
    match message:
        case Matches(matches):
            rows = (_pack_field(match.key) + _pack_number(match.similarity) for match in matches)
            return _pack_count(len(matches), MAX_MATCHES) + b"".join(rows)
        case Vectors(vectors):
            return _pack_count(len(vectors), MAX_TEXTS) + _pack_vectors(vectors)
        case Scores(digest, scores):
            count = _pack_count(len(scores), MAX_PAIRS)
            return _pack_field(digest.encode()) + count + b"".join(map(_pack_score, scores))
        case IndexStatus():
            numbers = _U32.pack(message.dimensions) + _U32.pack(message.vectors)
            index = (message.digest, message.index, message.fault)
            verifier = (message.verifier, message.verifier_digest, message.verifier_fault)
            fields = b"".join(_pack_field(word.encode()) for word in (*index, *verifier))
            return bytes([message.ready]) + numbers + fields + message.encoder.encode()
        case Refused(reason, text):
            return _pack_field(reason.encode()) + text.encode()
        case Done():
            return b""


class _Reader:
    """Reads fields off a body; every read is checked against what is left."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ProtocolError(f"message ends {size - self.left} bytes too early")
        self._at += size
        return self._body[self._at - size : self._at]

    def unpack(self, numbers: struct.Struct) -> tuple[Any, ...]:
        return numbers.unpack(self.take(numbers.size))

    def size(self) -> int:
        (value,) = self.unpack(_U32)
        return int(value)

    def number(self) -> float:
        """Return a float that is a number."""
        (value,) = self.unpack(_F64)
        if math.isnan(value):
            raise ProtocolError("not a number")
        return float(value)

    def score(self) -> float:
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
        (value,) = self.unpack(_U16)
        if value > most:
            raise ProtocolError(f"count of {value}, 0 to {most} allowed")
        return int(value)

    def vector(self, dimensions: int) -> tuple[float, ...]:
        """Return so many finite 32-bit floats."""
        numbers = struct.unpack(f">{dimensions}f", self.take(4 * dimensions))
        if not all(map(math.isfinite, numbers)):
            raise ProtocolError("not a finite vector")
        return numbers

    def field(self) -> bytes:
        """Return a byte string of up to MAX_FIELD_BYTES."""
        (size,) = self.unpack(_U16)
        if size > MAX_FIELD_BYTES:
            raise ProtocolError(f"field of {size} bytes, at most {MAX_FIELD_BYTES} allowed")
        return self.take(size)

    def text(self) -> str:
        """Return the text that goes on to the end."""
        return _utf8(self.take(self.left))

    def long_text(self) -> str:
        """Return a text that others follow."""
        return _utf8(self.take(self.size()))

    def short_text(self) -> str:
        """Return a byte string as text."""
        return _utf8(self.field())

    def reason(self) -> Reason:
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


def decode(body: bytes) -> Envelope:
    """Return the message in a frame's body (without the length prefix). Raises ProtocolError."""
    reader = _Reader(body)
    version, kind, request_id = reader.unpack(_HEAD)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, expected {PROTOCOL_VERSION}")
    message_type = _TYPE_OF.get(kind)
    if message_type is None:
        raise ProtocolError(f"unknown message kind {kind}")
    message = _unpack(message_type, reader)
    if reader.left:
        raise ProtocolError(f"{reader.left} bytes after the end of the message")
    return Envelope(request_id, message)


def _unpack(message_type: type[Message], reader: _Reader) -> Message:
    reply = _unpack_reply(message_type, reader)
    return _unpack_request(message_type, reader) if reply is None else reply


def _unpack_request(message_type: type[Message], reader: _Reader) -> Request:
    if message_type is Search:
        partition, k = reader.field(), reader.count(MAX_MATCHES)
        return Search(partition, reader.text(), k)
    if message_type is Add:
        partition, key, expires_at = reader.field(), reader.field(), reader.number()
        return Add(partition, key, reader.text(), expires_at)
    if message_type is Embed:
        return Embed(tuple(reader.long_text() for _ in range(reader.count(MAX_TEXTS))))
    if message_type is Verify:
        pairs = range(reader.count(MAX_PAIRS))
        return Verify(tuple((reader.long_text(), reader.long_text()) for _ in pairs))
    if message_type is Remove:
        return Remove(tuple(reader.field() for _ in range(reader.size())))
    return AskStatus() if message_type is AskStatus else Cancel()


def _unpack_reply(message_type: type[Message], reader: _Reader) -> Reply | None:
    if message_type is Matches:
        return Matches(tuple(_match(reader) for _ in range(reader.count(MAX_MATCHES))))
    if message_type is Vectors:
        count, dimensions = reader.count(MAX_TEXTS), reader.size()
        if dimensions and not count:
            raise ProtocolError("dimensions of no vector")
        return Vectors(tuple(reader.vector(dimensions) for _ in range(count)))
    if message_type is Scores:
        digest = reader.short_text()
        return Scores(digest, tuple(reader.score() for _ in range(reader.count(MAX_PAIRS))))
    if message_type is IndexStatus:
        ready, dimensions, vectors = reader.flag(), reader.size(), reader.size()
        digest, *words = (reader.short_text() for _ in range(6))
        return IndexStatus(ready, reader.text(), digest, dimensions, vectors, *words)
    if message_type is Refused:
        return Refused(reader.reason(), reader.text())
    return Done() if message_type is Done else None


def _match(reader: _Reader) -> Match:
    return Match(reader.field(), reader.number())


class FrameDecoder:
    """Cuts a byte stream into messages, whatever the sizes in which it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Envelope]:
        """Yield the messages completed by `data`. Raises ProtocolError; the stream is then lost."""
        self._buffer += data
        while len(self._buffer) >= _U32.size:
            (size,) = _U32.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(f"frame of {size} bytes, at most {MAX_FRAME_BYTES} allowed")
            end = _U32.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_U32.size : end])
            del self._buffer[:end]
            yield decode(body)
