"""What the upstream has sent so far, for readers that come late or fall behind.

Each piece has two forms: as it came, and without the usage that only some readers asked for. Law:
memory is bounded. A log that outgrew its bound keeps only the newest pieces: nobody can begin to
read it, and a reader that needs what was forgotten is too slow.
"""

PIECE_BYTES = 100
"""What a piece costs beside its own bytes."""


class TooSlowError(Exception):
    """The reader wants pieces that were forgotten."""


class AnswerLog:
    """Pieces in the order they came; positions count them from the beginning."""

    def __init__(self, max_bytes: int) -> None:
        self.end = 0
        """Pieces that ever came; the position of a reader that has read everything."""
        self.overflown = False
        self._max_bytes = max_bytes
        self._size = 0
        self._full: list[bytes] = []
        self._bare: list[bytes] = []
        self._joined: tuple[int, int, bool, bytes] = (0, 0, False, b"")

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._size

    def fits(self, full: bytes, bare: bytes) -> bool:
        """Tell whether a piece can be added and nothing is forgotten, now or before."""
        return not self.overflown and self._size + _cost(full, bare) <= self._max_bytes

    def append(self, full: bytes, bare: bytes) -> None:
        """Add a piece in both its forms, which may be the same object."""
        self._full.append(full)
        self._bare.append(bare)
        self._size += _cost(full, bare)
        self.end += 1
        if self._size > self._max_bytes:
            self.overflown = True
            self._forget()

    def since(self, position: int, *, bare: bool) -> bytes:
        """Return what came from ``position`` to the end in one. Raises TooSlowError."""
        start = position - (self.end - len(self._full))
        if start < 0:
            raise TooSlowError
        pieces = self._bare if bare else self._full
        if len(pieces) - start == 1:
            return pieces[start]
        # Readers that wait together ask for the same: it is joined once for all of them.
        known_from, known_to, known_bare, joined = self._joined
        if (known_from, known_to, known_bare) != (position, self.end, bare):
            joined = b"".join(pieces[start:])
            self._joined = (position, self.end, bare, joined)
        return joined

    def _forget(self) -> None:
        """Drop the oldest pieces: half of what may be held, so that it costs little per piece."""
        dropped = 0
        for full, bare in zip(self._full[:-1], self._bare[:-1], strict=True):
            if self._size <= self._max_bytes // 2:
                break
            self._size -= _cost(full, bare)
            dropped += 1
        del self._full[:dropped]
        del self._bare[:dropped]
        self._joined = (0, 0, False, b"")


def _cost(full: bytes, bare: bytes) -> int:
    return PIECE_BYTES + len(full) + (0 if bare is full else len(bare))
