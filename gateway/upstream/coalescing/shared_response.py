"""The answer of one upstream call while it arrives: one task writes it, any number of readers read.

Law: whoever waits here is woken by the answer's next piece or by its end, and an end always comes.
One reader's cancellation touches no other.
"""

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from http import HTTPStatus

from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields
from gateway.protocol.reasons import Reason
from gateway.protocol.streaming.stream import failure_event
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.flight import Flight, FlightTable
from gateway.upstream.exchange import Exchange
from gateway.upstream.request import Served

PIECE_BYTES = 100
"""What a piece costs beside its own bytes."""


class TooSlowError(Exception):
    """The reader wants pieces that were forgotten."""


class AnswerLog:
    """What the upstream has sent so far, for readers that come late or fall behind.

    Positions count the pieces. Each has two forms: as it came, and without the usage that only
    some readers asked for. Memory is bounded: a log that outgrew its bound keeps only the newest
    pieces. Nobody can begin to read it, and a reader that needs what was forgotten is too slow.
    """

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


class Bell:
    """Wakes all who wait. Each waits on a future of its own, so that one can be cancelled."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def rung(self) -> None:
        """Wait for the next time."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        except asyncio.CancelledError:
            self._waiting.pop(waiting, None)
            raise

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the upstream's reply, and how its body comes.

    ``whole`` is a plain reply's body, None where it comes piece by piece; ``events`` says that
    the pieces are events, and ``usage`` that the upstream was asked for usage among them.
    """

    status: int
    fields: Fields
    whole: bytes | None = None
    events: bool = False
    usage: bool = False


@dataclass(slots=True, eq=False)
class Place:
    """How far one reader has come, and what is observed of its request."""

    seen: Observation
    position: int = 0


class LiveAnswer(Flight):
    """What is known of the answer so far. Only the call writes; readers read and wait.

    ``leader`` is the request that is forwarded.
    """

    task: asyncio.Task[None] | None = None
    """The call, while it is there for its readers."""
    head: Head | None = None
    over: bool = False
    """Whether nothing more will come."""
    outgrown: bool = False
    """Whether it is too large to be held: who has not read on its way cannot have it."""
    fault: Exception | None = None
    """Why the answer ended before its end, or never began."""
    error: bytes | None = None
    """What the upstream said, as JSON, in the error event that ended its stream."""
    result: bytes | None = None
    """The plain form of a streamed answer that ended cleanly and is understood."""
    elsewhere: bool = False
    """Whether another process made the call, and this is what it stored."""
    stored: bool = False
    declined: Reason | None = None
    served: Served | None = None
    upstream_started: float | None = None
    upstream_head: float | None = None

    def __init__(
        self,
        table: "FlightTable[LiveAnswer]",
        slot: Hashable | None,
        leader: Exchange,
        max_bytes: int,
        *,
        attended: bool = True,
    ) -> None:
        super().__init__(slot, attended=attended)
        self.leader = leader
        self.places: dict[Place, None] = {}
        self.log = AnswerLog(max_bytes)
        self.rendered: dict[bool, bytes] = {}
        """A plain answer as a stream, without usage and with it, once somebody asked."""
        self._table = table
        self._news = Bell()
        self._end = Bell()
        self._taken = Bell()

    @property
    def started(self) -> bool:
        """Tell whether there is something for a reader to have."""
        whole = self.head is not None and self.head.whole is not None
        return self.over or whole or self.log.end > 0

    @property
    def payer(self) -> Observation | None:
        """Whose request the call's tokens and the fate of its answer are counted to: the first."""
        if not self.attended:
            return self.leader.seen
        place = next(iter(self.places), None)
        return place.seen if place is not None else None

    def open(self, head: Head) -> None:
        """Note the head."""
        self.head = head
        self._news.ring()

    async def add(self, full: bytes, bare: bytes) -> None:
        """Note the next piece of the body, in both its forms.

        An answer that outgrew the log goes on at the pace of its fastest reader.
        """
        if not (full or bare):
            return
        if not self.log.fits(full, bare):
            self.outgrown = True
            self._table.close(self)
            self._end.ring()
            while self.places and all(at.position < self.log.end for at in self.places):
                await self._taken.rung()
        self.log.append(full, bare)
        self._news.ring()

    def land(self, now: float) -> None:
        """Note that all of the answer is here, and its entry can be hit if there is one."""
        if self.head is not None and self.head.status == HTTPStatus.OK:
            whole = self.head.whole or b""
            self._table.land(self, size=self.log.size + len(whole), now=now)

    def close(self, fault: Exception | None = None) -> None:
        """Note the end; a stream is told of a fault. A second one changes nothing."""
        if self.over:
            return
        self.fault, self.over = fault, True
        streams = self.head is not None and self.head.events
        if fault is not None and streams and self.error is None:
            event = failure_event(fault)
            self.log.append(event, event)
        if self.landed_at is None:
            self._table.close(self)
        self._news.ring()
        self._end.ring()

    def join(self, seen: Observation) -> Place:
        """Add a reader, whom the table has let in."""
        place = Place(seen)
        self.places[place] = None
        return place

    def take(self, place: Place, *, bare: bool) -> bytes:
        """Return what is new to a reader, nothing where nothing is. Raises TooSlowError."""
        if place.position == self.log.end:
            return b""
        piece = self.log.since(place.position, bare=bare)
        place.position = self.log.end
        self._taken.ring()
        return piece

    def leave(self, place: Place) -> None:
        """Forget a reader. The call ends with the last one."""
        if place not in self.places:
            return
        del self.places[place]
        self._taken.ring()
        if self._table.leave(self) and self.task is not None:
            self.task.cancel()

    async def news(self) -> None:
        """Wait for the head, the next piece or the end. Look first: what was is not told again."""
        await self._news.rung()

    async def end(self) -> None:
        """Wait for the end, or for the answer to become too large to be held."""
        while not (self.over or self.outgrown):
            await self._end.rung()

    def raise_fault(self) -> None:
        """Raise the fault as one reader's own: many raise it at the same time."""
        match self.fault:
            case None:
                pass
            case UpstreamError() as error:
                raise error.again()
            case other:
                raise RuntimeError("the upstream call failed") from other


def _cost(full: bytes, bare: bytes) -> int:
    return PIECE_BYTES + len(full) + (0 if bare is full else len(bare))
