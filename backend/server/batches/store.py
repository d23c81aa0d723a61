"""Files and batches on disk: names are ids that were made here, and one thread does all work.

DIR/ID.json describes a file or a batch, DIR/ID.jsonl has a file's bytes. A description is replaced
as a whole. Results are appended; what a crash leaves of a line is cut off, and computed again.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson

from backend.server.batches.batch import Batch, batch_error, count_lines, number_of

MOST_FILES = 10_000
MOST_OPEN = 64
"""Batches that have not ended: all of them are computed at the same time."""
_SYNC_SECONDS = 1.0
"""So much work may be lost, and done again, when the machine loses its power."""

_OWN_NAME = re.compile(r"(file-[0-9a-f]{32}[01]?|batch_[0-9a-f]{32})(\.json|\.jsonl|\.new)")

T = TypeVar("T")


class RefusedError(Exception):
    """A bound is reached, or a file is in use; the first argument is a code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that is whole; times are seconds since 1970."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def body(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class Store:
    """Owns a directory; ``run`` calls what touches it, in the order of the calls.

    ``files`` and ``batches`` may be read from anywhere; only that thread changes them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        most_bytes: int,
        keep_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``most_bytes`` bounds all files together. Nothing is read before ``open``."""
        self.keep_seconds, self.clock = int(keep_seconds), clock
        self.files: dict[str, File] = {}
        self.batches: dict[str, Batch] = {}
        self._directory, self._most_bytes, self._used = directory, most_bytes, 0
        self._thread = ThreadPoolExecutor(1, "batch-store")
        self._lock: FileIO | None = None

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what ``work`` returns; if the caller is cancelled, it is done nevertheless."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work, *arguments))

    def later(self, work: Callable[[], None]) -> None:
        """Have ``work`` done, without a wait."""
        self._thread.submit(work)

    def open(self) -> None:
        """Take the directory. Raises OSError, also where another process has it."""
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700, parents=True)
        self._lock = FileIO(os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR, 0o600), "r+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            problem = f"--batch-dir {self._directory}: another process uses it"
            raise BlockingIOError(problem) from None
        try:
            self._read_all()
        except BaseException:
            self._lock.close()
            raise

    def _read_all(self) -> None:
        for path in self._directory.glob("*.json"):
            if (name := _OWN_NAME.fullmatch(path.name)) is not None:
                self._read(name[1], path)
        known = {*self.files, *self.batches}
        known.update(
            name for batch in self.batches.values() if batch.is_open for name in batch.result_ids
        )
        for path in list(self._directory.iterdir()):
            name = _OWN_NAME.fullmatch(path.name)
            if name is not None and (name[1] not in known or name[2] == ".new"):
                path.unlink()  # an upload, or a deletion, that did not end
            elif name is not None and name[2] == ".jsonl":
                self._used += path.stat().st_size

    def _read(self, name: str, path: Path) -> None:
        try:
            told = orjson.loads(path.read_bytes())
            if name.startswith("file-"):
                self.files[name] = File(**told)
            else:
                lists = {key: tuple(told[key]) for key in ("errors", "result_files")}
                self.batches[name] = Batch(**(told | lists))
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"--batch-dir: {path} is damaged; remove it, or restore it") from error

    async def close(self) -> None:
        """Wait for the work that was begun, and give the directory up."""
        await asyncio.to_thread(self._thread.shutdown)
        if self._lock is not None:
            self._lock.close()

    def save(self, described: File | Batch) -> None:
        """Write a description so that it is there, whole, after any crash."""
        path = self._path(described.id, ".new")
        with self.create(path) as file:
            file.write(orjson.dumps(described))
            os.fsync(file.fileno())
        path.replace(self._path(described.id, ".json"))
        self._sync_directory()
        if isinstance(described, File):
            self.files[described.id] = described
        else:
            self.batches[described.id] = described

    def add(self, batch: Batch) -> None:
        """Save a new batch. Raises RefusedError."""
        if sum(each.is_open for each in self.batches.values()) >= MOST_OPEN:
            problem = f"{MOST_OPEN} batches have not ended yet. Wait for one of them."
            raise RefusedError("too_many_batches", problem)
        if len(self.batches) >= MOST_FILES:
            raise RefusedError("too_many_batches", f"There are {MOST_FILES} batches already.")
        self.save(batch)

    def new_digits(self) -> str:
        """Return what no other id has; later ones are greater."""
        return f"{time.time_ns():016x}{secrets.token_hex(8)}"

    def move(self, batch_id: str, status: str, **changes: Any) -> Batch:
        """Save a batch in its next state. Raises StateError."""
        batch = self.batches[batch_id].moved(status, self.clock(), **changes)
        self.save(batch)
        return batch

    def count(self, batch: Batch) -> tuple[int, Any]:
        """Return how many lines its input has, and what is wrong with all of it."""
        if batch.input_file_id not in self.files:
            return 0, batch_error("file_not_found", "The input file is gone.")
        with self.reader(batch.input_file_id) as file:
            return count_lines(file)

    def reader(self, file_id: str) -> IO[bytes]:
        """Open a file of ours."""
        return self._path(file_id, ".jsonl").open("rb")

    def finish(self, batch_id: str, status: str, **changes: Any) -> None:
        """Publish the results, and move the batch into the state in which it ends."""
        batch, now = self.batches[batch_id], self.clock()
        Results(self, batch).close()  # they may be of an earlier process
        published: list[str | None] = []
        for file_id, kind in zip(batch.result_ids, ("output", "error"), strict=True):
            path = self._path(file_id, ".jsonl")
            size = path.stat().st_size if path.exists() else 0
            published.append(file_id if size else None)
            if not size:
                path.unlink(missing_ok=True)
                continue
            with path.open("rb") as file:
                os.fsync(file.fileno())
            self.save(
                File(
                    id=file_id,
                    owner=batch.owner,
                    filename=f"{batch_id}_{kind}.jsonl",
                    purpose="batch_output",
                    bytes=size,
                    created_at=int(now),
                    expires_at=int(now) + batch.result_seconds,
                )
            )
        self.move(batch_id, status, result_files=tuple(published), **changes)

    def delete(self, file_id: str) -> None:
        """Remove a file. Raises RefusedError while a batch reads it."""
        if file_id in {each.input_file_id for each in self.batches.values() if each.is_open}:
            raise RefusedError("file_in_use", "A batch that has not ended reads this file.")
        if self.files.pop(file_id, None) is None:
            return
        path = self._path(file_id, ".jsonl")
        size = path.stat().st_size
        self._path(file_id, ".json").unlink()
        path.unlink()
        self._used -= size

    def sweep(self) -> None:
        """Remove what has expired."""
        now = self.clock()
        for file in list(self.files.values()):
            if file.expires_at <= now:
                with contextlib.suppress(RefusedError):
                    self.delete(file.id)
        for batch in list(self.batches.values()):
            if not batch.is_open and max(batch.times.values()) + self.keep_seconds <= now:
                self._path(batch.id, ".json").unlink()
                del self.batches[batch.id]

    def take(self, size: int) -> None:
        """Count bytes that are about to be written. Raises RefusedError."""
        if self._used + size > self._most_bytes:
            problem = (
                f"Files of batches take {self._most_bytes} bytes at most (--batch-bytes). Delete "
                "files that you no longer need."
            )
            raise RefusedError("batch_storage_full", problem)
        self._used += size

    def give(self, size: int) -> None:
        """Take back what ``take`` counted."""
        self._used -= size

    def append_to(self, file_id: str) -> FileIO:
        """Open a file of results, which may be new, to be read and appended to."""
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND
        return FileIO(os.open(self._path(file_id, ".jsonl"), flags, 0o600), "r+")

    def upload(self) -> "Upload":
        """Begin a file. Raises RefusedError."""
        if len(self.files) >= MOST_FILES:
            raise RefusedError("too_many_files", f"There are {MOST_FILES} files already.")
        file_id = f"file-{self.new_digits()}"
        return Upload(self, file_id, self._path(file_id, ".jsonl"))

    def _path(self, own_id: str, suffix: str) -> Path:
        if _OWN_NAME.fullmatch(own_id + suffix) is None:
            raise ValueError("this is no id of ours")
        return self._directory / (own_id + suffix)

    def create(self, path: Path) -> FileIO:
        """Open a new file that others cannot read."""
        return FileIO(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w")

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Upload:
    """A file that is being written; it is there once ``save`` has returned."""

    def __init__(self, store: Store, file_id: str, path: Path) -> None:
        self._store, self._path, self.id = store, path, file_id
        self._file, self._is_saved = store.create(path), False
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append. Raises RefusedError."""
        self._store.take(len(data))
        self.size += len(data)
        _write(self._file, data)

    def save(self, described: File) -> None:
        """Make it a file."""
        os.fsync(self._file.fileno())
        self._file.close()
        self._store.save(described)
        self._is_saved = True

    def discard(self) -> None:
        """Remove what was written, unless it was saved."""
        if not self._is_saved:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._store.give(self.size)


class Results:
    """The results of a batch: a file of answers, a file of errors, and which lines have one."""

    def __init__(self, store: Store, batch: Batch) -> None:
        """Read what is there, and cut off what is torn."""
        self._store, self._batch_id = store, batch.id
        self._synced = time.monotonic()
        self.done: set[int] = set()
        self._counts = [0, 0]
        self._files = [store.append_to(file_id) for file_id in batch.result_ids]
        for which, file in enumerate(self._files):
            size, whole = os.fstat(file.fileno()).st_size, 0
            with open(file.fileno(), "rb", closefd=False) as lines:
                for number, length in _numbered(lines):
                    self.done.add(number)
                    self._counts[which] += 1
                    whole += length
            file.truncate(whole)
            store.give(size - whole)
        self._tell()

    def append(self, number: int, line: bytes, *, failed: bool) -> None:
        """Add a line's result, all of it or nothing. Raises RefusedError, OSError."""
        file = self._files[failed]
        self._store.take(len(line))
        before = os.fstat(file.fileno()).st_size
        try:
            _write(file, line)
        except OSError:
            self._store.give(len(line))
            file.truncate(before)
            raise
        self.done.add(number)
        self._counts[failed] += 1
        self._tell()
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Return once all results outlast a loss of power."""
        for each in self._files:
            os.fdatasync(each.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _tell(self) -> None:
        batches, completed, failed = self._store.batches, *self._counts
        batch = batches[self._batch_id]
        batches[self._batch_id] = replace(batch, completed=completed, failed=failed)


def _numbered(lines: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Yield line number and length of each result, up to the first torn one."""
    for line in lines:
        number = number_of(line)
        if number is None:
            return
        yield number, len(line)


def _write(file: FileIO, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
