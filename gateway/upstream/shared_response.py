"""The response of one upstream call while it arrives, and the table of the calls to join.

One task writes a response, many followers read it. A follower is the client that caused the call,
or one with an identical miss.

Laws:
- Under one slot at most one flight can be joined, so identical misses that may follow make one
  call. A flight without readers is cancelled at once, unless its answer is complete: throwing that
  away would save nothing. Only for the usage of a holder with limits, it is read on for a while.
- The table knows no answers and does no I/O; ``now`` is an argument.
- A task that waits here is woken by the next piece or by the end, and an end always comes.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.streaming.decode import StreamedAnswer, failure_event
from gateway.protocol.tokens import PromptUsage, prompt_usage
from gateway.telemetry.observation import CallFacts, Observation
from gateway.upstream.request import Exchange, Served

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""For how long a stream that its client has left is read on to its last word."""
USAGE_SECONDS = 30.0
"""From there to its usage."""

PIECE_BYTES = 100
"""Memory of a piece beside its own bytes."""

READ_BYTES = 65_536
"""What a follower gets at once, but for a larger piece."""

WINDOW_BYTES = 2**20
"""How far an upstream may be ahead of the fastest reader. With it, unread answers do not take
the memory of all that an upstream can send."""


class Flight:
    """One upstream call, from its beginning until it can no longer be joined.

    ``slot`` is what its followers share with it, None if it has none. An ``attended`` one is
    there for its readers and ends with the last of them.
    """

    complete = False
    """Whether the upstream has sent all of the answer."""
    landed_at: float | None = None
    """Since when a lookup finds the entry, if there is one."""
    held_bytes = 0

    def __init__(self, slot: Hashable | None, *, attended: bool = True) -> None:
        self.slot = slot
        self.attended = attended
        self.reading = 1 if attended else 0
        """Number of readers of the answer, with the leader."""


@dataclass(slots=True)
class LogMemory:
    """The memory of all logs of a table. Above its bound, long ones keep nothing to join."""

    most: int
    held: int = 0


F = TypeVar("F", bound=Flight)


class FlightTable(Generic[F]):
    """All flights that can be joined, by slot.

    A flight that landed stays joinable for ``linger`` seconds, but only for requests that came
    before it landed: they looked for the entry too early to find it. If no request is looking for
    an entry, the flight ends at once. ``linger_bytes`` bounds what such flights hold, and
    ``log_bytes`` what those under way keep for requests that join.
    """

    def __init__(self, *, linger: float, linger_bytes: int, log_bytes: int = 64 * 2**20) -> None:
        self._linger, self._linger_bytes = linger, linger_bytes
        self.memory = LogMemory(log_bytes)
        self.looking = 0
        """Number of requests that are looked up, and have joined no flight yet."""
        self._joinable: dict[Hashable, F] = {}
        self.landed: OrderedDict[F, None] = OrderedDict()
        self._landed_bytes = 0

    def lead(self, flight: F) -> None:
        """Begin a flight. It takes its slot over: the next request follows the newest call."""
        if flight.slot is None:
            return
        if (before := self._joinable.get(flight.slot)) is not None:
            self.close(before)
        self._joinable[flight.slot] = flight

    def follow(self, slot: Hashable, *, most: int, since: float) -> F | None:
        """Join the flight under ``slot``, or return None if the caller must lead one.

        ``most`` bounds the readers beside the leader; ``since`` is when the request came.
        """
        flight = self._joinable.get(slot)
        if flight is None or flight.reading > most:
            return None
        if flight.landed_at is not None and flight.landed_at < since:
            return None
        flight.reading += 1
        return flight

    def under_way(self, slot: Hashable) -> F | None:
        """Return the flight under this slot that has yet to land."""
        flight = self._joinable.get(slot)
        return flight if flight is not None and flight.landed_at is None else None

    def leave(self, flight: F) -> bool:
        """Take one reader away; tell whether the call must now be cancelled."""
        flight.reading -= 1
        if flight.reading or flight.complete or not flight.attended:
            return False
        self.close(flight)
        return True

    def close(self, flight: F) -> None:
        """Let no more readers join; those there go on. Doing it again does nothing."""
        if flight.slot is not None and self._joinable.get(flight.slot) is flight:
            del self._joinable[flight.slot]
        if flight in self.landed:
            del self.landed[flight]
            self._landed_bytes -= flight.held_bytes

    def land(self, flight: F, *, size: int, now: float) -> None:
        """Note that the whole answer, of ``size`` bytes, is there and the entry can be hit."""
        flight.complete = True
        if flight.landed_at is not None:
            return
        flight.landed_at = now
        if flight.slot is None or self._joinable.get(flight.slot) is not flight:
            return
        if not self.looking:
            del self._joinable[flight.slot]
            return
        flight.held_bytes = size
        self.landed[flight] = None
        self._landed_bytes += size
        while self._landed_bytes > self._linger_bytes:
            self.close(next(iter(self.landed)))

    def forget(self, now: float) -> float | None:
        """Close what landed too long ago; return when to do so again, None if nothing lingers."""
        while self.landed:
            flight = next(iter(self.landed))
            until = (flight.landed_at or 0.0) + self._linger
            if until > now:
                return until
            self.close(flight)
        return None


class TooSlowError(Exception):
    """The follower wants pieces that were dropped."""


class Holder(Protocol):
    """Counts what is held because clients do not read it, and may ``abort`` the slowest."""

    def hold(self, client: "SharedResponse", *, size: int) -> None:
        """Count a response, in place of what was counted for it before."""

    def release(self, client: "SharedResponse") -> None:
        """Count it no more."""


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


def _wake(event: asyncio.Event) -> None:
    """Wake the tasks that wait for it now; tasks that come later wait for the next time."""
    event.set()
    event.clear()


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the upstream's reply, and how its body comes.

    ``body`` is a plain reply's, None if it comes in pieces. ``events`` says that the pieces are
    events, ``usage`` that the upstream was asked for usage among them.
    """

    status: int
    fields: Fields
    body: bytes | None = None
    events: bool = False
    usage: bool = False


class SharedResponse(Flight):
    """What has come of the response so far. Only the call writes; followers read and wait.

    ``leader`` is the request that is forwarded.
    """

    task: asyncio.Task[None] | None = None
    """The call, while it runs for its followers."""
    head: Head | None = None
    over = False
    """Whether nothing more will come."""
    outgrown = False
    """Whether it is too large to be held: a follower that joins now cannot have it."""
    fault: Exception | None = None
    """Why the response broke off, or never began."""
    error: bytes | None = None
    """The JSON of the error event that ended the upstream's stream."""
    result: bytes | None = None
    """The plain form of a stream that ended well and is understood."""
    elsewhere = False
    """Whether another process made the call, and this is the entry it stored."""
    stored = False
    declined: Reason | None = None
    served: Served | None = None
    upstream_started: float | None = None
    upstream_head: float | None = None
    stream: StreamedAnswer | None = None
    """What has come of a stream; it is ``ended`` once its last word has, its usage may follow."""
    received = 0
    """Bytes of the stream."""
    left: Observation | None = None
    """The last request that left, if the call goes on only for its usage."""
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        table: "FlightTable[SharedResponse]",
        slot: Hashable | None,
        leader: Exchange,
        max_bytes: int,
        *,
        attended: bool = True,
        unread: Holder | None = None,
    ) -> None:
        super().__init__(slot, attended=attended)
        self._unread = unread
        self._is_held = False
        self.facts = CallFacts()
        self.set_leader(leader)
        self.followers: dict[Exchange, int] = {}
        """Each with the position up to which it has read."""
        self.log = AnswerLog(max_bytes, table.memory)
        self._caught_up = 0
        """Bytes that had come when a reader had read everything."""
        self.wanted_whole = False
        """Whether a follower waits for all of a stream: then it goes on with or without readers."""
        self.rendered: dict[bool, bytes] = {}
        """A plain answer as a stream, without and with usage, once a client asked for it."""
        self.news = asyncio.Event()
        """Pulses with the head, each piece and the end, and where the call waits for readers."""
        self.settled = asyncio.Event()
        """Set with the end, or once the answer has outgrown the log."""
        self._waits_for_readers = False
        self._table = table
        table.lead(self)

    def set_leader(self, exchange: Exchange) -> None:
        """Note the form of the request that is sent, and tell the sinks how it was rewritten."""
        self.leader, observation = exchange, exchange.observation
        observation.rewrites = exchange.rewrites
        observation.not_rewritten = exchange.not_rewritten
        observation.compression = exchange.compression

    def _billed_request(self) -> Observation | None:
        """Return the first request: the call's tokens and its stored entry count for it."""
        if not self.attended:
            return self.leader.observation
        first = next(iter(self.followers), None)
        return first.observation if first is not None else self.left

    def take_over(self, head: Head, usage: PromptUsage) -> None:
        """Take the entry that another process stored, in place of a call."""
        self.elsewhere = self.complete = True
        self.facts.usage = usage
        self.open(head)
        self.close()

    def open(self, head: Head) -> None:
        """Note the head."""
        self.head = head
        _wake(self.news)

    def add_at_once(self, full: bytes, without_usage: bytes) -> bool:
        """Note the next piece of the body, in both its forms; False if it must wait for readers."""
        if not (full or without_usage):
            return True
        ahead = self.log.total - self._caught_up
        if ahead > WINDOW_BYTES and self.followers and not self.wanted_whole:
            return False
        if not self.log.fits(full, without_usage):
            return False
        self.log.append(full, without_usage)
        _wake(self.news)
        return True

    async def add(self, full: bytes, without_usage: bytes) -> None:
        """Note the next piece. What nobody reads, or has outgrown the log, waits for a reader."""
        if self.add_at_once(full, without_usage):
            return
        if not self.log.fits(full, without_usage):
            self._outgrow()
        self._hold()
        end = self.log.end
        while (
            self.followers
            and (self.outgrown or not self.wanted_whole)
            and all(position < end for position in self.followers.values())
        ):
            self._waits_for_readers = True
            await self.news.wait()
        self._waits_for_readers = False
        if self.outgrown:
            self.log.forget(min(self.followers.values(), default=end))
        self.log.append(full, without_usage)
        self._hold()
        _wake(self.news)

    def add_long(self, body: bytes) -> None:
        """Note the beginning of a plain reply that is too large to be held for others."""
        self._outgrow()
        self.log.extend(body)
        self._hold()
        _wake(self.news)

    def _outgrow(self) -> None:
        self.outgrown = True
        self._table.close(self)
        self.settled.set()

    def _hold(self) -> None:
        """Count what is held for readers, where that is much."""
        if self._unread is None:
            return
        self._is_held = self.log.size > WINDOW_BYTES
        if self._is_held:
            self._unread.hold(self, size=self.log.size)
        else:
            self._unread.release(self)

    def abort(self) -> None:
        """Let go of what nobody reads: the readers are too slow."""
        self.log.forget(self.log.end)
        if self.task is not None:
            self.task.cancel()

    def want_whole(self) -> None:
        """Note that a follower waits for all of a stream."""
        self.wanted_whole = True
        self._wake_call()

    def finish(self, usage: PromptUsage) -> None:
        """Note that the upstream has sent everything, and its token usage."""
        self.complete = True
        facts = self.facts
        facts.started, facts.usage = self.upstream_started, usage
        facts.ended = self.leader.observation.clock()
        if (observation := self._billed_request()) is not None:
            observation.usage, observation.call = usage, facts

    def land(self, status: int, now: float, *, size: int = 0, stored: bool = False) -> None:
        """Note that the answer is complete, and its entry can be hit if it is ``stored``.

        ``size`` counts the bytes of a plain reply's body.
        """
        if stored:
            self.stored = True
            if (observation := self._billed_request()) is not None:
                observation.stored = True
        if status == HTTPStatus.OK:
            self._table.land(self, size=self.log.size + size, now=now)

    def decline(self, reason: Reason) -> None:
        """Note why the answer is not stored."""
        self.declined = reason
        if (observation := self._billed_request()) is None:
            return
        observation.declined = reason
        # The head of a stream is sent before this is known. A store that fails has its own line.
        if observation.streamed and reason is not Reason.STORE_FAULT:
            text = "%s rule=%s: a streamed answer was not stored: %s"
            log.info(text, observation.endpoint, observation.rule, reason)

    def close(self, fault: Exception | None = None) -> None:
        """Note the end; a fault goes out as the last event. A second call changes nothing."""
        if self.over:
            return
        if fault is not None:  # its frames have this response
            fault.__cause__ = fault.__context__ = fault.__traceback__ = None
        self.fault, self.over = fault, True
        if self._is_held and self._unread is not None:
            self._unread.release(self)
        if (observation := self._billed_request()) is not None and self.stream is not None:
            observation.usage_so_far = prompt_usage(self.stream.usage)
            observation.produced_bytes = self.received
        streams = self.head is not None and self.head.events
        if fault is not None and streams and self.error is None:
            event = failure_event(fault, self.leader.request.endpoint.value)
            self.log.append(event, event)
        if self.landed_at is None:
            self._table.close(self)
            self._give_back()
        self.log.memory.held -= self.log.size
        self.log.memory = LogMemory(0)  # nothing more comes
        self.settled.set()
        _wake(self.news)
        if self._timer is not None:
            self._timer.cancel()
        if self.left is not None:
            self.left.settle()

    def _give_back(self) -> None:
        """Drop what nobody can have any more, now and not when a collector comes by."""
        if self.stream is not None:
            self.stream.give_up()
        if not self.followers:
            self.log.forget(self.log.end)

    def read(self, follower: Exchange, *, without_usage: bool) -> bytes:
        """Return what is new to a follower, nothing if nothing is. Raises TooSlowError."""
        position = self.followers[follower]
        if position == self.log.end:
            return b""
        piece, position = self.log.since(position, without_usage=without_usage)
        self.followers[follower] = position
        if position == self.log.end:
            self._caught_up = self.log.total
        self._wake_call()
        return piece

    def leave(self, follower: Exchange) -> None:
        """Remove a follower. The call then counts for the next one, and ends with the last.

        If the holder of a key with limits has left a stream, the call goes on for a while: its
        usage comes last, and with hidden reasoning it is more than all that was sent.
        """
        if self.followers.pop(follower, None) is None:
            return
        observation = follower.observation
        if observation.billed and self.followers and not (self.complete or self.over):
            observation.billed = False
            next(iter(self.followers)).observation.billed = True
        self._wake_call()
        if not self._table.leave(self) or self.task is None:
            return
        if follower.needs_usage and self.stream is not None and not self.over:
            observation.pending, self.left = True, observation
            self._stop_later(self.task, self.stream)
        else:
            self.task.cancel()

    def _stop_later(self, task: asyncio.Task[None], stream: StreamedAnswer) -> None:
        """Cancel the call in a while, or later if its last word comes meanwhile."""
        had_ended = stream.ended

        def stop() -> None:
            if stream.ended is had_ended:
                task.cancel()
            else:
                self._stop_later(task, stream)

        seconds = USAGE_SECONDS if had_ended else ANSWER_SECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds, stop)

    def _wake_call(self) -> None:
        """Wake the call if it waits for its readers: once, for the others have no need of it."""
        if self._waits_for_readers:
            self._waits_for_readers = False
            _wake(self.news)

    def raise_fault(self) -> None:
        """Raise the fault, if any, as a new exception: many followers raise it at once."""
        if isinstance(self.fault, UpstreamError):
            raise self.fault.again()
        if self.fault is not None:
            raise RuntimeError("the upstream call failed") from self.fault
