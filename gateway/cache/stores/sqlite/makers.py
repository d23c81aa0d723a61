"""The makers of values in a file of the data directory, which the workers share."""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.cache.ports import MOST_MAKERS
from gateway.cache.stores.sqlite.small_database import SmallDatabase

_SCHEMA = """
CREATE TABLE IF NOT EXISTS maker (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    upstream TEXT NOT NULL
);
"""


class SqliteMakers(SmallDatabase):
    """The port ``MakerStore``. The first call opens the file, with mode 0600.

    A note waits for no disk: after a power failure the last ones may be missing.
    """

    def __init__(self, path: Path, *, seconds: float, most: int = MOST_MAKERS) -> None:
        self.seconds, self._most = seconds, most
        loss = "requests go to any upstream until their makers are known again"
        super().__init__(path, _SCHEMA, what="makers of values", loss=loss, waits_for_disk=False)

    async def find(self, digests: Sequence[bytes]) -> Mapping[bytes, str]:
        marks = ", ".join("?" * len(digests))
        query = f"SELECT digest, upstream FROM maker WHERE digest IN ({marks})"  # noqa: S608
        return dict(await self.run(lambda to: to.execute(query, digests).fetchall()))

    async def add(self, digests: Sequence[bytes], maker: str) -> None:
        def action(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT OR REPLACE INTO maker (digest, upstream) VALUES (?, ?)",
                [(digest, maker) for digest in digests],
            )
            connection.execute(
                "DELETE FROM maker WHERE number <= (SELECT max(number) FROM maker) - ?",
                (self._most,),
            )

        await self.run(action)
