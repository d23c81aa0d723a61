"""What gateway processes tell one another of a stream that several follow: messages <-> bytes.

Law: each message says of which following it is, and what carries the stream is numbered from 0, so
that nothing can be lost unnoticed. Bytes that are no such message raise ValueError.
"""

import json
import struct
from dataclasses import dataclass
from enum import IntEnum

import orjson

from gateway.core.errors import UpstreamError
from gateway.core.headers import Fields
from gateway.core.types import Reason

FORMAT = 1
FOLLOWING_BYTES = 8
_HEAD = struct.Struct(f">BB{FOLLOWING_BYTES}sI")
_LENGTH = struct.Struct(">I")


class Kind(IntEnum):
    """What a message is: the first three go to who makes the call, the others come from there."""

    JOIN = 1
    STAY = 2
    LEAVE = 3
    BEAT = 4
    REFUSED = 5
    OPEN = 6
    PIECE = 7
    END = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``following`` is the follower's word for what it follows."""

    kind: Kind
    following: bytes
    number: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        """Return its bytes."""
        return self.name + self.body

    @property
    def name(self) -> bytes:
        """What a sealed body is bound to: it opens in this place only."""
        return _HEAD.pack(FORMAT, self.kind, self.following, self.number)


def decode(data: bytes) -> Message:
    """Read a message. Raises ValueError."""
    if len(data) < _HEAD.size:
        raise ValueError("no message of a stream")
    version, kind, following, number = _HEAD.unpack_from(data)
    if version != FORMAT:
        raise ValueError("a message of another format")
    return Message(Kind(kind), following, number, data[_HEAD.size :])


def pack(*parts: bytes) -> bytes:
    """Put parts together."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(data: bytes) -> list[bytes]:
    """Take apart what ``pack`` put together. Raises ValueError."""
    parts = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        if start > len(data):
            raise ValueError("a part without its length")
        at = start + int(_LENGTH.unpack_from(data, start - _LENGTH.size)[0])
        if at > len(data):
            raise ValueError("a part that is cut")
        parts.append(data[start:at])
    return parts


@dataclass(frozen=True, slots=True)
class Piece:
    """What was new of the body, with usage and without; one object where these are the same."""

    full: bytes
    bare: bytes

    def encode(self) -> bytes:
        """Return its bytes."""
        return pack(self.full) if self.full == self.bare else pack(self.full, self.bare)


def decode_piece(data: bytes) -> Piece:
    """Read a piece. Raises ValueError."""
    match unpack(data):
        case [full]:
            return Piece(full, full)
        case [full, bare]:
            return Piece(full, bare)
    raise ValueError("no piece of a stream")


@dataclass(frozen=True, slots=True)
class Opening:
    """The head of a stream, and its first piece: before that nothing is promised."""

    fields: Fields
    usage: bool
    piece: Piece

    def encode(self) -> bytes:
        """Return its bytes."""
        # Not by orjson: headers may hold bytes that are no UTF-8, which come as lone surrogates.
        head = json.dumps([self.usage, self.fields]).encode()
        return pack(head, self.piece.encode())


def decode_opening(data: bytes) -> Opening:
    """Read an opening. Raises ValueError."""
    try:
        head, piece = unpack(data)
        usage, fields = json.loads(head)
        named = tuple((str(name), str(value)) for name, value in fields)
    except (TypeError, RecursionError):
        raise ValueError("no opening of a stream") from None
    return Opening(named, bool(usage), decode_piece(piece))


@dataclass(frozen=True, slots=True)
class Account:
    """What is counted to one request only: tokens, and the fate of the answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    stored: bool = False
    declined: Reason | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended: its plain form where it has one, or what went wrong.

    ``error`` is what the upstream itself said, ``declined`` why the answer was not stored.
    """

    account: Account
    declined: Reason | None = None
    fault: UpstreamError | None = None
    error: bytes | None = None
    result: bytes | None = None

    def encode(self) -> bytes:
        """Return its bytes."""
        fault = self.fault and (self.fault.status, self.fault.message, self.fault.reason)
        told = orjson.dumps([self.account, self.declined, fault])
        return pack(told, self.error or b"", self.result or b"")


def decode_ending(data: bytes) -> Ending:
    """Read an ending. Raises ValueError."""
    try:
        told, error, result = unpack(data)
        account, declined, fault = orjson.loads(told)
        refused = account.pop("declined")
        return Ending(
            Account(**account, declined=refused and Reason(refused)),
            declined and Reason(declined),
            fault and UpstreamError(int(fault[0]), str(fault[1]), Reason(fault[2])),
            error or None,
            result or None,
        )
    except (TypeError, AttributeError, KeyError, IndexError):
        raise ValueError("no ending of a stream") from None
