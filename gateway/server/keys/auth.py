"""Who may ask: rings of keys, known by their digests, and the credentials of a request.

Law: what is compared is SHA-256 digests, in constant time; no key is kept. With a ring of gateway
keys every credential of a request must be one of them, and all of one holder: nothing else gets
past, hits included. A credential on the ring of denied keys never gets past.

Files of keys, a key a line (``keys.key_line``): read at start, watched, replaced by each good edit.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.protocol.errors import UnauthorizedError
from gateway.protocol.http.headers import CREDENTIALS, bearer
from gateway.server.keys.key_line import Key, KeyLineError, describe_key, read_key
from gateway.server.open.watched_file import WatchedFile

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""An edit counts at the second look, and a key that was removed must be refused within a second."""
MOST_KEYS = 100_000

_PREFIX_BYTES = 8


class KeyRingError(ValueError):
    """The text is no list of keys; a line for each problem, with file and line."""


Near = tuple[tuple[bytes, Key], ...]
"""Digests that begin alike, with their keys."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Digests of keys, and the keys; several may have one holder."""

    by_prefix: Mapping[bytes, Near]
    """Finds the few digests to compare with. Timing reveals no digest: to choose a digest's first
    bytes a client would have to invert SHA-256."""
    holders: Mapping[str, Key]
    """One key of each holder."""

    def find(self, secret: str) -> Key | None:
        digest = hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
        near = self.by_prefix.get(digest[:_PREFIX_BYTES], ())
        return next((key for known, key in near if hmac.compare_digest(known, digest)), None)


NOBODY = KeyRing({}, {})


Line = Near | None
"""The digest and the key of a line; None without a key."""


def _read_line(line: str) -> Line:
    words = line.partition("#")[0].split()
    return (read_key(words),) if words else None


class KeyReader:
    """Reads a file of a key a line, again and again; ``#`` begins a comment. Raises KeyRingError.

    A line that was there before is not read anew, and takes no new objects: a key that is removed
    from a long list must be refused within a second. Of ``denied`` keys the digests alone count, so
    lines of one holder may differ.
    """

    def __init__(self, *, denied: bool = False) -> None:
        self._denied = denied
        self._before: dict[str, Line] = {}

    def __call__(self, data: bytes, source: str) -> KeyRing:
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise KeyRingError(f"{source}: expected text in UTF-8") from None
        problems: list[str] = []
        read: dict[str, Line] = {}
        found: dict[bytes, Near] = {}
        holders: dict[str, Key] = {}
        places: dict[str, int] = {}
        count = 0
        for number, entry in self._entries(lines, source, read, problems):
            digest, key = entry[0]
            count += 1
            first = holders.setdefault(key.name, key)
            place = places.setdefault(key.name, number)
            if key is not first:
                if key.shared != first.shared and not self._denied:
                    problems.append(
                        f"{source}:{number}: expected the team and the limits of line {place}: "
                        "a holder has one team, and what its keys use is counted together"
                    )
                # One object for all keys of a holder.
                entry = ((digest, replace(key, limits=first.limits)),)  # noqa: PLW2901
            near = digest[:_PREFIX_BYTES]
            if (same := found.get(near)) is not None:
                if any(digest == other for other, _ in same):
                    problems.append(f"{source}:{number}: this digest is there already")
                entry = (*same, *entry)  # noqa: PLW2901
            found[near] = entry
        if count > MOST_KEYS:
            problems.append(f"{source}: {count} keys, at most {MOST_KEYS}")
        if problems:
            raise KeyRingError("\n".join(problems))
        self._before = read
        return KeyRing(found, holders)

    def _entries(
        self, lines: Sequence[str], source: str, read: dict[str, Line], problems: list[str]
    ) -> Iterator[tuple[int, Near]]:
        """Yield the number and the key of each line that has one; note what was read."""
        for number, line in enumerate(lines, start=1):
            try:
                entry = self._before[line] if line in self._before else _read_line(line)
            except KeyLineError as error:
                problems.append(f"{source}:{number}: {error}")
                continue
            read[line] = entry
            if entry is not None:
                yield number, entry


def read_key_ring(data: bytes, source: str, *, denied: bool = False) -> KeyRing:
    """Read a file of keys once. Raises KeyRingError."""
    return KeyReader(denied=denied)(data, source)


def authenticate(
    headers: Mapping[str, str], keys: KeyRing | None, denied: KeyRing, now: float
) -> Key | None:
    """Return the request's gateway key; None where no gateway keys are in use.

    ``headers`` have lower-case names; ``now`` is in seconds since the epoch. Raises
    UnauthorizedError.
    """
    secrets = [bearer(value) for name in CREDENTIALS if (value := headers.get(name))]
    if any(denied.find(secret) is not None for secret in secrets):
        raise UnauthorizedError("This API key is denied here.")
    if keys is None:
        return None
    if not secrets:
        raise UnauthorizedError(
            "You did not provide an API key. Provide one in an Authorization header "
            "(Authorization: Bearer YOUR_KEY)."
        )
    found = [keys.find(secret) for secret in secrets]
    key = found[0]
    # Of two holders nobody knows whose answers are meant.
    if key is None or any(other is None or other.name != key.name for other in found):
        raise UnauthorizedError("Incorrect API key provided.")
    if any(each is not None and each.has_expired(now) for each in found):
        raise UnauthorizedError("This API key has expired.")
    return key


def key_file(path: Path, *, denied: bool = False) -> WatchedFile[KeyRing]:
    """Return the keys in a file. Raises KeyRingError or OSError."""
    return WatchedFile(path, KeyReader(denied=denied), "keys: keeping the last good ones")


class Access:
    """Who may ask, as the files of gateway keys and of denied keys have it; either may be None.

    Raises KeyRingError or OSError on construction.
    """

    def __init__(
        self,
        gateway_keys: Path | None,
        denied_keys: Path | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._keys, self._denied = (
            None if path is None else key_file(path, denied=denied)
            for path, denied in ((gateway_keys, False), (denied_keys, True))
        )
        self._files = [file for file in (self._keys, self._denied) if file is not None]
        self.rings = [file.active for file in self._files]
        """The keys in force: with other rings, other requests are let in."""
        self.own_keys = self._keys is not None
        """Whether the gateway has gateway keys, so that clients' keys are for itself alone."""
        self.restricted = bool(self._files)
        """Whether any request is refused for its key."""

    def key(self, headers: Mapping[str, str]) -> Key | None:
        """Return a request's gateway key, if gateway keys are in use. Raises UnauthorizedError."""
        keys = None if self._keys is None else self._keys.active
        denied = NOBODY if self._denied is None else self._denied.active
        return authenticate(headers, keys, denied, self._now())

    @property
    def holders(self) -> Mapping[str, Key]:
        return (NOBODY if self._keys is None else self._keys.active).holders

    def list_keys(self) -> list[dict[str, str]]:
        """Return the gateway keys without their secrets, sorted by holder."""
        ring = NOBODY if self._keys is None else self._keys.active
        now = self._now()
        rows = [
            describe_key(digest, key, now)
            for near in ring.by_prefix.values()
            for digest, key in near
        ]
        return sorted(rows, key=lambda row: (row["name"], row["key"]))

    def details(self) -> dict[str, Any]:
        """Return for /readyz the files in force and the refused edits."""
        problems = [file.problem for file in self._files if file.problem is not None]
        return {"gateway": "on" if self.own_keys else "off", "problems": problems}

    async def watch(self, on_edit: Callable[[], None]) -> None:
        """Look for edits until cancelled."""
        while self._files:
            await asyncio.sleep(POLL_SECONDS)
            for file in self._files:
                if await asyncio.to_thread(file.reload):
                    _log.info("keys: %s reloaded", file.path, extra={"fields": {"event": "keys"}})
                    self.rings = [file.active for file in self._files]
                    on_edit()
