"""Which replica is believed to hold which prefix blocks: bounded, and forgetting as a replica does.

Laws:
- A replica's blocks are in the order of their last use, and the least recently used go first. Of
  one prompt the last block counts as used before the first, so tails go before heads.
- No replica has more blocks than its capacity, nor all together more than ``most``.
- It is a belief: a block that is gone at the replica costs a prefill, never a wrong answer.
"""

from collections.abc import Sequence
from itertools import islice, takewhile

DEFAULT_CAPACITY = 65_536
"""Blocks of a replica of which nothing is known: of 128 tokens each, more than most GPUs hold."""

MOST_BLOCKS = 1 << 20

_AT_ONCE = 64
"""One part in so many is dropped at once: to find the oldest key of a dict takes a scan."""


class PrefixIndex:
    """Blocks by replica; not thread-safe."""

    def __init__(self, *, capacity: int = DEFAULT_CAPACITY, most: int = MOST_BLOCKS) -> None:
        """``capacity`` bounds each replica's blocks, ``most`` those of all."""
        self._capacity = capacity
        self._most = most
        # Blocks in the order of their last use, with its number; those of one use share it. A
        # plain dict takes half of an OrderedDict's bytes.
        self._blocks: dict[str, dict[int, int]] = {}
        self._uses = 0

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def size(self, name: str) -> int:
        """Return how many blocks the replica is believed to hold."""
        return len(self._blocks.get(name, ()))

    @property
    def capacity(self) -> int:
        """How many blocks are remembered of each replica at most."""
        share = self._most // max(1, len(self._blocks))
        return max(1, min(self._capacity, share))

    def held(self, name: str, prefix: Sequence[int]) -> int:
        """Return how many blocks of ``prefix``, from its start on, the replica should hold."""
        blocks = self._blocks.get(name)
        if blocks is None:
            return 0
        for number, digest in enumerate(prefix):
            if digest not in blocks:
                return number
        return len(prefix)

    def add(self, name: str, prefix: Sequence[int]) -> None:
        """Note that the replica has computed, or found, all of ``prefix``."""
        if name not in self._blocks:
            self._blocks[name] = {}
            for other in self._blocks:  # whose shares are smaller now
                self._bound(other)
        self._uses = use = self._uses + 1
        blocks = self._blocks[name]
        pop = blocks.pop
        for digest in reversed(prefix):
            pop(digest, None)
            blocks[digest] = use
        self._bound(name)

    def last_use(self, name: str, digest: int) -> int:
        """Return the number of the block's last use; 0 where it is not known."""
        return self._blocks.get(name, {}).get(digest, 0)

    def drop_idle(self, name: str, use: int) -> None:
        """Forget what the replica has last used with this number or before."""
        blocks = self._blocks.get(name, {})
        for digest in list(takewhile(lambda digest: blocks[digest] <= use, blocks)):
            del blocks[digest]

    def forget(self, name: str) -> None:
        """Forget all that the replica was believed to hold."""
        self._blocks.pop(name, None)

    def _bound(self, name: str) -> None:
        capacity = self.capacity
        blocks = self._blocks.get(name, {})
        if (excess := len(blocks) - capacity) > 0:
            for digest in list(islice(blocks, excess + capacity // _AT_ONCE)):
                del blocks[digest]
