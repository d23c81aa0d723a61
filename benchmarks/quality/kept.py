"""What models said before, on disk, so that a second run takes seconds.

Law: a value is found only under the digest of what made it. Texts are kept as digests.
"""

import hashlib
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_AT_A_TIME = 500
_PERIOD = 2.0
"""Seconds of work that an interrupted run may lose."""


def default_directory() -> Path:
    return Path(tempfile.gettempdir()) / "refrain-evaluation"


class Kept:
    """Bytes by maker and text. Leaving the context writes them down."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = sqlite3.connect(directory / "kept.sqlite", timeout=30)
        self._new: dict[bytes, bytes] = {}
        self._written = time.monotonic()
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS kept (name BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write()
        self._file.close()

    def find(self, maker: str, texts: Iterable[str]) -> dict[str, bytes]:
        """Return what is known of these texts."""
        names = {_name(maker, text): text for text in texts}
        found = {text: self._new[name] for name, text in names.items() if name in self._new}
        listed = [name for name in names if name not in self._new]
        for start in range(0, len(listed), _AT_A_TIME):
            some = listed[start : start + _AT_A_TIME]
            marks = ",".join("?" * len(some))
            query = f"SELECT name, value FROM kept WHERE name IN ({marks})"  # marks alone
            found |= {names[name]: value for name, value in self._file.execute(query, some)}
        return found

    def keep(self, maker: str, values: Mapping[str, bytes]) -> None:
        self._new |= {_name(maker, text): value for text, value in values.items()}
        if time.monotonic() - self._written >= _PERIOD:
            self._write()

    def _write(self) -> None:
        # One short transaction: another run may be writing, too.
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", self._new.items())
        self._new.clear()
        self._written = time.monotonic()


def _name(maker: str, text: str) -> bytes:
    return hashlib.sha256(f"{maker}\0{text}".encode(errors="surrogatepass")).digest()
