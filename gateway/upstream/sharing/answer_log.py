"""What an upstream has sent of one answer so far, in bounded memory, for several readers."""

from dataclasses import dataclass

PIECE_BYTES = 100
"""Memory of a piece beside its own bytes."""

READ_BYTES = 65_536
"""What a follower gets at once, but for a larger piece."""

WINDOW_BYTES = 2**20
"""How far an upstream may be ahead of the fastest reader. With it, unread answers do not take
the memory of all that an upstream can send."""


@dataclass(slots=True)
class LogMemory:
    """The memory of all logs of a table. Above its bound, long ones keep nothing to join."""

    most: int
    held: int = 0


class TooSlowError(Exception):
    """The follower wants pieces that were dropped."""


class AnswerLog:
    """What the upstream has sent so far, for followers that join late or fall behind.

    Positions count the pieces. Each piece has two forms: as received, and without the usage that
    only some clients requested. Memory is bounded: above its bound a log keeps only the newest
    pieces. Then no reader can begin, and a follower that needs a dropped piece is too slow.
    """

    def __init__(self, max_bytes: int, memory: LogMemory) -> None:
        self.memory = memory
        self.end = 0
        """Number of pieces received; the position of a follower that has read everything."""
        self.overflown = False
        self.size = self.total = 0
        """Bytes held, and bytes that came."""
        self._max_bytes = max_bytes
        self._pieces: list[tuple[bytes, bytes]] = []
        self._joined = ((0, 0, False), b"")

    def fits(self, full: bytes, without_usage: bytes) -> bool:
        """Tell whether a piece can be added without dropping any, now or before."""
        size = self.size + _cost(full, without_usage)
        too_many = size > WINDOW_BYTES and self.memory.held > self.memory.most
        return not (self.overflown or too_many or size > self._max_bytes)

    def offer(self, full: bytes, without_usage: bytes) -> bool:
        """Add a piece that fits; tell whether it did."""
        if not self.fits(full, without_usage):
            return False
        self.append(full, without_usage)
        return True

    def append(self, full: bytes, without_usage: bytes) -> None:
        """Add a piece in both its forms, which may be the same object."""
        self._pieces.append((full, without_usage))
        cost = _cost(full, without_usage)
        self.size += cost
        self.total += cost
        self.memory.held += cost
        self.end += 1
        if self.size > self._max_bytes:
            self.overflown = True
            self._drop_oldest()

    def since(self, position: int, *, without_usage: bool) -> tuple[bytes, int]:
        """Return some pieces from ``position`` on, joined, and the position behind them.

        Raises TooSlowError.
        """
        start = position - (self.end - len(self._pieces))
        if start < 0:
            raise TooSlowError
        form = 1 if without_usage else 0
        if len(self._pieces) - start == 1:
            return self._pieces[start][form], self.end
        stop, size = start, 0
        while stop < len(self._pieces) and size < READ_BYTES:
            size += len(self._pieces[stop][form])
            stop += 1
        # Followers that wait together ask for the same: it is joined once for all of them.
        wanted = (position, position + stop - start, without_usage)
        if self._joined[0] != wanted:
            self._joined = (wanted, b"".join([piece[form] for piece in self._pieces[start:stop]]))
        return self._joined[1], wanted[1]

    def extend(self, body: bytes) -> None:
        """Add a body that is larger than the bound, in pieces; none is dropped for its size."""
        self._max_bytes = max(self._max_bytes, 3 * len(body))
        for start in range(0, len(body), READ_BYTES):
            piece = body[start : start + READ_BYTES]
            self.append(piece, piece)

    def forget(self, position: int) -> None:
        """Drop what stands before a position: nobody needs it, and no reader can begin any more."""
        self._drop(position - (self.end - len(self._pieces)))

    def _drop_oldest(self) -> None:
        """Drop half of what may be held, so that the cost per piece stays small."""
        dropped, size = 0, self.size
        while dropped < len(self._pieces) - 1 and size > self._max_bytes // 2:
            size -= _cost(*self._pieces[dropped])
            dropped += 1
        self._drop(dropped)

    def _drop(self, number: int) -> None:
        if number <= 0:
            return
        freed = sum(_cost(*piece) for piece in self._pieces[:number])
        self.size -= freed
        self.memory.held -= freed
        self.overflown = True
        del self._pieces[:number]
        self._joined = ((0, 0, False), b"")


def _cost(full: bytes, without_usage: bytes) -> int:
    return PIECE_BYTES + len(full) + (0 if without_usage is full else len(without_usage))
