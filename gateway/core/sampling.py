"""Which of the hits are also asked upstream: a share of them, drawn without chance.

One owner, who counts: the same hits in the same order draw the same.
"""

from hashlib import blake2b

_RANGE = 2**64


class Sampling:
    """Draws among the hits of one process."""

    def __init__(self) -> None:
        self._count = 0

    def draws(self, key: bytes, share: float) -> bool:
        """Tell whether this hit, of the entry under ``key``, is one of the share."""
        if share <= 0:
            return False
        self._count += 1
        digest = blake2b(self._count.to_bytes(8), key=key[:64], digest_size=8).digest()
        return int.from_bytes(digest) < share * _RANGE
