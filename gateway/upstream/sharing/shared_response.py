"""The response of one upstream call while it arrives: one task writes it, many followers read it.

A follower is the client that caused the call, or one with an identical miss.

Laws:
- The call alone writes, in this order: ``began``, ``add`` for each piece, ``completed``,
  ``landed``, ``end``. A reply that is not streamed has no ``began`` and no pieces. ``took_over``
  stands for all of them if another process made the call. ``end`` may come at any time.
- A task that waits here is woken by the next piece or by the end, and an end always comes.
- One request pays for the call: its tokens and its stored entry count for that request alone. If
  that request leaves before all of the answer has come, the next follower pays.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.streaming.decode import Piece, StreamedAnswer, failure_event
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage
from gateway.telemetry.observation import CallFacts, CallShare
from gateway.upstream.request import Exchange, Served
from gateway.upstream.sharing.answer_log import WINDOW_BYTES, AnswerLog, LogMemory
from gateway.upstream.sharing.flight_table import Flight, FlightTable

ANSWER_SECONDS = 2.0
"""For how long a stream that its client has left is read on to its last word."""
USAGE_SECONDS = 30.0
"""From there to its usage."""


class Holder(Protocol):
    """Counts what is held because clients do not read it, and may ``abort`` the slowest."""

    def hold(self, client: "SharedResponse", *, size: int) -> None:
        """Count a response, in place of what was counted for it before."""

    def release(self, client: "SharedResponse") -> None:
        """Count it no more."""


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


class CallResult(NamedTuple):
    """The end of a call.

    ``sent`` is the request in the form that was answered. A reply that is not streamed comes whole:
    then ``head`` has its body. ``plain`` is the plain form of a stream that ended well and is
    understood. ``fault`` is why the response broke off, or never began.
    """

    sent: Exchange
    served: Served | None = None
    head: Head | None = None
    plain: bytes | None = None
    fault: Exception | None = None


def reason_of(fault: Exception) -> Reason:
    """Return why a call failed."""
    return fault.reason if isinstance(fault, UpstreamError) else Reason.INTERNAL


def _wake(event: asyncio.Event) -> None:
    """Wake the tasks that wait for it now; tasks that come later wait for the next time."""
    event.set()
    event.clear()


class SharedResponse(Flight):
    """What has come of the response so far. Only the call writes; followers read and wait.

    ``leader`` is the request that is forwarded.
    """

    task: asyncio.Task[Any] | None = None
    """The call, while it runs for its followers."""
    head: Head | None = None
    over = False
    """Whether nothing more will come."""
    outgrown = False
    """Whether it is too large to be held: a follower that joins now cannot have it."""
    fault: Exception | None = None
    plain: bytes | None = None
    """Both as ``CallResult`` has them."""
    elsewhere = False
    """Whether another process made the call, and this is the entry it stored."""
    served: Served | None = None
    stream: StreamedAnswer | None = None
    """What has come of a stream; it is ``ended`` once its last word has, its usage may follow."""
    left: Exchange | None = None
    """The last request that left, if the call goes on only for its usage."""
    on_over: Callable[[], None] | None = None
    """Called once such a call is over."""
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
        self.leader = leader
        self._payer: Exchange | None = leader
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

    # What the call writes.

    def began(
        self, head: Head, sent: Exchange, served: Served, stream: StreamedAnswer | None = None
    ) -> None:
        """Note the head of a reply that comes in pieces, and the request that it answers."""
        self.head, self.leader, self.served, self.stream = head, sent, served, stream
        _wake(self.news)

    def add(self, piece: Piece) -> Coroutine[Any, Any, None] | None:
        """Note the next piece of the body, in both its forms.

        A piece that nobody reads, or that has outgrown the log, waits for a reader. Then return
        what the call must await.
        """
        full, without_usage = piece
        if not (full or without_usage):
            return None
        ahead = self.log.total - self._caught_up
        if ahead > WINDOW_BYTES and self.followers and not self.wanted_whole:
            return self._add_when_read(full, without_usage)
        if not self.log.offer(full, without_usage):
            return self._add_when_read(full, without_usage)
        _wake(self.news)
        return None

    def completed(self, usage: PromptUsage, now: float) -> None:
        """Note that the upstream has sent everything: from here on the call is not cancelled."""
        self.complete = True
        self.facts.usage, self.facts.ended = usage, now

    def landed(self, now: float, *, size: int = 0) -> None:
        """Note that a lookup finds the entry, if there is one.

        ``size`` counts the bytes of a reply that is not streamed.
        """
        self._table.land(self, size=self.log.size + size, now=now)

    def took_over(self, head: Head, usage: PromptUsage) -> None:
        """Take the entry that another process stored, in place of a call."""
        self.elsewhere = self.complete = True
        self.facts.usage = usage
        self.end(CallResult(self.leader, head=head))

    def end(self, result: CallResult) -> None:
        """Note the end; a fault goes out as the last event. A second call changes nothing."""
        if self.over:
            return
        self.leader, fault = result.sent, result.fault
        if result.head is not None:
            self.head, self.served = result.head, result.served
        if fault is not None:  # its frames have this response
            fault.__cause__ = fault.__context__ = fault.__traceback__ = None
        self.plain, self.fault, self.over = result.plain, fault, True
        if self._is_held and self._unread is not None:
            self._unread.release(self)
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
        if self.on_over is not None:
            self.on_over()

    async def _add_when_read(self, full: bytes, without_usage: bytes) -> None:
        if not self.log.fits(full, without_usage):
            self.outgrown = True
            self._table.close(self)
            self.settled.set()
            if self.stream is not None:
                self.stream.give_up()
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
        if self.stream is None:
            self.log.extend(full)
        else:
            self.log.append(full, without_usage)
        self._hold()
        _wake(self.news)

    def _hold(self) -> None:
        """Count what is held for readers, where that is much."""
        if self._unread is None:
            return
        self._is_held = self.log.size > WINDOW_BYTES
        if self._is_held:
            self._unread.hold(self, size=self.log.size)
        else:
            self._unread.release(self)

    def _give_back(self) -> None:
        """Drop what nobody can have any more, now and not when a collector comes by."""
        if self.stream is not None:
            self.stream.give_up()
        if not self.followers:
            self.log.forget(self.log.end)

    # What followers read, and how they leave.

    @property
    def error(self) -> bytes | None:
        """The JSON of the error event that ended the upstream's stream."""
        return None if self.stream is None else self.stream.error

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

    def want_whole(self) -> None:
        """Note that a follower waits for all of a stream."""
        self.wanted_whole = True
        self._wake_call()

    def share(self, exchange: Exchange, *, leads: bool) -> CallShare:
        """Return what telemetry says of the call for one request, so far."""
        facts, stream, sent = self.facts, self.stream, self.leader
        pays = exchange is self._payer and not self.elsewhere
        share = CallShare(followed=facts)
        if leads:
            share = CallShare(
                started=facts.started,
                head=facts.head,
                upstream=facts.upstream,
                tried=facts.tried,
                followed=facts if self.elsewhere else None,
                rewrites=sent.rewrites,
                not_rewritten=sent.not_rewritten,
                compression=sent.compression,
            )
        if not pays:
            return share
        so_far = NOTHING_SAID
        if stream is not None and facts.ended is None:
            so_far = prompt_usage(stream.usage)
        return share._replace(
            pays=True,
            usage=facts.usage,
            usage_so_far=so_far,
            produced_bytes=facts.received,
            stored=facts.stored,
            declined=facts.declined,
            whole=facts if facts.ended is not None else None,
        )

    def leave(self, follower: Exchange) -> None:
        """Remove a follower. The call then counts for the next one, and ends with the last.

        If the holder of a key with limits has left a stream, the call goes on for a while: its
        usage comes last, and with hidden reasoning it is more than all that was sent.
        """
        if self.followers.pop(follower, None) is None:
            return
        if self._payer is follower and self.followers and not (self.complete or self.over):
            self._payer = next(iter(self.followers))
        self._wake_call()
        if not self._table.leave(self) or self.task is None:
            return
        if follower.request.needs_usage and self.stream is not None and not self.over:
            self.left = follower
            self._stop_later(self.task, self.stream)
        else:
            self.task.cancel()

    def abort(self) -> None:
        """Let go of what nobody reads: the readers are too slow."""
        self.log.forget(self.log.end)
        if self.task is not None:
            self.task.cancel()

    def _stop_later(self, task: asyncio.Task[Any], stream: StreamedAnswer) -> None:
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

    def fault_again(self) -> Exception:
        """Return the fault as a new exception: many followers raise it at once."""
        if isinstance(self.fault, UpstreamError):
            return self.fault.again()
        defect = RuntimeError("the upstream call failed")
        defect.__cause__ = self.fault
        return defect
