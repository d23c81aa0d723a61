"""The entry, and the interfaces of stores and of their neighbours; tests may fake them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from policies.decision import PiiAction
from policies.policy import Policy
from policies.recorded import RecordedPolicy

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
    """Live entries and the bytes they take, keys and metadata included.

    ``lost`` counts puts that returned and of which the entry could not be written after.
    """

    entries: int
    bytes: int
    evictions: int
    lost: int = 0


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
        """Store or replace; once this returns, ``get`` of any worker finds it.

        It may be written later. If that fails, ``get`` finds what the store had before: nothing, or
        the older entry, which is served within its own freshness.
        """

    async def delete(self, key: bytes) -> None:
        """Forget the entry; no error when it is not there. Puts before it are written by then."""

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


class Count(NamedTuple):
    """What is counted: of a key's ``holder`` an amount such as ``tokens/day``, in one window."""

    holder: str
    what: str
    window: int


class Change(NamedTuple):
    """What is to be added to a count, and the total that was last learned of it."""

    amount: int
    known: int = 0


class KeyCounts(Protocol):
    """What holders of gateway keys have used, counted by several processes together.

    Failures are StoreErrors.
    """

    async def load(self, windows: Sequence[tuple[str, int]]) -> Mapping[Count, int]:
        """Return the amounts of all holders in these windows: what is counted, and its number."""

    async def add(self, batch: str, changes: Mapping[Count, Change]) -> Mapping[Count, int]:
        """Add to amounts, zero to some; return the total of each.

        ``batch`` names these changes. If an add fails, it may have been done, whole or in part:
        the same changes under the same name are then counted once. If a total is less than
        ``known``, counts were lost: it is raised to ``known`` first.
        """

    async def close(self) -> None: ...


class Claims(Protocol):
    """Which of several gateway processes makes the upstream call for a miss that they share."""

    async def take(self, slot: bytes) -> bool:
        """Claim the slot unless it is claimed; tell whether it was not. Raises StoreError.

        A claim lapses soon after its holder's end.
        """

    def release(self, slot: bytes) -> None: ...


class MakerStore(Protocol):
    """Which upstream made what, by digest, known to all gateways of one store; bounded.

    Failures are StoreErrors.
    """

    seconds: float
    """The longest that a request may wait for it."""

    async def find(self, digests: Sequence[bytes]) -> Mapping[bytes, str]: ...
    async def add(self, digests: Sequence[bytes], maker: str) -> None:
        """Note the maker of all these, in place of any other."""

    async def close(self) -> None: ...


MOST_MAKERS = 262_144
"""Digests that a store keeps at least; the ones noted first are forgotten first."""

USAGE_ROWS = 2_048
"""Rows of a day; the figures of further labels are summed in one more row."""
USAGE_DAYS = 400
"""Days for which usage is kept."""
USAGE_OTHER = '{"holder":"other","model":"other","rule":"other","upstream":"other","team":"other"}'
"""The labels of that row."""


class UsageRow(NamedTuple):
    """Sums of one day, such as ``2026-11-24`` (UTC), under labels, which are a JSON object."""

    day: str
    labels: str
    figures: Mapping[str, float]


class UsageStore(Protocol):
    """Where the figures of usage are summed, for all gateways of one store."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Add the figures to the stored figures. Raises StoreError.

        ``batch`` names these rows: if they are added again under the same name, nothing changes.
        Beyond USAGE_ROWS rows of a day, figures count under USAGE_OTHER.
        """

    async def read(self, since: str) -> list[UsageRow]:
        """Return all rows from a day on. Raises StoreError."""

    async def close(self) -> None: ...


KEPT_WINDOWS = {"minute": 3, "day": 8, "month": 3}
"""Windows of time of each holder and amount, by their length. The one that was begun first goes
first, whatever the clock says: one that was days ahead for a while makes no budget begin anew."""


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


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """The policy in force and the scanner for its regions; replaced whole on a reload."""

    policy: Policy
    scanner: Scanner
    recorded: RecordedPolicy
    """The policy in the form that the decision log needs."""
    pii_identities: Mapping[PiiAction, str]
    """The part of cache keys for the scan that a prompt passed, by action."""


class MemoryTier(Protocol):
    """The entries that are in this process's memory, and right."""

    def find(self, key: bytes, *, touch: bool = True) -> Entry | None:
        """Return the entry, or None where it is not in memory. No I/O."""


class PolicySource(Protocol):
    """Holds the last good policy."""

    @property
    def active(self) -> ActivePolicy: ...


ForgetKeys = Callable[[bytes], Awaitable[None]]
"""Destroys the keys under which a scope's entries are sealed. Raises StoreError."""
