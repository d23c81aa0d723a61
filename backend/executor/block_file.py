"""The disk tier's file: blocks by content hash, which a restarted engine finds again.

Layout: a header, a table with an entry for each slot, the slots. An entry is a block's digest, when
it was used, and a CRC-32 over digest and content. Slots are written before their entries, but
nothing depends on it: what does not fit its entry is not a block. The header says for which model
and size the file was made. A block's digest says so, too, and for which salt.

Not thread-safe: one thread reads and writes. The lock ends with the process.
"""

import errno
import fcntl
import logging
import os
import stat
import struct
import zlib
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from backend.models.config import ModelLoadError

logger = logging.getLogger(__name__)

_MAGIC = b"refrain KV 1\0\0\0\0"
_HEADER = struct.Struct("<16s32sQQ")
_ENTRY = np.dtype([("digest", "V32"), ("used", "<u8"), ("crc", "<u4"), ("state", "<u4")])
_PAGE = 4096
_EMPTY = np.zeros(1, _ENTRY)


class FileInUseError(Exception):
    """Another engine has the file."""


def blocks_in(num_bytes: int, block_bytes: int) -> int:
    """Return how many blocks a file of ``num_bytes`` has room for."""
    return max(num_bytes - 2 * _PAGE, 0) // (_round_up(block_bytes) + _ENTRY.itemsize)


class BlockFile:
    """``capacity`` slots of ``block_bytes``; what they hold is decided elsewhere."""

    def __init__(self, path: Path, *, fingerprint: bytes, block_bytes: int, capacity: int) -> None:
        """Open or create. ``fingerprint``, 32 bytes, stands for all that cached KV depends on.

        Raises ModelLoadError where there can be no such file, FileInUseError where another engine
        has it.
        """
        self._path = path
        self._block_bytes = block_bytes
        self._data = _round_up(_PAGE + capacity * _ENTRY.itemsize)
        self._stride = _round_up(block_bytes)
        self._header = _HEADER.pack(_MAGIC, fingerprint, block_bytes, capacity).ljust(_PAGE, b"\0")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Blocks are as private as the prompts that they were made of.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o600)
            try:
                self._open(capacity)
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise ModelLoadError(
                f"kv-disk-bytes: {path} cannot be written: {error.strerror}; name another "
                "folder with kv-disk-dir"
            ) from error

    def _open(self, capacity: int) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        os.fchmod(self._file, 0o600)  # only the owner may do so
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileInUseError(f"another engine uses {self._path}") from error
        found = os.pread(self._file, _PAGE, 0)
        if found and not found.startswith(_MAGIC):
            raise ModelLoadError(
                f"kv-disk-bytes: {self._path} is not a file of KV blocks; move it away, or name "
                "another folder with kv-disk-dir"
            )
        self._slot_of: dict[bytes, int] = {}
        self._used = 0
        entries = np.zeros(capacity, _ENTRY)
        if found == self._header:
            entries = self._read_entries(capacity)
        else:
            if found:
                logger.warning("%s is of another model or size and begins anew", self._path)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, self._header, 0)
        # The disk's room is taken as blocks are written.
        os.ftruncate(self._file, self._data + capacity * self._stride)
        places = np.flatnonzero(entries["state"])
        for place in places[np.argsort(entries["used"][places], kind="stable")]:
            self._slot_of[entries["digest"][place].tobytes()] = int(place)
            self._used = int(entries["used"][place])
        taken = set(self._slot_of.values())
        self._free = [slot for slot in reversed(range(capacity)) if slot not in taken]

    def _read_entries(self, capacity: int) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
        """Return the table, without entries of slots that a shorter file has no longer."""
        table = os.pread(self._file, capacity * _ENTRY.itemsize, _PAGE)
        entries = np.zeros(capacity, _ENTRY)
        whole = len(table) // _ENTRY.itemsize
        entries[:whole] = np.frombuffer(table, _ENTRY, whole)
        there = max(os.fstat(self._file).st_size - self._data, 0) // self._stride
        lost = int(np.count_nonzero(entries["state"][there:]))
        if lost or whole < capacity:
            logger.warning("%s was cut off: %d of its blocks are lost", self._path, lost)
        entries["state"][there:] = 0
        return entries

    @property
    def digests(self) -> tuple[bytes, ...]:
        """What it holds, the least recently written first."""
        return tuple(self._slot_of)

    def write(self, digest: bytes, content: memoryview, age: int = 0) -> None:
        """Hold ``content`` as ``digest``. Raises OSError, and does not hold it then.

        ``age``: so many are written next that were used before it, if it is not 0.
        """
        self.drop(digest)
        if not self._free:
            raise OSError("no slot is free")
        slot = self._free[-1]
        _write_all(self._file, content, self._data + slot * self._stride)
        entry = np.zeros(1, _ENTRY)
        self._used += 1
        entry[0] = (digest, self._used + 2 * age, _checksum(digest, content), 1)
        self._write_entry(slot, entry)
        self._free.pop()
        self._slot_of[digest] = slot

    def read(self, digest: bytes, content: memoryview) -> bool:
        """Fill ``content``. False: it is not there, or damaged. Raises OSError."""
        slot = self._slot_of.get(digest)
        if slot is None:
            return False
        count = os.preadv(self._file, [content], self._data + slot * self._stride)
        at = _PAGE + slot * _ENTRY.itemsize
        entry = np.frombuffer(os.pread(self._file, _ENTRY.itemsize, at), _ENTRY)
        if count == len(content) and len(entry) and entry["crc"][0] == _checksum(digest, content):
            return True
        logger.warning("a block in %s is damaged and is computed again", self._path)
        return False

    def drop(self, digest: bytes) -> None:
        """Hold ``digest`` no longer."""
        slot = self._slot_of.pop(digest, None)
        if slot is not None:
            self._free.append(slot)
            with suppress(OSError):  # then it may be found after a restart
                self._write_entry(slot, _EMPTY)

    def make_room(self, count: int) -> None:
        """Drop the oldest until ``count`` slots are free, or all are."""
        for digest in list(islice(self._slot_of, max(count - len(self._free), 0))):
            self.drop(digest)

    def clear(self) -> None:
        """Hold nothing."""
        for digest in self.digests:
            self.drop(digest)

    def close(self) -> None:
        """Release file and lock."""
        os.close(self._file)

    def _write_entry(self, slot: int, entry: "np.ndarray[tuple[int], np.dtype[np.void]]") -> None:
        _write_all(self._file, memoryview(entry.tobytes()), _PAGE + slot * _ENTRY.itemsize)


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _checksum(digest: bytes, content: memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(digest))


def _write_all(file: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written
