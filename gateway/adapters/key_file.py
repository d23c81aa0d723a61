"""Files of keys, ``NAME SHA256`` a line: read at start, watched, replaced whole by a good edit."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.core.access import NOBODY, KeyRing, KeyRingError, admit, read_key_ring

POLL_SECONDS = 0.25
"""An edit counts at the second look, and a key that was removed must be refused within a second."""

_log = logging.getLogger(__name__)


class KeyFile:
    """Holds the last good keys of ``path``.

    Raises KeyRingError or OSError on construction.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = path.read_bytes()
        self._seen = self._data
        self._ring = read_key_ring(self._data, str(path))
        self._problem: str | None = None

    @property
    def ring(self) -> KeyRing:
        """The keys in force."""
        return self._ring

    @property
    def problem(self) -> str | None:
        """What keeps the file on disk from being in force, or None."""
        return self._problem

    def reload(self) -> None:
        """Read the file again; an edit counts once two readings agree on it.

        Whatever is wrong keeps the last good keys in force and is told by ``problem``.
        """
        try:
            data = self._path.read_bytes()
        except OSError as error:
            self._complain(f"{self._path}: cannot be read: {error.strerror or error}")
            return
        settled = data == self._seen
        self._seen = data
        if not settled:
            return
        if data == self._data:
            self._problem = None
            return
        try:
            ring = read_key_ring(data, str(self._path))
        except KeyRingError as error:
            self._complain(str(error))
            return
        self._ring, self._data, self._problem = ring, data, None
        _log.info("keys: %s reloaded", self._path)

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            _log.error("keys: keeping the last good ones: %s", problem)
        self._problem = problem


class Access:
    """Who may ask, as the files of gateway keys and of denied keys have it; either may be None.

    Raises KeyRingError or OSError on construction.
    """

    def __init__(self, gateway_keys: Path | None, denied_keys: Path | None) -> None:
        self._keys = None if gateway_keys is None else KeyFile(gateway_keys)
        self._denied = None if denied_keys is None else KeyFile(denied_keys)
        self._files = [file for file in (self._keys, self._denied) if file is not None]

    @property
    def own_keys(self) -> bool:
        """Whether the gateway has keys of its own, so that clients' are for itself alone."""
        return self._keys is not None

    @property
    def restricted(self) -> bool:
        """Whether any request is refused for its key."""
        return bool(self._files)

    def holder(self, headers: Mapping[str, str]) -> str | None:
        """Return whose gateway key a request bears, None without such. Raises UnauthorizedError."""
        keys = None if self._keys is None else self._keys.ring
        return admit(headers, keys, NOBODY if self._denied is None else self._denied.ring)

    def details(self) -> dict[str, Any]:
        """Say for /readyz what is in force and which edits were not taken."""
        problems = [file.problem for file in self._files if file.problem is not None]
        return {"gateway": "on" if self.own_keys else "off", "problems": problems}

    async def watch(self) -> None:
        """Look for edits until cancelled."""
        while self._files:
            await asyncio.sleep(POLL_SECONDS)
            for file in self._files:
                await asyncio.to_thread(file.reload)
