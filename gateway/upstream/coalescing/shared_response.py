"""The response of one upstream call while it arrives: one task writes it, many followers read it.

A follower is the client that caused the call, or one with an identical miss.

Laws:
- A task that waits here is woken by the next piece or by the end, and an end always comes.
- The cancellation of one follower touches no other.
- A follower gets the whole answer in its own wire mode, or the failure. If the response cannot take
  that form, it is told at once, and its request goes to another call.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum, auto
from http import HTTPStatus

from gateway.cache.key import identify
from gateway.prompts.outcome import COMPRESS, REWRITE, format_rewrites
from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.headers import Fields, shared_fields, with_cache_status, without
from gateway.protocol.messages import Reply
from gateway.protocol.stream import failure_event
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.flight import Flight, FlightTable
from gateway.upstream.request import Exchange, Served, note_served

log = logging.getLogger(__name__)

PIECE_BYTES = 100
"""What a piece costs beside its own bytes."""

JSON_TYPE = ("Content-Type", "application/json")
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


class TooSlowError(Exception):
    """The follower wants pieces that were dropped."""


class AnswerLog:
    """What the upstream has sent so far, for followers that join late or fall behind.

    Positions count the pieces. Each has two forms: as it came, and without the usage that only
    some clients asked for. Memory is bounded: above its bound a log keeps only the newest pieces.
    Then nobody can begin to read it, and a follower that needs a dropped piece is too slow.
    """

    def __init__(self, max_bytes: int) -> None:
        self.end = 0
        """Pieces that ever came; the position of a follower that has read everything."""
        self.overflown = False
        self.size = 0
        """Bytes held."""
        self._max_bytes = max_bytes
        self._full: list[bytes] = []
        self._without_usage: list[bytes] = []
        self._joined: tuple[int, int, bool, bytes] = (0, 0, False, b"")

    def fits(self, full: bytes, without_usage: bytes) -> bool:
        """Tell whether a piece can be added without dropping any, now or before."""
        return not self.overflown and self.size + _cost(full, without_usage) <= self._max_bytes

    def append(self, full: bytes, without_usage: bytes) -> None:
        """Add a piece in both its forms, which may be the same object."""
        self._full.append(full)
        self._without_usage.append(without_usage)
        self.size += _cost(full, without_usage)
        self.end += 1
        if self.size > self._max_bytes:
            self.overflown = True
            self._drop_oldest()

    def since(self, position: int, *, without_usage: bool) -> bytes:
        """Return what came from ``position`` to the end, joined. Raises TooSlowError."""
        start = position - (self.end - len(self._full))
        if start < 0:
            raise TooSlowError
        pieces = self._without_usage if without_usage else self._full
        if len(pieces) - start == 1:
            return pieces[start]
        # Followers that wait together ask for the same: it is joined once for all of them.
        known_from, known_to, known_form, joined_pieces = self._joined
        if (known_from, known_to, known_form) != (position, self.end, without_usage):
            joined_pieces = b"".join(pieces[start:])
            self._joined = (position, self.end, without_usage, joined_pieces)
        return joined_pieces

    def _drop_oldest(self) -> None:
        """Drop half of what may be held, so that the cost per piece stays small."""
        dropped = 0
        for full, without_usage in zip(self._full[:-1], self._without_usage[:-1], strict=True):
            if self.size <= self._max_bytes // 2:
                break
            self.size -= _cost(full, without_usage)
            dropped += 1
        del self._full[:dropped]
        del self._without_usage[:dropped]
        self._joined = (0, 0, False, b"")


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
    over: bool = False
    """Whether nothing more will come."""
    outgrown: bool = False
    """Whether it is too large to be held: a follower that joins now cannot have it."""
    fault: Exception | None = None
    """Why the response broke off, or never began."""
    error: bytes | None = None
    """The JSON of the error event that ended the upstream's stream."""
    result: bytes | None = None
    """The plain form of a stream that ended well and is understood."""
    elsewhere: bool = False
    """Whether another process made the call, and this is the entry it stored."""
    stored: bool = False
    declined: Reason | None = None
    served: Served | None = None
    upstream_started: float | None = None
    upstream_head: float | None = None

    def __init__(
        self,
        table: "FlightTable[SharedResponse]",
        slot: Hashable | None,
        leader: Exchange,
        max_bytes: int,
        *,
        attended: bool = True,
    ) -> None:
        super().__init__(slot, attended=attended)
        self.set_leader(leader)
        self.followers: dict[Follower, None] = {}
        self.log = AnswerLog(max_bytes)
        self.rendered: dict[bool, bytes] = {}
        """A plain answer as a stream, without and with usage, once a client asked for it."""
        self.news = asyncio.Event()
        """Pulses with the head, each piece and the end."""
        self._ended = asyncio.Event()
        self._read = asyncio.Event()
        self._table = table
        table.lead(self)

    def set_leader(self, exchange: Exchange) -> None:
        """Note the form of the request that is sent, and tell the sinks how it was rewritten."""
        self.leader, observation = exchange, exchange.observation
        observation.rewrites = exchange.rewrites
        observation.not_rewritten = exchange.not_rewritten
        observation.compression = exchange.compression

    @property
    def payer(self) -> Observation | None:
        """The request to which the call's tokens and its storing are counted: the first."""
        if not self.attended:
            return self.leader.observation
        first = next(iter(self.followers), None)
        return first.exchange.observation if first is not None else None

    def note_call(self, observation: Observation) -> None:
        """Tell an observation which upstream was called, and when."""
        observation.upstream_started = self.upstream_started
        observation.upstream_head = self.upstream_head
        note_served(self.served, observation)

    def open(self, head: Head) -> None:
        """Note the head."""
        self.head = head
        _wake(self.news)

    async def add(self, full: bytes, without_usage: bytes) -> None:
        """Note the next piece of the body, in both its forms.

        A response that outgrew the log goes on at the pace of its fastest follower.
        """
        if not (full or without_usage):
            return
        if not self.log.fits(full, without_usage):
            self.outgrown = True
            self._table.close(self)
            _wake(self._ended)
            while self.followers and all(one.position < self.log.end for one in self.followers):
                await self._read.wait()
        self.log.append(full, without_usage)
        _wake(self.news)

    def land(self, now: float) -> None:
        """Note that the answer is complete, and its entry, if there is one, can be hit."""
        if self.head is not None and self.head.status == HTTPStatus.OK:
            body = self.head.body or b""
            self._table.land(self, size=self.log.size + len(body), now=now)

    def decline(self, reason: Reason) -> None:
        """Note why the answer is not stored."""
        self.declined = reason
        if (payer := self.payer) is None:
            return
        payer.declined = reason
        if payer.streamed:
            # The head of a stream is sent before this is known.
            log.info(
                "%s rule=%s: a streamed answer was not stored: %s",
                payer.endpoint,
                payer.rule,
                reason,
            )

    def close(self, fault: Exception | None = None) -> None:
        """Note the end; a fault goes out as the last event. A second call changes nothing."""
        if self.over:
            return
        self.fault, self.over = fault, True
        streams = self.head is not None and self.head.events
        if fault is not None and streams and self.error is None:
            event = failure_event(fault)
            self.log.append(event, event)
        if self.landed_at is None:
            self._table.close(self)
        _wake(self.news)
        _wake(self._ended)

    def read(self, follower: "Follower", *, without_usage: bool) -> bytes:
        """Return what is new to a follower, nothing if nothing is. Raises TooSlowError."""
        if follower.position == self.log.end:
            return b""
        piece = self.log.since(follower.position, without_usage=without_usage)
        follower.position = self.log.end
        _wake(self._read)
        return piece

    def leave(self, follower: "Follower") -> None:
        """Remove a follower. The call ends with the last one."""
        if follower not in self.followers:
            return
        del self.followers[follower]
        _wake(self._read)
        if self._table.leave(self) and self.task is not None:
            self.task.cancel()

    async def end(self) -> None:
        """Wait for the end, or until the answer is too large to be held."""
        while not (self.over or self.outgrown):
            await self._ended.wait()

    def raise_fault(self) -> None:
        """Raise the fault as a new exception: many followers raise it at the same time."""
        match self.fault:
            case None:
                pass
            case UpstreamError() as error:
                raise error.again()
            case other:
                raise RuntimeError("the upstream call failed") from other


class Sharing(Enum):
    """Which call a request may join: any, one with the same wire mode, or none."""

    ANY_WIRE = auto()
    SAME_WIRE = auto()
    ALONE = auto()


class Follower(AsyncIterator[bytes]):
    """Reads one shared response for one request; iterating yields the body of a stream."""

    def __init__(self, shared: SharedResponse, exchange: Exchange, sharing: Sharing) -> None:
        self.exchange = exchange
        self.position = 0
        """The pieces it has read."""
        self._shared = shared
        self._sharing = sharing
        self._leads = shared.leader is exchange
        self._without_usage = False
        self._status = replace(exchange.state.status, collapsed=not self._leads)
        shared.followers[self] = None
        observation = exchange.observation
        observation.forward = self._status
        observation.reason = exchange.state.status.reason if self._leads else Reason.COLLAPSED

    async def reply(self) -> Reply | Sharing:
        """Return the reply as soon as it can begin, or which call to join in place of this one.

        Raises UpstreamError if the call failed before its head.
        """
        reply: Reply | Sharing | None = None
        try:
            reply = await self._reply()
        finally:
            if not (isinstance(reply, Reply) and reply.body is self):
                self._shared.leave(self)
        return reply

    async def _reply(self) -> Reply | Sharing:
        shared, exchange = self._shared, self.exchange
        if self._leads:
            while shared.head is None and not shared.over:
                await shared.news.wait()
            shared.note_call(exchange.observation)
        elif not await self._began():
            return Sharing.ALONE
        head = shared.head
        if head is None:
            shared.raise_fault()
            raise AssertionError("a call without head or fault")
        refused = HTTPStatus.BAD_REQUEST <= head.status < HTTPStatus.INTERNAL_SERVER_ERROR
        if refused and not self._same_tenant():
            return Sharing.ALONE  # another credential may be accepted
        other_wire = shared.leader.request.streamed is not exchange.request.streamed
        if head.body is not None:
            if other_wire and exchange.request.streamed and head.status == HTTPStatus.OK:
                return self._rendered(head, head.body)
            return self._plain(head, head.body)
        if other_wire and head.events and not exchange.request.streamed:
            return await self._assembled(head)
        if other_wire or (exchange.request.wants_usage and not head.usage):
            return self._next_sharing()
        self._without_usage = head.usage and not exchange.request.wants_usage
        resources = AsyncExitStack()
        resources.callback(shared.leave, self)
        exchange.observation.status = head.status
        # When a stream's head is sent, nobody knows yet whether its answer will be stored.
        declined = None if head.events else shared.declined
        fields = self._fields(head, self._status.header(declined=declined))
        return Reply(head.status, fields, self, resources)

    async def _began(self) -> bool:
        """Wait for the response's first piece; tell whether it came in time."""
        shared, plan = self._shared, self.exchange.plan
        try:
            async with asyncio.timeout(plan.decision.follow_seconds if plan else None):
                while not (shared.over or shared.log.end):
                    if shared.head is not None and shared.head.body is not None:
                        break
                    await shared.news.wait()
        except TimeoutError:
            return False
        return True

    def _same_tenant(self) -> bool:
        mine, theirs = self.exchange.request.headers, self._shared.leader.request.headers
        return self._leads or identify(mine) == identify(theirs)

    def _next_sharing(self) -> Sharing:
        return Sharing.SAME_WIRE if self._sharing is Sharing.ANY_WIRE else Sharing.ALONE

    def _rendered(self, head: Head, body: bytes) -> Reply | Sharing:
        """Return a plain answer as a stream."""
        shared, usage = self._shared, self.exchange.request.wants_usage
        streaming = SPECS[self.exchange.request.endpoint].streaming
        if streaming is None:
            return self._next_sharing()
        if usage not in shared.rendered:
            try:
                result = exact_json.loads(body)
                stream = streaming.render(result, include_usage=usage)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                # An upstream's answer may have any shape, and not each can be a stream.
                return self._next_sharing()
            shared.rendered[usage] = stream
        return self._plain(head, shared.rendered[usage], SSE_TYPE)

    async def _assembled(self, head: Head) -> Reply | Sharing:
        """Return a streamed answer in its plain form, once it is complete."""
        shared = self._shared
        await shared.end()
        if shared.error is not None:
            return self._plain(replace(head, status=502), shared.error, JSON_TYPE)
        shared.raise_fault()
        if shared.result is None or shared.declined is Reason.UNKNOWN_SHAPE:
            return self._next_sharing()
        return self._plain(head, shared.result, JSON_TYPE)

    def _plain(self, head: Head, body: bytes, content_type: tuple[str, str] | None = None) -> Reply:
        shared, observation = self._shared, self.exchange.observation
        if shared.elsewhere:
            self._status = replace(self._status, collapsed=True)
            observation.forward = self._status
            observation.reason = Reason.COLLAPSED
        stored = self._leads and shared.stored
        fields = self._fields(head, self._status.header(stored=stored, declined=shared.declined))
        if content_type is not None:
            fields = (content_type, *without(fields, "content-type"))
        observation.status = head.status
        return Reply(head.status, fields, body)

    def _fields(self, head: Head, cache_status: str) -> Fields:
        fields = head.fields
        if not self._leads:
            fields = shared_fields(fields, same_tenant=self._same_tenant())
        fields = with_cache_status(fields, cache_status, REWRITE.lower(), COMPRESS.lower())
        if self._shared.elsewhere:
            return fields
        sent = self._shared.leader
        ours = (
            (REWRITE, format_rewrites(sent.rewrites, sent.not_rewritten)),
            (COMPRESS, None if sent.compression is None else str(sent.compression)),
        )
        return (*fields, *((name, value) for name, value in ours if value is not None))

    async def __anext__(self) -> bytes:
        """Return all that is new, in one piece; wait if nothing is.

        Raises TimeoutError if the client has fallen too far behind.
        """
        shared = self._shared
        while True:
            try:
                piece = shared.read(self, without_usage=self._without_usage)
            except TooSlowError:
                raise TimeoutError from None
            if piece:
                self.exchange.observation.mark_first_token()
                return piece
            if shared.over:
                self._note_fault()
                raise StopAsyncIteration
            await shared.news.wait()

    def _note_fault(self) -> None:
        """Note a failure that the stream itself has shown; raise one that it has not."""
        shared, observation = self._shared, self.exchange.observation
        if shared.head is None or not shared.head.events:
            shared.raise_fault()
        elif isinstance(shared.fault, UpstreamError):
            observation.end("error", shared.fault.reason)
        elif shared.fault is not None:
            observation.end("error", Reason.INTERNAL)
