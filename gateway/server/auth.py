"""Who may ask: rings of keys, known by their digests, and the credentials of a request.

Law: what is compared is SHA-256 digests, in constant time; no key is kept. With a ring of gateway
keys every credential of a request must be one of them, and all of one holder: nothing else gets
past, hits included. A credential on the ring of denied keys never gets past.

Files of keys, ``NAME SHA256`` a line: read at start, watched, replaced whole by a good edit.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.protocol.errors import UnauthorizedError
from gateway.protocol.headers import CREDENTIALS, bearer
from gateway.server.watched_file import WatchedFile

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""An edit counts at the second look, and a key that was removed must be refused within a second."""
MOST_KEYS = 100_000

_NAME = re.compile(r"[^\s#!]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_PREFIX_BYTES = 8


class KeyRingError(ValueError):
    """The text is no list of keys; a line for each problem, with file and line."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Digests of keys and the names of their holders; several keys may have one holder."""

    by_prefix: Mapping[bytes, tuple[tuple[bytes, str], ...]]
    """Finds the few digests to compare with. Timing reveals no digest: to choose a digest's first
    bytes a client would have to invert SHA-256."""

    def holder(self, key: str) -> str | None:
        """Return the holder of the key, or None if the key is unknown."""
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        near = self.by_prefix.get(digest[:_PREFIX_BYTES], ())
        return next((name for known, name in near if hmac.compare_digest(known, digest)), None)


NOBODY = KeyRing({})


def read_key_ring(data: bytes, source: str) -> KeyRing:
    """Read a file's ``NAME SHA256`` a line; ``#`` begins a comment. Raises KeyRingError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeyRingError(f"{source}: expected text in UTF-8") from None
    problems: list[str] = []
    found: dict[bytes, tuple[tuple[bytes, str], ...]] = {}
    count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        match words:
            case []:
                continue
            case [name, digest] if _NAME.fullmatch(name) and _DIGEST.fullmatch(digest):
                known = bytes.fromhex(digest)
                same = found.get(known[:_PREFIX_BYTES], ())
                if any(known == other for other, _ in same):
                    problems.append(f"{source}:{number}: this digest is there already")
                found[known[:_PREFIX_BYTES]] = (*same, (known, name))
                count += 1
            case _:
                # Not quoted: somebody may have put a key here instead of its digest.
                problems.append(
                    f"{source}:{number}: expected NAME and the SHA-256 of a key (64 hex digits)"
                )
    if count > MOST_KEYS:
        problems.append(f"{source}: {count} keys, at most {MOST_KEYS}")
    if problems:
        raise KeyRingError("\n".join(problems))
    return KeyRing(found)


def authenticate(headers: Mapping[str, str], keys: KeyRing | None, denied: KeyRing) -> str | None:
    """Return the holder of the request's gateway key; None where no gateway keys are in use.

    ``headers`` have lower-case names. Raises UnauthorizedError.
    """
    keys_sent = [bearer(value) for name in CREDENTIALS if (value := headers.get(name))]
    if any(denied.holder(key) is not None for key in keys_sent):
        raise UnauthorizedError("This API key is denied here.")
    if keys is None:
        return None
    if not keys_sent:
        raise UnauthorizedError(
            "You did not provide an API key. Provide one in an Authorization header "
            "(Authorization: Bearer YOUR_KEY)."
        )
    holders = {keys.holder(key) for key in keys_sent}
    if len(holders) > 1 or None in holders:
        raise UnauthorizedError("Incorrect API key provided.")
    return holders.pop()


def key_file(path: Path) -> WatchedFile[KeyRing]:
    """Return the keys in a file. Raises KeyRingError or OSError."""
    return WatchedFile(path, read_key_ring, "keys: keeping the last good ones")


class Access:
    """Who may ask, as the files of gateway keys and of denied keys have it; either may be None.

    Raises KeyRingError or OSError on construction.
    """

    def __init__(self, gateway_keys: Path | None, denied_keys: Path | None) -> None:
        self._keys, self._denied = (
            None if path is None else key_file(path) for path in (gateway_keys, denied_keys)
        )
        self._files = [file for file in (self._keys, self._denied) if file is not None]
        self.rings = [file.active for file in self._files]
        """The keys in force: with other rings, other requests are let in."""
        self.own_keys = self._keys is not None
        """Whether the gateway has keys of its own, so that clients' are for itself alone."""
        self.restricted = bool(self._files)
        """Whether any request is refused for its key."""

    def holder(self, headers: Mapping[str, str]) -> str | None:
        """Return the holder of a request's gateway key, if any. Raises UnauthorizedError."""
        keys = None if self._keys is None else self._keys.active
        return authenticate(headers, keys, NOBODY if self._denied is None else self._denied.active)

    def details(self) -> dict[str, Any]:
        """Return for /readyz the files in force and the refused edits."""
        problems = [file.problem for file in self._files if file.problem is not None]
        return {"gateway": "on" if self.own_keys else "off", "problems": problems}

    async def watch(self) -> None:
        """Look for edits until cancelled."""
        while self._files:
            await asyncio.sleep(POLL_SECONDS)
            for file in self._files:
                if await asyncio.to_thread(file.reload):
                    _log.info("keys: %s reloaded", file.path)
                    self.rings = [file.active for file in self._files]
