"""Wire protocol between gateway workers and the embeddings service: bytes in, values out, no I/O.

A frame is a four-byte big-endian length and that many bytes of body. A body is

    version u8 | kind u8 | request id u32 | fields

with byte strings as u16 length + bytes, numbers big-endian, and the one text of a message last, in
UTF-8, up to the end of the body; where there are several, each as u32 length + UTF-8. A reply
carries the id of its request, so one connection serves many requests at once and in any order. A
frame longer than MAX_FRAME_BYTES, another version, an unknown kind, missing bytes and bytes left
over are all ProtocolError: the connection is then unusable and is closed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from embeddings.fields import (
    U32,
    FieldReader,
    ProtocolError,
    packed_count,
    packed_field,
    packed_number,
    packed_score,
    packed_text,
    packed_vectors,
)
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

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BBI")


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
    return _LENGTH.pack(len(body)) + body


def _pack(message: Message) -> bytes:
    return _pack_request(message) if isinstance(message, Request) else _pack_reply(message)


def _pack_request(message: Request) -> bytes:
    match message:
        case Search(partition, text, k):
            return packed_field(partition) + packed_count(k, MAX_MATCHES) + text.encode()
        case Add(partition, key, text, expires_at):
            return (
                packed_field(partition)
                + packed_field(key)
                + packed_number(expires_at)
                + text.encode()
            )
        case Embed(texts):
            return packed_count(len(texts), MAX_TEXTS) + b"".join(map(packed_text, texts))
        case Verify(pairs):
            both = (text for pair in pairs for text in pair)
            return packed_count(len(pairs), MAX_PAIRS) + b"".join(map(packed_text, both))
        case Remove(keys):
            return U32.pack(len(keys)) + b"".join(map(packed_field, keys))
        case AskStatus() | Cancel():
            return b""


def _pack_reply(message: Reply) -> bytes:
    match message:
        case Matches(matches):
            rows = (packed_field(match.key) + packed_number(match.similarity) for match in matches)
            return packed_count(len(matches), MAX_MATCHES) + b"".join(rows)
        case Vectors(vectors):
            return packed_count(len(vectors), MAX_TEXTS) + packed_vectors(vectors)
        case Scores(digest, scores):
            count = packed_count(len(scores), MAX_PAIRS)
            return packed_field(digest.encode()) + count + b"".join(map(packed_score, scores))
        case IndexStatus():
            numbers = U32.pack(message.dimensions) + U32.pack(message.vectors)
            index = (message.digest, message.index, message.fault)
            verifier = (message.verifier, message.verifier_digest, message.verifier_fault)
            fields = b"".join(packed_field(word.encode()) for word in (*index, *verifier))
            return bytes([message.ready]) + numbers + fields + message.encoder.encode()
        case Refused(reason, text):
            return packed_field(reason.encode()) + text.encode()
        case Done():
            return b""


def decode(body: bytes) -> Envelope:
    """Return the message in a frame's body (without the length prefix). Raises ProtocolError."""
    reader = FieldReader(body)
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


def _unpack(message_type: type[Message], reader: FieldReader) -> Message:
    reply = _unpack_reply(message_type, reader)
    return _unpack_request(message_type, reader) if reply is None else reply


def _unpack_request(message_type: type[Message], reader: FieldReader) -> Request:
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
        (count,) = reader.unpack(U32)
        return Remove(tuple(reader.field() for _ in range(count)))
    return AskStatus() if message_type is AskStatus else Cancel()


def _unpack_reply(message_type: type[Message], reader: FieldReader) -> Reply | None:
    if message_type is Matches:
        return Matches(tuple(_match(reader) for _ in range(reader.count(MAX_MATCHES))))
    if message_type is Vectors:
        count, (dimensions,) = reader.count(MAX_TEXTS), reader.unpack(U32)
        if dimensions and not count:
            raise ProtocolError("dimensions of no vector")
        return Vectors(tuple(reader.vector(dimensions) for _ in range(count)))
    if message_type is Scores:
        digest = reader.short_text()
        return Scores(digest, tuple(reader.score() for _ in range(reader.count(MAX_PAIRS))))
    if message_type is IndexStatus:
        ready, (dimensions,), (vectors,) = reader.flag(), reader.unpack(U32), reader.unpack(U32)
        digest, *words = (reader.short_text() for _ in range(6))
        return IndexStatus(ready, reader.text(), digest, dimensions, vectors, *words)
    if message_type is Refused:
        return Refused(reader.reason(), reader.text())
    return Done() if message_type is Done else None


def _match(reader: FieldReader) -> Match:
    return Match(reader.field(), reader.number())


class FrameDecoder:
    """Cuts a byte stream into messages, whatever the sizes in which it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Envelope]:
        """Yield the messages completed by `data`. Raises ProtocolError; the stream is then lost."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(f"frame of {size} bytes, at most {MAX_FRAME_BYTES} allowed")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield decode(body)
