"""Which upstream made a value that only it can read, or an object that only it keeps.

Laws:
- A request with such a value is answered by its maker or not at all: no other upstream replaces it.
- A maker is learnt from its own answers. Of an unknown id, all upstreams are asked.
- Only digests are remembered, each under the scope within which the answer may be shared. The
  digest of a value is another one in each scope. So no client learns what was made for others.
- What is remembered is bounded: the least recently used digests are forgotten first. All gateways
  of one store know what one of them has learnt. If the store does not answer in time, a maker
  counts as unknown.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from cachetools import LRUCache

from gateway.cache.ports import StoreError
from gateway.cache.stores.guarded import LoopTimeout
from gateway.protocol.endpoints.maker_state import made_state

log = logging.getLogger(__name__)

MOST_KNOWN = 65_536
DIGEST_BYTES = 16
MOST_LEARNT = 4096
"""Values of one answer that are learnt; a stream may have no end."""
LONGEST_SIGNATURE = 2**20

Scopes = Sequence[bytes]


def digests_of(values: Iterable[str], scopes: Scopes) -> list[bytes]:
    """Return the digests of the values within each of these scopes, in the values' order."""
    plain = (blake2b(value.encode("utf-8", "surrogatepass")).digest() for value in values)
    return [
        blake2b(each, key=scope, digest_size=DIGEST_BYTES).digest()
        for each in plain
        for scope in scopes
    ]


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


class Affinity:
    """The upstreams that made values, by digest; ``shared`` is known to other processes too."""

    def __init__(self, shared: MakerStore | None = None, *, most: int = MOST_KNOWN) -> None:
        self._shared = shared
        self._timeout = LoopTimeout()
        self._known: LRUCache[bytes, str] = LRUCache(most)
        self._writes: set[asyncio.Task[None]] = set()

    def forget(self, upstream: str) -> None:
        """Forget what was made by an upstream that has left the pool."""
        for digest in [each for each, name in self._known.items() if name == upstream]:
            del self._known[digest]

    async def maker_of(self, values: Sequence[str], scopes: Scopes) -> str:
        """Return the maker of the first value whose maker is known; empty if there is none."""
        unknown = []
        for value in values:
            for digest in digests_of((value,), scopes):
                if (maker := self._known.get(digest)) is not None:
                    return maker
                unknown.append(digest)
        if self._shared is None or not unknown:
            return ""
        try:
            found = await self._timeout.wait(self._shared.find(unknown), self._shared.seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            _log_fault("looked up", error)
            return ""
        for digest in unknown:
            if (maker := found.get(digest)) is not None:
                self._known[digest] = maker
                return maker
        return ""

    def note(self, values: Sequence[str], scope: bytes, maker: str) -> "asyncio.Task[None] | None":
        """Note who made the values; return the task that tells other processes, if it is needed."""
        new = {
            digest: maker
            for digest in digests_of(filter(None, values), (scope,))
            if self._known.get(digest) != maker
        }
        self._known.update(new)
        if self._shared is None or not new:
            return None
        task = asyncio.create_task(self._tell(self._shared, [*new], maker))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def settle(self) -> None:
        """Wait until other processes know what was noted."""
        if self._writes:
            await asyncio.wait(self._writes)

    async def _tell(self, shared: MakerStore, digests: Sequence[bytes], maker: str) -> None:
        try:
            await self._timeout.wait(shared.add(digests, maker), shared.seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer goes on
            _log_fault("noted", error)


def _log_fault(what: str, error: Exception) -> None:
    """Log why the store did not help; an outage is logged once, where the breaker opens."""
    level = logging.DEBUG if isinstance(error, StoreError | TimeoutError) else logging.WARNING
    log.log(level, "store: the maker of a value could not be %s: %r", what, error)


Learn = Callable[[Sequence[str], bytes], Awaitable[None] | None]
"""See ``Served.learn``."""


class Learner:
    """Notes who made the values of an answer, as it comes; ``keeps`` is for ``made_state``.

    ``scopes`` returns the scopes of its client.
    """

    def __init__(self, learn: Learn, scopes: Callable[[], Scopes], *, keeps: bool) -> None:
        self._learn, self._scopes, self._keeps = learn, scopes, keeps
        self._seen: set[int] = set()
        """Hashes of the values: a value may be large."""
        self._signature: list[str] = []
        """The pieces of the present block's signature."""
        self._signature_size = 0
        self._writes: list[Awaitable[None]] = []

    def take(self, result: Mapping[str, object]) -> None:
        """Take an answer, or an event of one."""
        match result:
            case {"delta": {"type": "signature_delta", "signature": str(piece)}}:
                self._signature_size += len(piece)
                if self._signature_size <= LONGEST_SIGNATURE:
                    self._signature.append(piece)
                return
        if len(self._seen) > MOST_LEARNT:
            return
        is_known = self._signature_size <= LONGEST_SIGNATURE
        signature = "".join(self._signature) if is_known else ""
        self._signature_size = 0
        self._signature.clear()
        values = [*made_state(result, keeps=self._keeps), signature]
        if new := [value for value in values if value and hash(value) not in self._seen]:
            self._seen.update(map(hash, new))
            if (write := self._learn(new, self._scopes()[0])) is not None:
                self._writes.append(write)

    async def told(self) -> None:
        """Wait until other gateways know: the client's next request may reach one of them."""
        if self._writes:  # they go on if this reply has no reader any more
            await asyncio.shield(asyncio.gather(*self._writes))
