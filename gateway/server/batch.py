"""A batch of embeddings on its way: the upstream is asked for what is missing, and no more.

Law: for each item the lookup machine decides as for a request of its own, driven by the pipeline;
here the answer is only taken apart, stored and put together. A reply that is not understood goes
to the client as it came, and is one to the request as it was asked: an upstream's error names
inputs by their place.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

from gateway.cache.lookup import Forward, Hit, Refused
from gateway.protocol.cache_status import Forwarded, ForwardStatus, HitStatus, Reason
from gateway.protocol.endpoints.embeddings import (
    batch_body,
    items_of,
    put_together,
    stored_items,
    vectors_of,
)
from gateway.protocol.messages import Headers, Reply
from gateway.upstream.coalescer import Coalescer
from gateway.upstream.request import Exchange

AT_ONCE = 64
"""Items that wait for the store together: the rest of the gateway goes on between."""

T = TypeVar("T")
R = TypeVar("R")


async def for_each(do: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Do the same for all items, some at a time; results in order."""
    done: list[R] = []
    for start in range(0, len(items), AT_ONCE):
        done += await asyncio.gather(*map(do, items[start : start + AT_ONCE]))
    return done


def to_be_had(ends: Sequence[Hit | Forward | Refused]) -> list[Hit | Forward]:
    """Return what can be had, without what was refused; a batch asks for its stale items anew."""
    return [
        Forward(ForwardStatus(Forwarded.STALE), end.revalidate)
        if isinstance(end, Hit) and end.revalidate is not None
        else end
        for end in ends
        if not isinstance(end, Refused)
    ]


def end_of(states: Sequence[Hit | Forward]) -> Hit | Forward:
    """Return what is to be done with a batch: what was found whole is one hit."""
    hits = [state for state in states if isinstance(state, Hit)]
    if len(hits) == len(states):
        # As stale as the first to go and as old as the first to come, which names it.
        oldest = max(hits, key=lambda hit: hit.age)
        results = [orjson.loads(hit.entry.result) for hit in hits]
        whole = orjson.dumps(put_together(results, [hit.entry.key for hit in hits]))
        status = HitStatus(Reason.EXACT, min(hit.status.ttl for hit in hits))
        return Hit(replace(oldest.entry, result=whole), status, oldest.age)
    told = {state.status for state in states if isinstance(state, Forward)}
    status_of_all = told.pop() if len(told) == 1 else ForwardStatus(Forwarded.MISS)
    if hits:
        found = (len(hits), len(states))
        status_of_all = ForwardStatus(Forwarded.MISS, Reason.PARTIAL, items=found)
    return Forward(status_of_all, None)


@dataclass(frozen=True, slots=True)
class MissingItems:
    """Asks for the items of a batch that were not found; ``asked`` is the whole request."""

    coalescer: Coalescer
    asked: Exchange
    states: Sequence[Hit | Forward]

    async def forward(self) -> Reply:
        """Return the reply to the whole batch. Raises UpstreamError."""
        states, asked = self.states, self.asked
        missing = [place for place, state in enumerate(states) if isinstance(state, Forward)]
        whole = len(missing) == len(states)
        exchange = asked if whole else self._only(missing)
        reply = await self.coalescer.forward(exchange)
        parsed = _parsed(reply)
        vectors = vectors_of(parsed, len(missing))
        if vectors is None:
            if whole or _passes(reply.status):
                return reply
            reply.close()
            status = replace(asked.state.status, reason=None, items=None)
            return await self.coalescer.forward(replace(asked, state=Forward(status, None)))
        made = stored_items(parsed, vectors, [self._key(place) for place in missing])
        reply = self._told(reply, await self._store(missing, made))
        if whole:
            return reply
        new = dict(zip(missing, made, strict=True))
        results = [
            orjson.loads(state.entry.result) if isinstance(state, Hit) else new[place]
            for place, state in enumerate(states)
        ]
        keys = [self._key(place) for place in range(len(states))]
        body = put_together(results, keys, parsed.get("usage"))
        return replace(reply, body=orjson.dumps(body))

    def _only(self, missing: Sequence[int]) -> Exchange:
        request = self.asked.request
        items = items_of(request.body)
        raw = batch_body(request.body, [items[place] for place in missing])
        return replace(self.asked, request=replace(request, raw=raw))

    def _key(self, place: int) -> bytes:
        match self.states[place]:
            case Hit(entry=entry):
                return entry.key
            case Forward(store=plan) if plan is not None:
                return plan.key
            case _:  # never stored, so that any name of its own will do
                return place.to_bytes(4, "big")

    async def _store(self, missing: Sequence[int], made: Sequence[Any]) -> bool:
        """Store what may be; return whether that was all of it."""

        async def store(one: tuple[int, Any]) -> Reason | None:
            place, result = one
            state = self.states[place]
            if not isinstance(state, Forward) or state.store is None:
                return state.status.reason or Reason.POLICY
            return await self.coalescer.writer.store(
                state.store, result, orjson.dumps(result), self.asked.scanner
            )

        outcomes = await for_each(store, list(zip(missing, made, strict=True)))
        seen = self.asked.observation
        seen.declined = next((reason for reason in outcomes if reason is not None), None)
        seen.stored = seen.declined is None
        return seen.stored

    def _told(self, reply: Reply, stored: bool) -> Reply:
        """Say in the header what became of the items, which the coalescer did not know yet."""
        status, seen = self.asked.state.status, self.asked.observation
        declined = None if seen.declined is status.reason else seen.declined
        ours = status.header(stored=stored, declined=declined)
        headers: Headers = tuple(
            (name, value.removesuffix(status.header()) + ours if name == "Cache-Status" else value)
            for name, value in reply.headers
        )
        return replace(reply, headers=headers)


def _parsed(reply: Reply) -> Any:
    if reply.status != HTTPStatus.OK or not isinstance(reply.body, bytes):
        return None
    try:
        return orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None


def _passes(status: int) -> bool:
    """Tell whether an error is about the upstream's state, not about what it was asked."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
