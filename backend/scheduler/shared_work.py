"""Blocks that running sequences are about to compute, and who waits for them.

A burst of requests with one system prompt, or the choices of one request, would all compute the
same blocks at once. Instead the first computes them and the others wait until they can be found.

Laws: a block is claimed by at most one running sequence, and from admission until it is published
or its claimant stops running. Whoever waits is returned by the call that ends its wait.
"""

from collections.abc import Iterable

from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.sequence import Sequence


class SharedWork:
    """Claims by digest, and waits by digest."""

    def __init__(self) -> None:
        self._claimant_of: dict[bytes, Sequence] = {}
        self._waiting_for: dict[bytes, list[Sequence]] = {}
        self._wait_of: dict[Sequence, bytes] = {}

    def claim(self, sequence: Sequence) -> None:
        """``sequence`` will compute all its full blocks that were not settled."""
        for digest in sequence.chain[sequence.num_settled_blocks + 1 :]:
            self._claimant_of.setdefault(digest, sequence)

    def wait(self, sequence: Sequence, num_found: int) -> bool:
        """Let ``sequence`` wait if its first missing block is being computed, as urgently.

        It waits for the last of its blocks that are, which is computed after the others.
        """
        chain, claims = sequence.chain, self._claimant_of
        low, high = num_found + 1, (sequence.length - 1) // BLOCK_SIZE + 1
        high = min(high, len(chain))
        if low >= high or chain[low] not in claims:
            return False
        if claims[chain[low]].priority > sequence.priority:
            return False
        while high - low > 1:
            middle = (low + high) // 2
            if chain[middle] in claims:
                low = middle
            else:
                high = middle
        self._wait_of[sequence] = chain[low]
        self._waiting_for.setdefault(chain[low], []).append(sequence)
        return True

    def leave(self, sequence: Sequence) -> None:
        """``sequence`` waits for nothing any more."""
        digest = self._wait_of.pop(sequence, None)
        if digest is not None:
            others = self._waiting_for[digest]
            others.remove(sequence)
            if not others:
                del self._waiting_for[digest]

    def settle(self, sequence: Sequence, first: int, stop: int) -> list[Sequence]:
        """Blocks ``first`` to ``stop`` of ``sequence`` were published."""
        claims = self._claimant_of
        digests = sequence.chain[first + 1 : stop + 1]
        if claims:
            for digest in digests:
                claims.pop(digest, None)
        return self._wake(digests)

    def withdraw(self, sequence: Sequence) -> list[Sequence]:
        """``sequence`` stops running: what it claimed it will not compute."""
        claims = self._claimant_of
        claimed = [
            digest
            for digest in sequence.chain[sequence.num_settled_blocks + 1 :]
            if claims.get(digest) is sequence
        ]
        for digest in claimed:
            del claims[digest]
        return self._wake(claimed)

    def check_integrity(self, running: set[Sequence], waiting: set[Sequence]) -> None:
        """Raise RuntimeError when somebody waits for what nobody computes."""
        if not set(self._claimant_of.values()) <= running:
            raise RuntimeError("blocks are claimed by sequences that do not run")
        if set(self._wait_of) != waiting:
            raise RuntimeError("those that wait for shared work are not those that are parked")
        if not self._waiting_for.keys() <= self._claimant_of.keys():
            raise RuntimeError("somebody waits for a block that nobody computes")

    def _wake(self, digests: Iterable[bytes]) -> list[Sequence]:
        if not self._waiting_for:
            return []
        woken = [each for digest in digests for each in self._waiting_for.pop(digest, ())]
        for sequence in woken:
            del self._wait_of[sequence]
        return woken
