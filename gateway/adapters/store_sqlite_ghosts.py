"""Keys of entries that went unused, so that one which returns soon is taken for what it is.

Law: their sizes add up to no more than the store's bound; the oldest go. See ``core.eviction``.
"""

import sqlite3


class Ghosts:
    """The table of them within one transaction; ``bytes`` is read and written with the totals.

    Methods raise sqlite3.Error.
    """

    def __init__(self, connection: sqlite3.Connection, max_bytes: int) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self.bytes = 0

    def remember(self, key: bytes, size: int) -> None:
        """Keep the key of an entry that goes."""
        self._connection.execute(
            "INSERT INTO ghost (key, place, bytes)"
            " VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM ghost), ?)",
            (key, size),
        )
        self.bytes += size
        while self.bytes > self._max_bytes:
            [(oldest, freed)] = self._connection.execute(
                "SELECT key, bytes FROM ghost ORDER BY place LIMIT 1"
            ).fetchall()
            self._forget(oldest, freed)

    def recall(self, key: bytes) -> bool:
        """Tell whether the key went not long ago, and forget that it did."""
        rows = self._connection.execute("SELECT bytes FROM ghost WHERE key = ?", (key,)).fetchall()
        for (size,) in rows:
            self._forget(key, size)
        return bool(rows)

    def _forget(self, key: bytes, size: int) -> None:
        self._connection.execute("DELETE FROM ghost WHERE key = ?", (key,))
        self.bytes -= size
