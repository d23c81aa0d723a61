"""Streams that several gateway processes follow: one makes the call, the others get its pieces.

Law: for who makes the call another process is one more reader, for its own clients that process is
one more writer of a ``LiveAnswer``; so all that holds for readers holds across processes. Each side
says now and then that it is there, and who is not heard of for SILENCE_SECONDS is gone: a follower
leaves the call, a lost call is made anew where nothing of it came, and told as broken off where
something did. Every wait is bounded, and so is what waits to be read.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from gateway.core import stream_messages as messages
from gateway.core.answer_log import TooSlowError
from gateway.core.errors import UpstreamError
from gateway.core.headers import shared_fields
from gateway.core.plan import Plan
from gateway.core.stream_messages import Account, Ending, Kind, Message, Opening, Piece
from gateway.core.types import Reason
from gateway.live_answer import Head, LiveAnswer, Place
from gateway.observation import Observation
from gateway.ports import Post, Seals, StoreError

JOIN_SECONDS = 0.5
"""How long who asks to follow waits for a word: whose claim it is may have died."""
BEAT_SECONDS = 1.0
SILENCE_SECONDS = 3.0
MOST_SERVED = 1024
"""Followers in other processes, of all calls here."""
PIECE_BYTES = 100
"""What a message that waits costs beside its own bytes."""

log = logging.getLogger(__name__)


class LostError(Exception):
    """The call in the other process cannot be followed, or not any more."""


@dataclass(slots=True, eq=False)
class _Served:
    """A follower in another process."""

    following: bytes
    to: bytes
    answer: LiveAnswer
    place: Place
    heard_at: float
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _Followed:
    """A call that another process makes, and the messages that wait to be read."""

    holder: bytes
    max_bytes: int
    lost: bool = False
    _waiting: deque[Message] = field(default_factory=deque)
    _size: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message) -> None:
        self._size += len(message.body) + PIECE_BYTES
        if self._size > self.max_bytes:
            self.lose()
        else:
            self._waiting.append(message)
            self._news.set()

    def lose(self) -> None:
        """Note that messages are missing; those that came are of no use without them."""
        self.lost = True
        self._waiting.clear()
        self._news.set()

    async def next(self, seconds: float) -> Message:
        """Return the next message. Raises LostError, and TimeoutError when none comes."""
        async with asyncio.timeout(seconds):
            await self._news.wait()
        if self.lost:
            raise LostError
        message = self._waiting.popleft()
        self._size -= len(message.body) + PIECE_BYTES
        if not self._waiting:
            self._news.clear()
        return message


class SharedStreams:
    """The calls here that others may follow, and the calls elsewhere that are followed here.

    Used from one event loop. ``seals`` is None where what passes is not encrypted.
    """

    def __init__(
        self,
        post: Post,
        seals: Seals | None,
        *,
        max_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._seals = seals
        self._max_bytes = max_bytes
        self._now = now
        self._leading: dict[bytes, LiveAnswer] = {}
        self._served: dict[bytes, _Served] = {}
        self._followed: dict[bytes, _Followed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse: asyncio.Task[None] | None = None
        post.listen(self._take, self._lose_all)

    @contextmanager
    def leading(self, slot: bytes, answer: LiveAnswer) -> Iterator[None]:
        """Let others follow this call meanwhile, if it is the first of its slot.

        From before it is claimed: who finds the claim may ask before we know of it ourselves.
        """
        first = self._leading.setdefault(slot, answer) is answer
        try:
            yield
        finally:
            if first:
                del self._leading[slot]

    async def follow(self, plan: Plan, slot: bytes, answer: LiveAnswer, holder: bytes) -> bool:
        """Write what another process streams into ``answer``, its end always; False if nothing.

        Then nothing was written, and nothing stands in the way of a call of one's own.
        """
        if holder == self._post.address:
            return False
        following = secrets.token_bytes(messages.FOLLOWING_BYTES)
        followed = self._followed[following] = _Followed(holder, self._max_bytes)
        self._begin_pulse()
        try:
            join = messages.pack(slot, self._post.address)
            await self._post.send(holder, Message(Kind.JOIN, following, body=join).encode())
            await self._write(followed, plan, answer)
        except (LostError, StoreError, TimeoutError, ValueError) as error:
            if answer.head is None:
                return False
            log.debug("a call in another process is lost: %s", type(error).__name__)
            message = "The call, made by another process, was lost."
            answer.close(UpstreamError(502, message, Reason.UPSTREAM_BROKE))
        finally:
            del self._followed[following]
            self._send_soon(holder, Message(Kind.LEAVE, following))
        return True

    async def close(self) -> None:
        """Tell followers the end of the calls that ended, and stop."""
        tasks = [served.task for served in self._served.values() if served.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=BEAT_SECONDS)
        rest = [task for task in (*tasks, self._pulse) if task is not None]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, *self._tasks, return_exceptions=True)

    def _take(self, data: bytes) -> None:
        try:
            message = messages.decode(data)
            match message.kind:
                case Kind.JOIN:
                    slot, to = messages.unpack(message.body)
                    self._serve(message.following, slot, to)
                case Kind.STAY | Kind.LEAVE:
                    self._heard(message)
                case _:
                    if (followed := self._followed.get(message.following)) is not None:
                        followed.put(message)
        except ValueError:
            log.debug("a message that is not from one of us")

    def _lose_all(self) -> None:
        for followed in self._followed.values():
            followed.lose()

    def _serve(self, following: bytes, slot: bytes, to: bytes) -> None:
        answer = self._leading.get(slot)
        plan = answer.leader.plan if answer is not None else None
        place = None
        if (
            answer is not None
            and plan is not None
            # Who wants a stream would wait for the last word of a plain answer to get the first.
            and answer.leader.streamed
            and len(self._served) < MOST_SERVED
            and following not in self._served
        ):
            seen = Observation(answer.leader.seen.endpoint, self._now(), self._now, ())
            place = answer.enter(seen, most=plan.decision.max_followers)
        if answer is None or plan is None or place is None:
            self._send_soon(to, Message(Kind.REFUSED, following))
            return
        self._begin_pulse()
        served = _Served(following, to, answer, place, self._now())
        self._served[following] = served
        served.task = asyncio.create_task(self._tell_all(served, _scope(plan)))
        served.task.add_done_callback(lambda _: self._gone(served))

    def _gone(self, served: _Served) -> None:
        # Here, and not in the task: one that is cancelled before it began never runs.
        del self._served[served.following]
        served.answer.leave(served.place)

    def _heard(self, message: Message) -> None:
        served = self._served.get(message.following)
        if served is None:
            return
        served.heard_at = self._now()
        if message.kind is Kind.LEAVE and served.task is not None:
            served.task.cancel()

    async def _tell_all(self, served: _Served, scope: bytes) -> None:
        try:
            await self._post.send(served.to, Message(Kind.BEAT, served.following).encode())
            await self._tell(served, scope)
        except (StoreError, TooSlowError, LostError) as error:
            log.debug("another process follows no more: %s", type(error).__name__)
            self._send_soon(served.to, Message(Kind.REFUSED, served.following))

    async def _tell(self, served: _Served, scope: bytes) -> None:
        answer, place = served.answer, served.place
        while not answer.started:
            await answer.news()
        head = answer.head
        if head is None or not head.events or head.status != HTTPStatus.OK:
            raise LostError
        number = 0
        while True:
            full, bare = answer.take_both(place)
            if full or bare:
                body, kind = Piece(full, bare).encode(), Kind.PIECE
                if number == 0:
                    # Its followers may be of another tenant than the call.
                    fields = shared_fields(head.fields, same_tenant=False)
                    body, kind = Opening(fields, head.usage, Piece(full, bare)).encode(), Kind.OPEN
            elif answer.over:
                body, kind = _ending(answer, place).encode(), Kind.END
            else:
                await answer.news()
                continue
            message = Message(kind, served.following, number)
            if self._seals is not None:
                body = await self._seals.seal_for(scope, message.name, body)
            await self._post.send(served.to, message.name + body)
            if kind is Kind.END:
                return
            number += 1

    async def _write(self, followed: _Followed, plan: Plan, answer: LiveAnswer) -> None:
        """Write what comes into the answer. Raises what says that no more will."""
        scope, patience, number = _scope(plan), JOIN_SECONDS, 0
        until = self._now() + plan.decision.follow_seconds
        while not answer.over:
            message = await followed.next(patience)
            patience = SILENCE_SECONDS
            if message.kind is Kind.BEAT:
                if answer.head is None and self._now() > until:
                    raise LostError
                continue
            opens = message.kind is Kind.OPEN
            if message.kind is Kind.REFUSED or message.number != number or opens == bool(number):
                raise LostError
            number += 1
            body = message.body
            if self._seals is not None:
                body = await self._seals.open_for(scope, message.name, body)
            await _note(message.kind, body, answer)

    def _begin_pulse(self) -> None:
        if self._pulse is None:
            self._pulse = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for served in self._served.values():
                if self._now() - served.heard_at <= SILENCE_SECONDS:
                    self._send_soon(served.to, Message(Kind.BEAT, served.following))
                elif served.task is not None:
                    served.task.cancel()
            for following, followed in self._followed.items():
                self._send_soon(followed.holder, Message(Kind.STAY, following))

    def _send_soon(self, to: bytes, message: Message) -> None:
        task = asyncio.create_task(_quietly(self._post.send(to, message.encode())))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(sending: Coroutine[Any, Any, None]) -> None:
    try:
        await sending
    except StoreError as error:
        log.debug("a message to another process was not sent: %s", error)


def _scope(plan: Plan) -> bytes:
    """Return the scope of the coalescing key's."""
    return (plan.personal or plan).partition.scope


async def _note(kind: Kind, body: bytes, answer: LiveAnswer) -> None:
    """Note a message of the stream. Raises ValueError."""
    match kind:
        case Kind.OPEN:
            opening = messages.decode_opening(body)
            answer.elsewhere = True
            head = Head(HTTPStatus.OK, opening.fields, events=True, usage=opening.usage)
            answer.open(head)
            await answer.add(opening.piece.full, opening.piece.bare)
        case Kind.PIECE:
            piece = messages.decode_piece(body)
            await answer.add(piece.full, piece.bare)
        case Kind.END:
            _end(messages.decode_ending(body), answer)
        case _:
            raise ValueError("no message of a stream")


def _ending(answer: LiveAnswer, place: Place) -> Ending:
    seen, fault = place.seen, answer.fault
    told: UpstreamError | None = None
    if isinstance(fault, UpstreamError):
        told = fault
    elif fault is not None:
        told = UpstreamError(502, "The gateway failed.", Reason.INTERNAL)
    return Ending(
        Account(
            seen.prompt_tokens,
            seen.completion_tokens,
            seen.cached_tokens,
            seen.stored,
            seen.declined,
        ),
        answer.declined,
        told,
        answer.error,
        answer.result,
    )


def _end(ending: Ending, answer: LiveAnswer) -> None:
    account, payer = ending.account, answer.payer
    if payer is not None:
        payer.prompt_tokens = account.prompt_tokens
        payer.completion_tokens = account.completion_tokens
        payer.cached_tokens = account.cached_tokens
        payer.stored, payer.declined = account.stored, account.declined
    answer.declined, answer.error, answer.result = ending.declined, ending.error, ending.result
    if ending.fault is None:
        answer.land(answer.leader.seen.clock())
    answer.close(ending.fault, told=True)
