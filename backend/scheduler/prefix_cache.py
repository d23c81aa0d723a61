"""The prefix cache: finds blocks whose KV was computed before, by what they contain.

A block's hash is the SHA-256 of its parent's hash and its own tokens. The root hash is made of the
fingerprint of the model, or of its adapter, and the salt. So one hash stands for everything that
the KV depends on, and two tenants with different salts never share a block.

Laws:
- A hash leads to a block only while the KV of all its tokens is written: ``cache_full_blocks`` is
  called for completed steps alone.
- A hash leads to one block, the first that was cached. A second block of the same content is used
  by its owner and found by nobody.
- A block that is handed out anew is found no longer. What it held goes to the tiers, if there are
  any; what is not to be trusted leaves them.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from backend.scheduler.block_pool import BLOCK_SIZE, BlockPool, BlockPoolCorruptError
from backend.scheduler.cache_events import BlockRemoved, BlocksStored, EventLog
from backend.scheduler.snapshots import Snapshots
from backend.scheduler.tiers import Source, Tiers

_TOKEN_BYTES = 4
_MOST_TENANTS = 64
OTHER_TENANTS = "other"
"""Those beyond the first 64 that have blocks in the cache."""


def root_hash(fingerprint: bytes, salt: str) -> bytes:
    """Return where the chains of one model and one salt begin."""
    return hashlib.sha256(hashlib.sha256(fingerprint).digest() + salt.encode()).digest()


def tenant_of(salt: str) -> str:
    """Return a short name for whoever sends ``salt``, which does not give it away."""
    return hashlib.sha256(salt.encode()).hexdigest()[:12] if salt else ""


def extend_block_hashes(hashes: list[bytes], tokens: Sequence[int], num_blocks: int) -> None:
    """Append the hashes of ``tokens``' blocks to ``hashes`` up to ``num_blocks`` of them.

    ``hashes[0]`` is the root hash, ``hashes[i]`` that of the block before token i * BLOCK_SIZE.
    """
    first = len(hashes) - 1
    data = array("I", tokens[first * BLOCK_SIZE : num_blocks * BLOCK_SIZE]).tobytes()
    sha256, width = hashlib.sha256, BLOCK_SIZE * _TOKEN_BYTES
    block_hash = hashes[-1]
    for at in range(0, len(data) - width + 1, width):
        block_hash = sha256(block_hash + data[at : at + width]).digest()
        hashes.append(block_hash)


class PrefixCache:
    """Blocks of ``pool`` by content."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        fingerprint: bytes = b"",
        adapters: Sequence[bytes] = (),
        events: EventLog | None = None,
        tiers: Tiers | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        """``fingerprint`` tells models apart, as those of ``adapters`` do; 1 is the first of these.

        ``events`` is told what comes and goes; ``tiers`` keep what the pool has no room for.
        ``snapshots`` are of models with recurrent states, which bound what can be used.
        """
        self.pool = pool
        self.tiers = tiers
        self.snapshots = snapshots
        self.queries = 0
        """Tokens looked up at first admissions."""
        self.hits = 0
        """Tokens of them that were found."""
        self._fingerprints = (fingerprint, *adapters)
        self._events = events
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * (pool.num_blocks + 1)
        self._tenant_of: list[str] = [""] * (pool.num_blocks + 1)
        self._blocks_of_tenant: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def blocks_by_tenant(self) -> dict[str, int]:
        """Return how many blocks of each tenant can be found; see ``tenant_of``."""
        return dict(self._blocks_of_tenant)

    def hash_blocks(self, tokens: Sequence[int], salt: str, adapter: int = 0) -> list[bytes]:
        """Return the hashes of all full blocks of ``tokens``, after the root hash."""
        hashes = [root_hash(self._fingerprints[adapter], salt)]
        extend_block_hashes(hashes, tokens, len(tokens) // BLOCK_SIZE)
        return hashes

    def match_prefix(self, hashes: Sequence[bytes], length: int) -> list[int]:
        """Return the blocks of the longest prefix that can be used.

        It leaves at least one of ``length`` tokens to compute, or there would be no logits.
        """
        blocks = self.find(hashes[1 : (length - 1) // BLOCK_SIZE + 1])
        if self.snapshots is not None:
            del blocks[self.snapshots.num_usable(hashes, len(blocks)) :]
        return blocks

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks of ``hashes``, up to the first that is not here."""
        blocks: list[int] = []
        find = self._block_of.get
        for block_hash in hashes:
            block = find(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_known(self, hashes: Sequence[bytes]) -> int:
        """Return how many of ``hashes`` are here or in a tier, up to the first that is not."""
        tiers = self.tiers
        for number, block_hash in enumerate(hashes):
            if block_hash not in self._block_of and (
                tiers is None or tiers.source_of(block_hash) is None
            ):
                return number
        return len(hashes)

    def worth_loading(self, hashes: Sequence[bytes], num_found: int, length: int) -> list[Source]:
        """Return where the blocks behind the ``num_found`` first ones are worth loading from."""
        if self.tiers is None:
            return []
        return self.tiers.worth_loading(hashes[num_found + 1 : (length - 1) // BLOCK_SIZE + 1])

    def count(self, num_tokens: int, num_found: int) -> None:
        """Count one look-up that was acted upon."""
        self.queries += num_tokens
        self.hits += num_found

    def allocate(self, count: int) -> list[int]:
        """Take blocks out of the pool; what they held before is found no longer."""
        blocks = self.pool.allocate(count)
        if self._block_of:
            if self.tiers is not None:
                for block in blocks:
                    if (block_hash := self._hash_of[block]) is not None:
                        self.tiers.save(block, block_hash)
            self._drop(blocks)
        return blocks

    def cache_full_blocks(
        self,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        parent: bytes,
        salt: str,
        adapter: int = 0,
    ) -> None:
        """Let each of ``blocks`` be found by its hash; ``parent`` is before the first."""
        block_of, hash_of, tenants = self._block_of, self._hash_of, self._tenant_of
        tenant, counts = tenant_of(salt), self._blocks_of_tenant
        if tenant not in counts and len(counts) >= _MOST_TENANTS:
            tenant = OTHER_TENANTS
        stored: list[int] = []
        for block, block_hash in zip(blocks, hashes, strict=True):
            if block_hash not in block_of:
                block_of[block_hash] = block
                hash_of[block] = block_hash
                tenants[block] = tenant
                stored.append(block)
        if stored:
            self.pool.mark_cached(stored)
            counts[tenant] = counts.get(tenant, 0) + len(stored)
            if self._events is not None:
                self._announce(self._events, stored, (parent, *hashes), adapter)

    def evict(self, blocks: Iterable[int]) -> None:
        """Let none of ``blocks`` be found any more."""
        found = [block for block in blocks if self._hash_of[block] is not None]
        self._drop(found)
        for block in found:
            self.pool.evict(block)

    def newest_first(self) -> list[tuple[bytes, int]]:
        """Return all that can be found, with its blocks: the one that would go last is first."""
        newest = list(self._block_of.items())
        newest.reverse()
        return newest

    def check_integrity(self, blocks: range | None = None) -> None:
        """Raise BlockPoolCorruptError when hashes and ``blocks`` (None: all) contradict."""
        hashes = self._hash_of[blocks.start : blocks.stop] if blocks else self._hash_of
        first = blocks.start if blocks else 0
        known = [(each, block) for block, each in enumerate(hashes, first) if each is not None]
        differ = any(self._block_of.get(each) != block for each, block in known)
        if differ or (blocks is None and len(known) != len(self._block_of)):
            raise BlockPoolCorruptError("hashes and blocks of the prefix cache differ")
        if sum(self._blocks_of_tenant.values()) != len(self._block_of):
            raise BlockPoolCorruptError("the tenants' blocks are not those of the cache")
        if self.tiers is not None:
            self.tiers.check_integrity()

    def _announce(
        self, events: EventLog, stored: list[int], hashes: Sequence[bytes], adapter: int
    ) -> None:
        """Tell of the runs of ``hashes`` that were stored; between them others were first."""
        new = {self._hash_of[block] for block in stored}
        run: list[bytes] = []
        parent = hashes[0]
        for block_hash in (*hashes[1:], b""):
            if block_hash in new:
                run.append(block_hash)
                continue
            if run:
                events.append(BlocksStored(parent, tuple(run), len(run) * BLOCK_SIZE, adapter))
                run = []
            parent = block_hash

    def _drop(self, blocks: Iterable[int]) -> None:
        block_of, hash_of, counts = self._block_of, self._hash_of, self._blocks_of_tenant
        for block in blocks:
            block_hash = hash_of[block]
            if block_hash is None:
                continue
            del block_of[block_hash]
            hash_of[block] = None
            tenant = self._tenant_of[block]
            counts[tenant] -= 1
            if counts[tenant] == 0:
                del counts[tenant]
            if self._events is not None:
                self._events.append(BlockRemoved(block_hash))
