"""The pool of KV blocks: who holds which, and which are free.

Law: every block is either on the free list with no holder, or off it with at least one. A block
may have several holders (choices of one request that share their prompt); it returns to the free
list when the last one lets go. Block 0 is never handed out: padding of block tables points at it.
"""

from collections import Counter, deque
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
    """Hands out block ids from 1 to ``num_blocks``."""

    def __init__(self, num_blocks: int) -> None:
        """``num_blocks`` counts usable blocks, the padding block not included."""
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = deque(range(1, num_blocks + 1))
        self._holders = [0] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one holder. Raises OutOfBlocksError and takes none."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to blocks that are held already."""
        for block in blocks:
            self._require_held(block)
        for block in blocks:
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one holder from each block.

        Blocks are freed last first, so that the tail of a sequence is reused before its head.
        Raises BlockPoolCorruptError for a block that nobody holds.
        """
        for block in reversed(blocks):
            self._require_held(block)
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Compare the pool with the block tables of everyone who holds blocks.

        Raises BlockPoolCorruptError when a block is lost, free and held, free twice, or held by
        another number of tables than the pool believes.
        """
        free = Counter(self._free)
        held = Counter(block for table in block_tables for block in table)
        for block in range(1, self.num_blocks + 1):
            if self._holders[block] != held[block]:
                raise BlockPoolCorruptError(
                    f"block {block}: {self._holders[block]} holders counted, {held[block]} found"
                )
            if free[block] != (0 if held[block] else 1):
                raise BlockPoolCorruptError(
                    f"block {block}: {free[block]} times on the free list, {held[block]} holders"
                )
        if strangers := (free.keys() | held.keys()) - set(range(1, self.num_blocks + 1)):
            raise BlockPoolCorruptError(f"blocks that are not the pool's: {sorted(strangers)}")

    def _require_held(self, block: int) -> None:
        if not 0 < block <= self.num_blocks or self._holders[block] < 1:
            raise BlockPoolCorruptError(f"block {block} has no holder")
