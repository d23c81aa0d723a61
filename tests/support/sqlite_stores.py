"""A store in a SQLite file, open for the length of a test's block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.cache.stores.sqlite.store import SqliteStore

ROOMY = 16 << 20
PATIENT = {"read_seconds": 30, "write_seconds": 30}
"""On a busy machine the disk takes its time."""


@asynccontextmanager
async def opened(path: Path, max_bytes: int = ROOMY, **options: Any) -> AsyncIterator[SqliteStore]:
    """Open a store, and close it whatever happens."""
    store = SqliteStore(path, max_bytes=max_bytes, **(PATIENT | options))
    try:
        yield store
    finally:
        await store.close()
