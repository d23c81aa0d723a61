"""Large answers and slow readers: memory is bounded, and one slow reader slows nobody else."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from coalescer_rig import Rig

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.messages import Reply
from running_gateway import StartGateway
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion

PIECE = chunk(delta={"content": "x" * 100})
END = [chunk(finish_reason="stop"), DONE]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, max_answer_bytes=4000)


async def joined(rig: Rig, *, stream: bool = True) -> Reply:
    """Begin a request and return its reply, of which nothing was read."""
    async with asyncio.timeout(60):
        return (await rig.coalescer.forward(rig.exchange(stream=stream))).reply


async def rest(reply: Reply) -> bytes:
    with contextlib.closing(reply):
        async with asyncio.timeout(60):
            return b"".join([piece async for piece in reply.body])


async def test_a_reader_that_falls_too_far_behind_is_cut_and_slows_nobody(rig: Rig):
    fast = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(PIECE)
    slow = await joined(rig)
    pieces = [PIECE] * 50
    for piece in [*pieces, *END]:
        call.say(piece)
        await call.taken()
    call.end()
    async with asyncio.timeout(60):
        got = await fast
    assert got.raw == b"".join([PIECE, *pieces, *END])
    with pytest.raises(TimeoutError):
        await rest(slow)


async def test_a_reader_that_is_a_little_behind_gets_everything(rig: Rig):
    fast = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(PIECE)
    slow = await joined(rig)
    body = aiter(slow.body)
    got = []
    for number in range(60):
        call.say(PIECE)
        await call.taken()
        if number % 5 == 0:
            got.append(await anext(body))
    call.say(*END)
    call.end()
    got.append(await rest(slow))
    assert b"".join(got) == b"".join([PIECE] * 61 + END) == (await fast).raw


async def test_an_answer_that_is_too_large_goes_at_the_pace_of_its_only_reader(rig: Rig):
    waiting = asyncio.create_task(joined(rig))
    call = await rig.upstream.next_call()
    call.head()
    reply = await waiting
    body = aiter(reply.body)
    call.say(*[PIECE] * 100, *END)
    call.end()
    got = [await anext(body)]
    assert not call.read_to_the_end
    # What was taken at a time is bounded, and all of it comes.
    got += [piece async for piece in body]
    assert b"".join(got) == b"".join([*[PIECE] * 100, *END])
    assert max(map(len, got)) <= 4000 + len(PIECE)
    assert call.read_to_the_end
    reply.close()


async def test_nobody_joins_an_answer_that_is_too_large_any_more(rig: Rig):
    early = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(*[PIECE] * 50)
    await call.taken()
    late = await rig.ask(stream=True)
    own = await rig.upstream.next_call()
    for one in (call, own):
        if one is own:
            one.head()
        one.say(*END)
        one.end()
    async with asyncio.timeout(60):
        assert (await early).raw == b"".join([*[PIECE] * 50, *END])
        assert (await late).raw == b"".join(END)


@pytest.mark.parametrize("leader_stays", [False, True])
async def test_who_waits_for_the_plain_form_asks_anew_when_an_answer_is_too_large(
    rig: Rig, leader_stays: bool
):
    leader, plain = await rig.ask(stream=True), await rig.ask()
    call = await rig.upstream.next_call()
    call.head()
    call.say(PIECE)
    await call.taken()
    if not leader_stays:
        leader.cancel()
        await asyncio.wait([leader])
    call.say(*[PIECE] * 50)
    (await rig.upstream.next_call()).plain(completion("Plain."))
    async with asyncio.timeout(60):
        got = await plain
        assert got.json["choices"][0]["message"]["content"] == "Plain."
        if leader_stays:
            call.say(*END)
            call.end()
            assert (await leader).raw == b"".join([PIECE] * 51 + END)
        else:
            await call.ended.wait()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_plain_answer_that_is_too_large_reaches_those_who_want_it_plain(
    rig: Rig, streamed: bool
):
    asked = [await rig.ask() for _ in range(3)]
    other = await rig.ask(stream=True) if streamed else None
    call = await rig.upstream.next_call()
    large = b'{"x": "' + b"y" * 10_000 + b'"}'
    call.head(200, "application/json")
    call.say(large[:5000], large[5000:])
    call.end()
    async with asyncio.timeout(60):
        for one in asked:
            got = await one
            assert got.raw == large
            assert got.cache.endswith("detail=too-large")
        if other is not None:
            own = await rig.upstream.next_call()
            own.head()
            own.say(*END)
            own.end()
            assert (await other).raw == b"".join(END)


async def test_a_large_plain_answer_that_breaks_off_is_a_fault_for_all(rig: Rig):
    asked = [await rig.ask() for _ in range(2)]
    call = await rig.upstream.next_call()
    call.head(200, "application/json")
    call.say(b"y" * 5000)
    call.fail(UpstreamError(502, "gone", Reason.UPSTREAM_BROKE))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [UpstreamError] * 2


async def test_who_waits_for_the_plain_form_is_not_woken_for_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waits = 0
    wait = asyncio.Event.wait

    async def counting(event: asyncio.Event) -> bool:
        nonlocal waits
        waits += 1
        return await wait(event)

    rig = Rig(tmp_path)
    leader = await rig.ask(stream=True)
    plain = [await rig.ask() for _ in range(100)]
    call = await rig.upstream.next_call()
    call.head()
    call.say(PIECE)
    await call.taken()
    await asyncio.sleep(0)
    monkeypatch.setattr(asyncio.Event, "wait", counting)
    for _ in range(60):
        call.say(PIECE)
        await call.taken()
    assert waits < 60 * 10
    call.say(*END)
    call.end()
    async with asyncio.timeout(60):
        assert (await leader).raw == b"".join([*[PIECE] * 61, *END])
        assert {len((await one).json["choices"]) for one in plain} == {1}
    assert len(rig.upstream.calls) == 1


async def test_many_readers_of_an_answer_that_is_too_large_wake_one_another_no_more_than_needed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    wakes = 0
    wake = asyncio.Event.set

    def counting(event: asyncio.Event) -> None:
        nonlocal wakes
        wakes += 1
        wake(event)

    readers = [await rig.ask(stream=True) for _ in range(100)]
    call = await rig.upstream.next_call()
    call.head()
    monkeypatch.setattr(asyncio.Event, "set", counting)
    for _ in range(60):
        call.say(PIECE)
        await call.taken()
    call.say(*END)
    call.end()
    async with asyncio.timeout(60):
        answers = {(await reader).raw for reader in readers}
    assert answers == {b"".join([*[PIECE] * 60, *END])}
    # One for a piece, and one where the call waits until a reader has the piece before.
    assert wakes < 60 * 10


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        (
            "/v1/chat/completions",
            {
                "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": "Hi"}],
            },
        ),
    ],
)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_plain_reply_above_the_bound_is_asked_for_once(
    start_gateway: StartGateway,
    upstream: ScriptedUpstream,
    path: str,
    fields: dict[str, Any],
    status: int,
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        long = "long " * 20_000
        said = completion(long) if status == 200 else {"error": {"message": long}}
        return web.json_response(said, status=status)

    upstream.answer = answer
    gateway = await start_gateway(max_answer_bytes=4096)
    reply = await gateway.post(path, orjson.dumps({"model": "m", **fields}))
    assert reply.status == status
    assert upstream.calls == 1
