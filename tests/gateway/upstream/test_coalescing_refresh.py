"""Calls without a client: they only store, one at a time for a key, and end with the gateway."""

import asyncio
from pathlib import Path

import pytest
from coalescer_rig import Rig

from gateway.cache.ports import StoreError
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from scripted_upstream import completion, stream_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refresh_stores_the_answer(rig: Rig, streamed: bool):
    exchange = rig.exchange(stream=streamed)
    assert rig.refresh(exchange)
    call = await rig.upstream.next_call()
    if streamed:
        call.head()
        call.say(*stream_of("Fine."))
        call.end()
    else:
        call.plain(completion("Fine."))
    seen = await rig.next_finished()
    assert await rig.store.get(exchange.state.store.key) is not None
    assert (seen.outcome, seen.call.stored, seen.call.declined) == ("refresh", True, None)


async def test_one_refresh_at_a_time_for_a_key(rig: Rig):
    assert rig.refresh(rig.exchange("one"))
    assert not rig.refresh(rig.exchange("one"))
    assert rig.refresh(rig.exchange("two"))
    (await rig.upstream.next_call()).plain(completion("Fine."))
    await rig.next_finished()
    await asyncio.sleep(0)  # the call's own end follows what is observed
    assert rig.refresh(rig.exchange("one"))
    await rig.coalescer.close()


async def test_a_refresh_that_fails_is_told_to_the_sinks_only(rig: Rig):
    assert rig.refresh(rig.exchange())
    call = await rig.upstream.next_call()
    call.fail(UpstreamError(502, "gone", Reason.UPSTREAM_UNREACHABLE))
    seen = await rig.next_finished()
    assert (seen.outcome, seen.reason) == ("error", Reason.UPSTREAM_UNREACHABLE)


async def test_closing_ends_what_runs(rig: Rig):
    assert rig.refresh(rig.exchange())
    call = await rig.upstream.next_call()
    await rig.coalescer.close()
    assert call.ended.is_set()
    await rig.next_finished()


async def test_what_may_not_be_stored_is_not_refreshed(rig: Rig):
    assert not rig.refresh(rig.exchange(store=True))


class CountedClaims:
    """Claims of one process, or of another one that holds them all."""

    def __init__(self, *, elsewhere: bool = False, error: Exception | None = None) -> None:
        self.elsewhere, self.error = elsewhere, error
        self.held: list[bytes] = []

    async def take(self, slot: bytes) -> bool:
        if self.error is not None:
            raise self.error
        if not self.elsewhere:
            self.held.append(slot)
        return not self.elsewhere

    def release(self, slot: bytes) -> None:
        self.held.remove(slot)


@pytest.mark.parametrize(
    "claims", [CountedClaims(elsewhere=True), CountedClaims(error=StoreError("no"))]
)
async def test_what_cannot_be_claimed_is_left_to_others(rig: Rig, claims: CountedClaims):
    rig.coalescer.claims = claims
    assert rig.refresh(rig.exchange())
    await asyncio.gather(*rig.coalescer.calls)
    assert rig.upstream.calls == []
    assert rig.refresh(rig.exchange())


async def test_what_another_process_has_just_refreshed_is_fresh(rig: Rig):
    rig.coalescer.claims = claims = CountedClaims()
    assert rig.refresh(rig.exchange())
    (await rig.upstream.next_call()).plain(completion("Fine."))
    await rig.next_finished()
    assert rig.refresh(rig.exchange())
    await asyncio.gather(*rig.coalescer.calls)
    assert (len(rig.upstream.calls), claims.held) == (1, [])


async def test_a_refresh_that_is_left_to_others_still_answers_who_follows_it(rig: Rig):
    rig.coalescer.claims = CountedClaims(elsewhere=True)
    assert rig.refresh(rig.exchange(stream=True))
    follower = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(*stream_of("Fine."))
    call.end()
    assert (await follower).raw == b"".join(stream_of("Fine."))


@pytest.mark.parametrize("error", [StoreError("no"), ZeroDivisionError()])
async def test_a_claim_is_given_back_whatever_fails(rig: Rig, error: Exception):
    rig.coalescer.claims = claims = CountedClaims()

    async def broken(_key: bytes, *, touch: bool) -> None:
        raise error

    rig.store.get = broken  # type: ignore[method-assign]
    assert rig.refresh(rig.exchange())
    await asyncio.gather(*rig.coalescer.calls, return_exceptions=True)
    assert (rig.upstream.calls, claims.held) == ([], [])
