"""The connection of two engines over TCP: proofs, a request for blocks, and the blocks.

The decode engine connects for each prompt. Both prove that they have the secret (HMAC-SHA256 over
two nonces), so neither serves strangers nor takes their blocks; nothing is encrypted. Then comes a
request, an answer, and the blocks in the order of the prompt:

    decode  → prefill    magic, nonce
    prefill → decode     nonce, proof
    decode  → prefill    proof, WANTED
    prefill → decode     GRANTED or REFUSED; then BLOCKS, while it computes WAITING; END or REFUSED

Two engines of one host hand blocks over in memory that both map: BLOCKS has their number alone, and
the decode engine acknowledges that it has copied them. TCP's window is the backpressure elsewhere.
"""

import contextlib
import hmac
import json
import mmap
import os
import re
import secrets
import socket
import stat
import struct
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

PART_BYTES: Final = 4 * 2**20
"""Blocks of about so many bytes are sent at a time, at least one."""
SILENCE_SECONDS: Final = 5.0
"""An engine that says nothing for so long is gone."""
WAITING_SECONDS: Final = 1.0

_MAGIC = b"refrain KV 1\0\0\0\0"
_NONCE = 32
_LEAST_SECONDS = 0.001
_HEAD = struct.Struct("!cI")
_COUNT = struct.Struct("!I")
_MOST_WORDS = 2**16
_MOST_REASON = 300
_QUIET_SECONDS = 60.0
_MOST_COMPLAINTS = 64
_LEFT_SECONDS = 2.0
"""A name is there for milliseconds."""
_MOST_TOKEN_BYTES = 2**26
_SHARED_DIR = "/dev/shm"  # noqa: S108  # memory, and the name is a random one
_SHARED = re.compile(rf"{_SHARED_DIR}/refrain-kv-[a-z0-9_]{{8}}", re.ASCII)


class TransferError(Exception):
    """The other engine cannot be understood, or refuses; the text says why."""


class RefusedError(TransferError):
    """It cannot compute the prompt; what it sent of it is not to be trusted."""


class Kind(Enum):
    """What a frame is."""

    WANTED = b"?"
    TOKENS = b"t"
    GRANTED = b"g"
    REFUSED = b"r"
    WAITING = b"w"
    BLOCKS = b"b"
    TAKEN = b"k"
    END = b"e"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The blocks behind the first ``num_known`` of a prompt, whose ``tokens`` fill whole blocks.

    ``fingerprint`` stands for all that its KV depends on, ``salt`` for who may share it.
    """

    fingerprint: bytes
    salt: str
    block_bytes: int
    num_known: int
    priority: int
    tokens: "array[int]"


class Channel:
    """A connection; every method raises OSError or TransferError, and no wait is without bound."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._offered: str | None = None
        self._memory: mmap.mmap | None = None

    def greet(self, secret: str) -> None:
        """Prove to the prefill engine that this is a decode engine, and have it prove itself."""
        ours = secrets.token_bytes(_NONCE)
        self._socket.sendall(_MAGIC + ours)
        theirs, proof = self._receive(_NONCE), self._receive(_NONCE)
        if not hmac.compare_digest(proof, _proof(secret, b"prefill", ours, theirs)):
            raise TransferError("the prefill engine has another secret")
        self._socket.sendall(_proof(secret, b"decode", ours, theirs))

    def be_greeted(self, secret: str) -> None:
        """Let a decode engine prove itself."""
        if self._receive(len(_MAGIC)) != _MAGIC:
            raise TransferError("this is no decode engine of this version")
        theirs, ours = self._receive(_NONCE), secrets.token_bytes(_NONCE)
        self._socket.sendall(ours + _proof(secret, b"prefill", theirs, ours))
        if not hmac.compare_digest(self._receive(_NONCE), _proof(secret, b"decode", theirs, ours)):
            raise TransferError("the decode engine has another secret")

    def ask(self, wanted: Wanted) -> None:
        """Ask for blocks. Raises TransferError where they are refused."""
        with self._offered_memory(wanted.block_bytes) as shared:
            words = {
                "fingerprint": wanted.fingerprint.hex(),
                "salt": wanted.salt,
                "block_bytes": wanted.block_bytes,
                "num_known": wanted.num_known,
                "priority": wanted.priority,
                "shared": shared,
            }
            self._send(Kind.WANTED, json.dumps(words).encode())
            self._send(Kind.TOKENS, wanted.tokens.tobytes())
            kind, body = self._next(_MOST_WORDS)
        if kind is not Kind.GRANTED:
            raise _refusal(body)
        if not body:
            self._memory = None

    def asked(self) -> Wanted:
        """Return what a decode engine asks for."""
        words = self._expect(Kind.WANTED, _MOST_WORDS)
        content, tokens = self._expect(Kind.TOKENS, _MOST_TOKEN_BYTES), array("I")
        try:
            given: dict[str, Any] = json.loads(words)
            tokens.frombytes(content)
            wanted = Wanted(
                bytes.fromhex(given["fingerprint"]),
                str(given["salt"]),
                int(given["block_bytes"]),
                int(given["num_known"]),
                int(given["priority"]),
                tokens,
            )
            self._offered = given["shared"]
        except (ValueError, KeyError, TypeError) as error:
            raise TransferError(f"its request cannot be read: {error!r}") from error
        return wanted

    def grant(self, block_bytes: int) -> None:
        """Say that blocks of ``block_bytes`` will come."""
        if self._offered is not None:
            self._memory = _map(str(self._offered), _part_bytes(block_bytes))
        self._send(Kind.GRANTED, b"shared" if self._memory is not None else b"")

    def refuse(self, reason: str) -> None:
        """Say that none will come, or no more."""
        self._send(Kind.REFUSED, reason.encode()[:_MOST_WORDS])

    def say_waiting(self) -> None:
        """Say that this engine is alive."""
        self._send(Kind.WAITING)

    def say_end(self) -> None:
        """Say that no more blocks come."""
        self._send(Kind.END)

    def send_blocks(self, rows: memoryview, count: int) -> None:
        """Send ``count`` blocks; returns when they were taken, or wait in the connection."""
        if self._memory is None:
            self._send(Kind.BLOCKS, rows)
            return
        self._memory[: len(rows)] = rows
        self._send(Kind.BLOCKS, _COUNT.pack(count))
        self._expect(Kind.TAKEN, 0)

    def blocks(self, block_bytes: int) -> Iterator[bytearray]:
        """Yield the bytes of blocks as they come, empty while there are none yet, to the end."""
        most = _part_bytes(block_bytes)
        while True:
            kind, body = self._next(most)
            if kind is Kind.END:
                return
            if kind is Kind.REFUSED:
                raise _refusal(body)
            if kind is Kind.BLOCKS and self._memory is not None:
                size = _COUNT.unpack(body)[0] * block_bytes
                body = bytearray(self._memory[: min(size, most)])
                self._send(Kind.TAKEN)
            if kind not in {Kind.BLOCKS, Kind.WAITING} or len(body) % block_bytes:
                raise TransferError(f"{kind.name} of {len(body)} bytes is not expected here")
            yield body

    @contextlib.contextmanager
    def _offered_memory(self, block_bytes: int) -> Iterator[str | None]:
        """Make memory that an engine on this host can map; None: it is elsewhere, or none is left.

        Its name is gone behind this, so the memory ends with the last process that mapped it.
        """
        if self._socket.getpeername()[0] != self._socket.getsockname()[0]:
            yield None
            return
        try:
            file, path = tempfile.mkstemp(prefix="refrain-kv-", dir=_SHARED_DIR)
        except OSError:
            yield None
            return
        try:
            with contextlib.suppress(OSError):
                # Writing to pages that the system does not have would end the process.
                os.posix_fallocate(file, 0, _part_bytes(block_bytes))
                self._memory = mmap.mmap(file, _part_bytes(block_bytes))
            yield path if self._memory is not None else None
        finally:
            os.close(file)
            Path(path).unlink(missing_ok=True)

    def _send(self, kind: Kind, body: bytes | memoryview = b"") -> None:
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.sendall(_HEAD.pack(kind.value, len(body)))
        if body:
            self._socket.sendall(body)

    def _expect(self, kind: Kind, most: int) -> bytearray:
        found, body = self._next(most)
        if found is not kind:
            raise TransferError(f"expected {kind.name}, got {found.name}")
        return body

    def _next(self, most: int) -> tuple[Kind, bytearray]:
        head, size = _HEAD.unpack(self._receive(_HEAD.size))
        if size > most:
            raise TransferError(f"a frame of {size} bytes, at most {most} are expected")
        try:
            return Kind(head), self._receive(size)
        except ValueError as error:
            raise TransferError(f"a frame of kind {head!r}") from error

    def _receive(self, size: int) -> bytearray:
        body = bytearray(size)
        view = memoryview(body)
        until = monotonic() + SILENCE_SECONDS  # for the whole, however it trickles
        while view:
            self._socket.settimeout(max(until - monotonic(), _LEAST_SECONDS))
            count = self._socket.recv_into(view)
            if not count:
                raise TransferError("the connection was closed")
            view = view[count:]
        return body


class Complaints:
    """Lets each text into the log once a minute, so that no peer fills it."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_due(self, text: str) -> bool:
        """Return whether to log ``text`` now."""
        now = monotonic()
        self._said = {each: at for each, at in self._said.items() if now - at < _QUIET_SECONDS}
        if text in self._said or len(self._said) >= _MOST_COMPLAINTS:
            return False
        self._said[text] = now
        return True


def remove_left_memory() -> None:
    """Remove the names of memory that engines of this user left when they were killed.

    A transfer that takes so long to begin goes over TCP.
    """
    for path in Path(_SHARED_DIR).glob("refrain-kv-*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and time() - found.st_mtime > _LEFT_SECONDS:
                path.unlink()


def part_rows(block_bytes: int) -> int:
    """Return how many blocks are sent at a time."""
    return max(PART_BYTES // block_bytes, 1)


def _part_bytes(block_bytes: int) -> int:
    return part_rows(block_bytes) * block_bytes


def _refusal(body: bytearray) -> RefusedError:
    return RefusedError(body[:_MOST_REASON].decode(errors="replace") or "refused")


def _proof(secret: str, role: bytes, *nonces: bytes | bytearray) -> bytes:
    """Return the proof of ``role``; the decode engine's nonce is the first."""
    return hmac.digest(secret.encode(), role + b"".join(nonces), "sha256")


def _map(path: str, size: int) -> mmap.mmap | None:
    """Map what a decode engine of this host and user made; None: it is of another."""
    if not _SHARED.fullmatch(path):
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        return mmap.mmap(file, size) if is_ours and found.st_size == size else None
    finally:
        os.close(file)
