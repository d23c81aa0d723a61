"""A Bloom filter of the keys in the file, so that no read is made for a key that was never stored.

It holds no key that it was not told, and cannot forget one. So it answers "no" only where that is
sure, and grows less useful as entries leave: its owner fills a new one once it is full.
"""

BITS_A_KEY = 16
"""At this share one key in 300 is taken for one that is there, which costs a read."""

FEWEST_BITS = 1 << 20
MOST_BITS = 1 << 25
"""4 MiB. With more than two million keys, reads for unknown keys become more frequent."""

_PROBES = 3


class KeyFilter:
    """Which keys may be there."""

    def __init__(self, keys: int) -> None:
        bits = FEWEST_BITS
        while bits < min(2 * keys * BITS_A_KEY, MOST_BITS):
            bits *= 2
        self._bits = bytearray(bits // 8)
        self._mask = bits - 1
        self._left = max(bits // BITS_A_KEY, 2 * keys)
        self.is_full = False
        """Whether it was told more keys than it has room for."""

    def add(self, key: bytes) -> None:
        """Note that the key may be there."""
        self._left -= 1
        self.is_full = self._left < 0
        # Python's hash of bytes is keyed by process: nobody can choose keys that collide.
        place = hash(key)
        step = place >> 32 | 1
        for _ in range(_PROBES):
            at = place & self._mask
            self._bits[at >> 3] |= 1 << (at & 7)
            place += step

    def __contains__(self, key: bytes) -> bool:
        place = hash(key)
        step = place >> 32 | 1
        bits, mask = self._bits, self._mask
        for _ in range(_PROBES):
            at = place & mask
            if not bits[at >> 3] >> (at & 7) & 1:
                return False
            place += step
        return True
