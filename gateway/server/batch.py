"""A batch of embeddings on its way: the upstream is asked for what is missing, and no more.

Law: for each item the lookup machine decides as for a single request, driven by the pipeline;
here the answer is only taken apart, stored and put together. A reply that is not understood goes
to the client as it came, and is one to the request as it was asked: an upstream's error names
inputs by their place.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

from gateway.cache.lookup import Forward, Hit, Refused
from gateway.protocol.endpoints.embeddings import (
    batch_body,
    combine_items,
    items_of,
    stored_items,
    vectors_of,
)
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, HitStatus, Reason
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import Reply, body_of
from gateway.telemetry.observation import NO_CALL
from gateway.upstream.request import Exchange
from gateway.upstream.sharing.coalescer import Coalescer
from gateway.upstream.sharing.follower import Answered

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


def without_refused(ends: Sequence[Hit | Forward | Refused]) -> list[Hit | Forward]:
    """Return the outcomes of all items that get an answer; stale items are requested again."""
    return [
        Forward(ForwardStatus(Forwarded.STALE), end.revalidate)
        if isinstance(end, Hit) and end.revalidate is not None
        else end
        for end in ends
        if not isinstance(end, Refused)
    ]


def end_of(states: Sequence[Hit | Forward]) -> Hit | Forward:
    """Return the next step for a batch: if all items were found, it is one hit."""
    hits = [state for state in states if isinstance(state, Hit)]
    if len(hits) == len(states):
        # As stale as the first to go and as old as the first to come, which names it.
        oldest = max(hits, key=lambda hit: hit.age)
        results = [hit.entry.result for hit in hits]
        parts = combine_items(results, [hit.entry.key for hit in hits])
        status = HitStatus(Reason.EXACT, min(hit.status.ttl for hit in hits))
        entry = replace(oldest.entry, result=bytes(parts[0]) + parts[-1])
        return Hit(entry, status, oldest.age, parts=parts)
    if hits:
        found = (len(hits), len(states))
        return Forward(ForwardStatus(Forwarded.MISS, Reason.PARTIAL, items=found), None)
    statuses = {state.status for state in states if isinstance(state, Forward)}
    return Forward(statuses.pop() if len(statuses) == 1 else ForwardStatus(Forwarded.MISS), None)


async def forward_missing(
    coalescer: Coalescer, exchange: Exchange, states: Sequence[Hit | Forward]
) -> Answered:
    """Request the missing items of a batch. Return the reply to the whole batch.

    Raises UpstreamError.
    """
    missing = {place: state for place, state in enumerate(states) if isinstance(state, Forward)}
    whole = len(missing) == len(states)
    to_send = exchange
    if not whole:
        request = exchange.request
        items = items_of(request.body)
        raw = batch_body(request.body, [items[place] for place in missing])
        to_send = replace(exchange, request=replace(request, raw=raw))
    answered = await coalescer.forward(to_send)
    reply = answered.reply
    parsed = _parse(reply)
    vectors = vectors_of(parsed, len(missing))
    if vectors is None:
        if whole or _is_transient(reply.status):
            return answered
        reply.close()
        status = replace(exchange.state.status, reason=None, items=None)
        return await coalescer.forward(replace(exchange, state=Forward(status, None)))
    keys = [_key(place, state) for place, state in enumerate(states)]
    made = stored_items(parsed, vectors, [keys[place] for place in missing])

    async def store(item: tuple[Forward, Any]) -> Reason | None:
        state, result = item
        if state.store is None:
            return state.status.reason or Reason.POLICY
        plain = orjson.dumps(result)
        return await coalescer.caller.writer.store(state.store, result, plain, exchange.scanner)

    outcomes = await for_each(store, list(zip(missing.values(), made, strict=True)))
    declined = next((reason for reason in outcomes if reason is not None), None)
    call = (answered.call or NO_CALL)._replace(declined=declined, stored=declined is None)
    reply = replace(reply, headers=_headers(reply, exchange, declined))
    if whole:
        return answered._replace(reply=reply, call=call)
    new = dict(zip(missing, made, strict=True))
    results = [
        state.entry.result if isinstance(state, Hit) else orjson.dumps(new[place])
        for place, state in enumerate(states)
    ]
    body = body_of(combine_items(results, keys, parsed.get("usage")))
    return answered._replace(reply=replace(reply, body=body), call=call)


def _key(place: int, state: Hit | Forward) -> bytes:
    if isinstance(state, Hit):
        return state.entry.key
    # What is never stored may have any name.
    return place.to_bytes(4, "big") if state.store is None else state.store.key


def _headers(reply: Reply, exchange: Exchange, declined: Reason | None) -> Fields:
    """Say in the header what became of the items, which the coalescer did not know yet."""
    status = exchange.state.status
    why = None if declined is status.reason else declined
    ours = status.header(stored=declined is None, declined=why)
    return tuple(
        (name, value.removesuffix(status.header()) + ours if name == "Cache-Status" else value)
        for name, value in reply.headers
    )


def _parse(reply: Reply) -> Any:
    if reply.status != HTTPStatus.OK or not isinstance(reply.body, bytes):
        return None
    try:
        return orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None


def _is_transient(status: int) -> bool:
    """Tell whether an error is about the upstream's state, not about the request."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
