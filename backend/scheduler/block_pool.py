"""The pool of KV blocks: who holds which, and which are free.

Laws:
- Every block is either on the free list with no holder, or off it with at least one. A block may
  have several holders (sequences that share a prefix); it is free when the last one lets go.
- A block whose content is kept may be taken off the free list by its number, and has its content
  until it is handed out anew. Blocks with nothing kept are handed out first, then those that were
  freed longest ago, and of one sequence the tail before the head.
- Block 0 is never handed out: padding of block tables points at it, and the free list, a doubly
  linked ring, begins and ends there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

BLOCK_SIZE = 16
"""Tokens per block."""

PADDING_BLOCK = 0
"""Belongs to nobody; what is read from it is masked."""


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


class BlockPoolCorruptError(Exception):
    """The pool broke its law; a defect of the caller or of the pool."""


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold ``num_tokens`` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """Hands out block numbers from 1 to ``num_blocks``."""

    def __init__(self, num_blocks: int) -> None:
        """``num_blocks`` counts usable blocks, the padding block not included."""
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        """Blocks that can be allocated now."""
        self._next = [*range(1, num_blocks + 1), PADDING_BLOCK]
        self._previous = [num_blocks, *range(num_blocks)]
        self._holders = [0] * (num_blocks + 1)
        self._cached = bytearray(num_blocks + 1)
        self._corrupt: set[int] = set()
        self._to_erase: list[int] = []
        self._checked = 0

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one holder, their content no longer kept.

        Raises OutOfBlocksError and takes none.
        """
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        following, holders, cached = self._next, self._holders, self._cached
        blocks: list[int] = []
        block = following[PADDING_BLOCK]
        for _ in range(count):
            blocks.append(block)
            holders[block] = 1
            cached[block] = 0
            block = following[block]
        following[PADDING_BLOCK] = block
        self._previous[block] = PADDING_BLOCK
        self.num_free -= count
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to blocks that are held already, or free with their content kept."""
        for block in blocks:
            if not (0 < block <= self.num_blocks and (self._holders[block] or self._cached[block])):
                raise BlockPoolCorruptError(f"block {block} has no holder and nothing kept")
        for block in blocks:
            if self._holders[block] == 0:
                self._unlink(block)
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one holder from each block of a table, the last block first.

        Raises BlockPoolCorruptError for a block that nobody holds.
        """
        holders, cached, corrupt = self._holders, self._cached, self._corrupt
        for block in reversed(blocks):
            if not 0 < block <= self.num_blocks or holders[block] < 1:
                raise BlockPoolCorruptError(f"block {block} has no holder")
            holders[block] -= 1
            if holders[block] == 0:
                # What nobody can find again is as good as empty, and goes first.
                self._link(block, self._previous[PADDING_BLOCK] if cached[block] else PADDING_BLOCK)
                if block in corrupt:
                    corrupt.remove(block)
                    self._to_erase.append(block)

    def mark_cached(self, blocks: Iterable[int]) -> None:
        """Keep the content of held blocks for as long as nobody else needs the room."""
        for block in blocks:
            if self._holders[block] < 1:
                raise BlockPoolCorruptError(f"block {block} has no holder")
            self._cached[block] = 1

    def evict(self, block: int) -> None:
        """Keep the content of ``block`` no longer."""
        self._cached[block] = 0
        if self._holders[block] == 0:
            self._unlink(block)
            self._link(block, PADDING_BLOCK)

    def mark_corrupt(self, blocks: Iterable[int]) -> None:
        """Note that held blocks may contain what is not finite.

        Masked or not, such content would reach the next owner: see ``take_to_erase``.
        """
        self._corrupt.update(blocks)

    def erase(self, block: int) -> None:
        """Have held ``block``, of which nothing is read yet, erased with those of the next call."""
        self._to_erase.append(block)

    def take_to_erase(self) -> list[int]:
        """Return the corrupt blocks that were freed since the last call.

        Whoever runs steps erases them after each is scheduled and before it is launched: they may
        have new owners already, who have written nothing yet.
        """
        blocks, self._to_erase = self._to_erase, []
        return blocks

    def is_free(self, block: int) -> bool:
        """Whether nobody holds ``block``."""
        return self._holders[block] == 0

    def num_freed_by(self, tables: Iterable[Sequence[int]]) -> int:
        """Return how many blocks would be free if the holders of ``tables`` let go."""
        held = Counter(block for table in tables for block in table)
        return sum(self._holders[block] == count for block, count in held.items())

    def next_to_check(self, most: int) -> range:
        """Return the blocks behind those of the last call, at most ``most``, and round again."""
        first = self._checked % self.num_blocks + 1
        self._checked = min(first + most - 1, self.num_blocks)
        return range(first, self._checked + 1)

    def check_integrity(
        self, block_tables: Iterable[Sequence[int]], blocks: range | None = None
    ) -> None:
        """Compare ``blocks`` with the block tables of everyone who holds blocks.

        None: all, and the free list from end to end. Raises BlockPoolCorruptError when a block is
        lost, free and held, free twice, or held by another number of tables than the pool believes.
        """
        held = Counter(block for table in block_tables for block in table)
        if strangers := [block for block in held if not 0 < block <= self.num_blocks]:
            raise BlockPoolCorruptError(f"blocks that are not the pool's: {sorted(strangers)}")
        self._check_links(PADDING_BLOCK)
        for block in blocks or range(1, self.num_blocks + 1):
            if self._holders[block] != held[block]:
                raise BlockPoolCorruptError(
                    f"block {block}: {self._holders[block]} holders counted, {held[block]} found"
                )
            if not held[block]:
                self._check_links(block)
        found = self.num_blocks - len(held) if blocks else self._length()
        if found != self.num_free or found + len(held) != self.num_blocks:
            raise BlockPoolCorruptError(f"{self.num_free} free counted, {found} found")
        if unheld := [block for block in self._corrupt if not held[block]]:
            raise BlockPoolCorruptError(f"corrupt and free, but not to be erased: {unheld}")

    def _check_links(self, block: int) -> None:
        """Expect the two neighbours of a free block to be free, and to know it."""
        before, following = self._previous[block], self._next[block]
        if self._next[before] != block:
            raise BlockPoolCorruptError(f"the free list is torn between {before}, {block}")
        if self._previous[following] != block:
            raise BlockPoolCorruptError(f"the free list is torn between {block}, {following}")
        if self._holders[before] or self._holders[following]:
            raise BlockPoolCorruptError(f"on the free list, and held: {before} or {following}")

    def _length(self) -> int:
        """Return how many blocks are on the free list, and stop where it is no ring."""
        block = PADDING_BLOCK
        for count in range(self.num_blocks + 1):
            block = self._next[block]
            if block == PADDING_BLOCK:
                return count
        raise BlockPoolCorruptError("the free list has no end")

    def _link(self, block: int, after: int) -> None:
        before = self._next[after]
        self._next[after] = self._previous[before] = block
        self._previous[block] = after
        self._next[block] = before
        self.num_free += 1

    def _unlink(self, block: int) -> None:
        before, following = self._previous[block], self._next[block]
        self._next[before] = following
        self._previous[following] = before
        self.num_free -= 1
