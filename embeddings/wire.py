"""Messages between gateway workers and the embeddings service: a length, then a body of JSON.

A body is `version u8 | kind u8 | [request id, fields]`. A reply carries the id of its request, so
one connection serves many requests at once and in any order. Types and bounds are those of
`messages.py`, and pydantic checks them at both ends. Law: a longer frame, another version, an
unknown kind and fields that do not fit are a ProtocolError, which never quotes what was sent.
"""

import struct
from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from embeddings.messages import (
    Add,
    AskStatus,
    Cancel,
    Done,
    Embed,
    IndexStatus,
    Matches,
    Message,
    Refused,
    Remove,
    Scores,
    Search,
    Vectors,
    Verify,
)

PROTOCOL_VERSION: Final = 4
# The longest text that is sent fits, even if each of its characters is escaped with six bytes.
MAX_FRAME_BYTES: Final = 5 << 18
MAX_REQUEST_ID: Final = (1 << 32) - 1

LENGTH: Final = struct.Struct("!I")
_HEAD: Final = struct.Struct("!BB")
_CONFIG: Final = ConfigDict(
    strict=True,
    extra="forbid",
    revalidate_instances="always",  # what is sent is checked as well
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
)


class ProtocolError(Exception):
    """The bytes are no message of this version, or the message is none that may be sent."""


def frame(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self, max_bytes: int = 2**32 - 1) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add ``data`` and yield the bodies that are whole.

        Raises ProtocolError for a body of more than ``max_bytes``; the stream is then lost.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= LENGTH.size:
                (size,) = LENGTH.unpack_from(self._buffer, start)
                if size > self._max_bytes:
                    raise ProtocolError(f"frame of {size} bytes, at most {self._max_bytes} allowed")
                stop = start + LENGTH.size + size
                if len(self._buffer) < stop:
                    return
                body = bytes(memoryview(self._buffer)[start + LENGTH.size : stop])
                start = stop
                yield body
        finally:
            del self._buffer[:start]


class Envelope(NamedTuple):
    """A message and the id that ties a reply to its request."""

    request_id: int
    message: Message


def _adapter(message_type: type[Message]) -> TypeAdapter[Any]:
    request_id = Annotated[int, Field(ge=0, le=MAX_REQUEST_ID)]
    return TypeAdapter(tuple[request_id, message_type], config=_CONFIG)  # type: ignore[valid-type]


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
_ADAPTER_OF: Final = {kind: _adapter(message_type) for message_type, kind in _KIND_OF.items()}


def encode(request_id: int, message: Message) -> bytes:
    """Return the frame for a message. Raises ProtocolError for one that is out of its bounds."""
    kind = _KIND_OF[type(message)]
    adapter = _ADAPTER_OF[kind]
    try:
        fields = adapter.dump_json(adapter.validate_python((request_id, message)))
    except ValidationError as error:
        raise ProtocolError(_problem(error)) from None
    except PydanticSerializationError:
        raise ProtocolError("text is not Unicode") from None
    body = _HEAD.pack(PROTOCOL_VERSION, kind) + fields
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(body)} bytes, at most {MAX_FRAME_BYTES} allowed")
    return frame(body)


def decode(body: bytes) -> Envelope:
    """Return the message in a frame's body. Raises ProtocolError."""
    version, kind = _HEAD.unpack_from(body.ljust(_HEAD.size, b"\0"))
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, expected {PROTOCOL_VERSION}")
    adapter = _ADAPTER_OF.get(kind)
    if adapter is None:
        raise ProtocolError(f"unknown message kind {kind}")
    try:
        return Envelope(*adapter.validate_json(body[_HEAD.size :]))
    except ValidationError as error:
        raise ProtocolError(_problem(error)) from None


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The name of a field that is too many was sent, and so may be what follows a colon.
    where = (
        first["loc"][1:-1] if first["type"] == "unexpected_keyword_argument" else first["loc"][1:]
    )
    return f"{'.'.join(map(str, where))}: {first['msg'].partition(':')[0]}"
