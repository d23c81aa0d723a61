"""The entry, and the interfaces of stores and of their neighbours; tests may fake them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

KEY_VERSION = 2
"""Raised when the canonical form or the entry format changes; part of every key and entry."""


SEALED = "sealed"
"""The endpoint of an entry that is encrypted, and that this process has no key for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored answer and all that identifies the request it answers.

    ``result`` is the canonical, complete reply in the endpoint's plain JSON form; both wire modes
    are rendered from it. ``question`` is the last user message where the entry may be found by
    meaning, else None. Times are seconds since the epoch; ``expires_at`` never moves, and for
    ``grace`` seconds after it the entry may still be served stale: a store may forget it then.
    ``tokens`` is what a hit saves, prompt and completion. ``digests`` are pairs of a field's name
    and an 8-byte keyed digest of its value, so that a miss can be explained without its text.
    """

    key: bytes
    endpoint: str
    model: str
    upstream: str
    generation: int
    scope: bytes
    fingerprint: bytes
    rule: str
    stored_at: float
    expires_at: float
    result: bytes
    question: str | None = None
    tags: tuple[str, ...] = ()
    tokens: int = 0
    grace: float = 0.0
    digests: tuple[tuple[str, bytes], ...] = ()
    key_version: int = KEY_VERSION

    @property
    def kept_until(self) -> float:
        """When nothing can be done with the entry any more."""
        return self.expires_at + self.grace


class StoreError(Exception):
    """The store failed or did not answer in time. Never fails a request: it is a miss."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or did not answer in time: better not to ask it for a while."""


class StoreRefusedError(StoreError):
    """The store answers, and says no: it may take reads alone, or nothing. The text says why."""


class StoreFullError(StoreRefusedError):
    """The store has no room for writes, whatever they are."""


class PositionError(StoreError):
    """Not a position that this store returned: a walk cannot go on from it."""


class EntryTooLargeError(StoreError):
    """The entry takes more than one entry's share of the store. Nothing was stored or replaced."""


class UnfinishedError(Exception):
    """An operator's action is incomplete; the text names the done and the missing parts."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Live entries and the bytes they take, keys and metadata included."""

    entries: int
    bytes: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a store's entries, and where to go on; None at the end."""

    entries: Sequence[Entry]
    after: bytes | None


class Store(Protocol):
    """Where entries live. Every failure is a StoreError; ``GuardedStore`` bounds the waits."""

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        """Return the whole entry, or None. May return a stale entry; never a damaged one.

        With ``touch`` it counts as a use of the entry, which keeps it from eviction.
        """

    async def put(self, entry: Entry) -> None:
        """Store or replace; once this returns, ``get`` of any worker finds it."""

    async def delete(self, key: bytes) -> None:
        """Forget the entry; no error when it is not there."""

    async def walk(self, after: bytes | None, limit: int) -> Page:
        """Return up to ``limit`` entries from ``after`` on; None begins.

        For the operator, not for requests. A walk over all pages returns every entry that exists
        throughout the walk at least once; damaged entries are left out. Of an entry that is
        ``SEALED``, only key and end are known. A page may hold fewer than ``limit`` entries, even
        none, and not be the last. Only this store can interpret ``after``.
        Raises PositionError if ``after`` is invalid.
        """

    def stats(self) -> StoreStats:
        """Return the latest known figures without I/O."""

    async def close(self) -> None: ...


class ScopeKeys(Protocol):
    """Where the scopes' data keys are kept, wrapped under a master key; failures are StoreErrors.

    A scope is named by a tag. It has one data key for each master key that wrapped one.
    """

    async def find(self, tag: bytes, master: bytes) -> bytes | None:
        """Return the wrapped data key, or None."""

    async def ensure(self, tag: bytes, master: bytes, proposed: bytes, until: float) -> bytes:
        """Return the wrapped data key that holds from now on: the one there, else ``proposed``.

        Concurrent callers get the same key. The key is kept until ``until`` at least.
        """

    async def forget(self, tag: bytes) -> None:
        """Destroy all data keys of the scope; no error where there are none."""

    async def close(self) -> None: ...


MOST_MAKERS = 262_144
"""Digests that a store keeps at least; the ones noted first are forgotten first."""


class Quarantine(Protocol):
    """Keys of entries that must not be semantic hits any more."""

    def holds(self, key: bytes) -> bool:
        """Tell whether the key is among them; a look at memory."""

    async def add(self, key: bytes) -> None:
        """Add a key for good. Raises OSError."""


class Scanner(Protocol):
    """PII detection in text."""

    @property
    def identity(self) -> str:
        """Name all that a finding depends on beside the text; of equal scanners the same."""

    def is_clean(self, text: str) -> bool:
        """Tell by a quick look that ``scan`` would find nothing; False if that is not sure."""

    def scan(self, text: str) -> str | None:
        """Return the first kind found, or None."""


class MemoryTier(Protocol):
    """The entries that are in this process's memory, and right."""

    def find(self, key: bytes, *, touch: bool = True) -> Entry | None:
        """Return the entry, or None where it is not in memory. No I/O."""


ForgetKeys = Callable[[bytes], Awaitable[None]]
"""Destroys the keys under which a scope's entries are sealed. Raises StoreError."""
