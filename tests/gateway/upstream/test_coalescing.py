"""Identical concurrent misses make one call, and each client gets all of it in its own form."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from coalescer_rig import Got, Rig
from gated_upstream import Call

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.request import Served
from policies.decision import Scope
from scripted_upstream import DONE, chunk, completion, stream_of, usage_event

ANSWER = stream_of("All is well")
ASKS_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def all_of(*asked: "asyncio.Task[Got]") -> list[Got]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*asked)


def stream(raw: bytes) -> list[Any]:
    return [
        orjson.loads(event[6:]) for event in raw.split(b"\n\n") if event[6:] not in (b"", b"[DONE]")
    ]


def text(got: Got) -> str:
    if got.headers["Content-Type"].startswith("text/event-stream"):
        return "".join(
            choice["delta"].get("content") or ""
            for event in stream(got.raw)
            for choice in event["choices"]
        )
    return got.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_many_ask_and_one_call_answers_all(rig: Rig, streamed: bool):
    asked = [await rig.ask(stream=streamed) for _ in range(20)]
    call = await rig.upstream.next_call()
    if streamed:
        call.head()
        call.say(*ANSWER)
        call.end()
    else:
        call.plain(completion("All is well"))
    first, *others = await all_of(*asked)

    assert len(rig.upstream.calls) == 1
    assert first.cache == ("refrain; fwd=miss" if streamed else "refrain; fwd=miss; stored")
    assert {got.cache for got in others} == {"refrain; fwd=miss; collapsed"}
    assert {got.raw for got in others} == {first.raw}
    assert text(first) == "All is well"
    assert all(got.seen.reason is Reason.COLLAPSED for got in others)
    assert await rig.store.get(rig.exchange().state.store.key) is not None


async def test_who_comes_late_gets_what_was_streamed_in_one_piece_and_then_follows(rig: Rig):
    early = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(*ANSWER[:2])
    await call.taken()
    late = await rig.ask(stream=True)
    for piece in ANSWER[2:]:
        call.say(piece)
        await call.taken()
    call.end()
    first, second = await all_of(early, late)

    assert first.raw == second.raw == b"".join(ANSWER)
    assert second.pieces == [b"".join(ANSWER[:2]), *ANSWER[2:]]


@pytest.mark.parametrize("where", ["before the head", "after the head", "in the stream"])
async def test_a_leader_that_leaves_does_not_end_the_call(rig: Rig, where: str):
    leader, follower = await rig.ask(stream=True), await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    if where != "before the head":
        call.head()
    if where == "in the stream":
        call.say(ANSWER[0])
        await call.taken()
    leader.cancel()
    await asyncio.wait([leader])
    assert not call.ended.is_set()
    if where == "before the head":
        call.head()
    call.say(*ANSWER[1 if where == "in the stream" else 0 :])
    call.end()
    [got] = await all_of(follower)

    assert got.raw == b"".join(ANSWER)
    assert await rig.store.get(rig.exchange().state.store.key) is not None


@pytest.mark.parametrize("where", ["before the head", "after the head", "in the stream"])
async def test_the_last_to_leave_ends_the_call(rig: Rig, where: str):
    asked = [await rig.ask(stream=True) for _ in range(3)]
    call = await rig.upstream.next_call()
    if where != "before the head":
        call.head()
    if where == "in the stream":
        call.say(ANSWER[0])
        await call.taken()
    for one in asked:
        assert not call.ended.is_set()
        one.cancel()
        await asyncio.wait([one])
    async with asyncio.timeout(60):
        await call.ended.wait()
    assert not call.read_to_the_end

    await rig.ask(stream=True)
    assert await rig.upstream.next_call() is not call
    await rig.coalescer.close()


async def test_who_comes_when_the_last_has_left_makes_a_call_of_its_own(rig: Rig):
    leader = await rig.ask()
    call = await rig.upstream.next_call()
    leader.cancel()
    await asyncio.wait([leader])
    again = await rig.ask()
    (await rig.upstream.next_call()).plain(completion("Fine."))
    [got] = await all_of(again)
    assert got.cache == "refrain; fwd=miss; stored"
    assert call.ended.is_set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_was_sent_whole_is_stored_though_everybody_left(rig: Rig, streamed: bool):
    rig.store.open.clear()
    asked = [await rig.ask(stream=streamed) for _ in range(2)]
    call = await rig.upstream.next_call()
    if streamed:
        call.head()
        call.say(*ANSWER)
        call.end()
    else:
        call.plain(completion("All is well"))
    async with asyncio.timeout(60):
        await rig.store.waiting.wait()
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
        rig.store.open.set()
        await call.ended.wait()
        await rig.store.stored.wait()
    assert await rig.store.get(rig.exchange().state.store.key) is not None
    assert len(rig.upstream.calls) == 1


async def test_the_last_bytes_wait_for_the_entry_whoever_reads(rig: Rig):
    rig.store.open.clear()
    asked = [await rig.ask(stream=True) for _ in range(3)]
    plain = await rig.ask()
    call = await rig.upstream.next_call()
    call.head()
    call.say(b"".join(ANSWER))
    call.end()
    async with asyncio.timeout(60):
        await rig.store.waiting.wait()
    assert not any(one.done() for one in [*asked, plain])
    rig.store.open.set()
    for got in await all_of(*asked):
        assert got.pieces == [b"".join(ANSWER[:-1]), DONE]
    assert text((await all_of(plain))[0]) == "All is well"


async def test_who_began_to_ask_before_the_end_is_answered_by_that_call(rig: Rig):
    leader = await rig.ask(stream=True)
    before = rig.exchange(stream=True), rig.exchange()
    for exchange in before:
        exchange.forwarding.is_looking = True
        rig.coalescer.table.looking += 1
    call = await rig.upstream.next_call()
    call.head()
    call.say(*ANSWER)
    call.end()
    await all_of(leader)
    for exchange in before:
        got = await rig.read(exchange)
        assert text(got) == "All is well"
        assert got.cache == "refrain; fwd=miss; collapsed"
    assert len(rig.upstream.calls) == 1
    # Who begins now has looked for the entry, and did not find it.
    after = await rig.ask()
    (await rig.upstream.next_call()).plain(completion("Anew."))
    assert text((await all_of(after))[0]) == "Anew."
    assert rig.coalescer.table.looking == 0


async def test_a_call_that_cannot_be_made_is_told_to_all(rig: Rig):
    asked = [await rig.ask(stream=streamed) for streamed in (False, True, False, True)]
    call = await rig.upstream.next_call()
    call.fail(UpstreamError(504, "too slow", Reason.UPSTREAM_TIMEOUT))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [(type(error), error.status, error.reason) for error in errors] == [
        (UpstreamError, 504, Reason.UPSTREAM_TIMEOUT)
    ] * 4
    assert len(set(map(id, errors))) == 4
    await rig.ask()
    await rig.upstream.next_call()
    await rig.coalescer.close()


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_error_of_the_upstream_reaches_all_with_its_status(rig: Rig, status: int):
    error = {"error": {"message": "no", "type": "t", "param": None, "code": "c"}}
    asked = [await rig.ask(stream=streamed) for streamed in (True, False, True)]
    # Once more without the wish for usage, which may be why.
    calls = 2 if status == 400 else 1
    for _ in range(calls):
        (await rig.upstream.next_call()).plain(error, status, [("Retry-After", "7")])
    for got in await all_of(*asked):
        assert (got.status, got.json, got.headers["Retry-After"]) == (status, error, "7")
        assert got.cache.endswith("detail=upstream-status")
    assert len(rig.upstream.calls) == calls


async def test_a_break_in_the_stream_reaches_all_in_the_right_form(rig: Rig):
    streamed = [await rig.ask(stream=True) for _ in range(3)]
    plain = await rig.ask()
    call = await rig.upstream.next_call()
    call.head()
    call.say(ANSWER[0])
    call.fail(UpstreamError(502, "gone", Reason.UPSTREAM_BROKE))
    for got in await all_of(*streamed):
        *_, last = stream(got.raw)
        assert last["error"]["code"] == "upstream-broke"
        assert DONE not in got.raw
        assert (got.seen.outcome, got.seen.reason) == ("error", Reason.UPSTREAM_BROKE)
    with pytest.raises(UpstreamError) as raised:
        await all_of(plain)
    assert raised.value.status == 502


async def test_an_error_event_of_the_upstream_reaches_all(rig: Rig):
    streamed, plain = await rig.ask(stream=True), await rig.ask()
    call = await rig.upstream.next_call()
    call.head()
    error = {"error": {"message": "overloaded", "type": "t", "param": None, "code": None}}
    call.say(ANSWER[0], b"data: " + orjson.dumps(error) + b"\n\n", DONE)
    call.end()
    first, second = await all_of(streamed, plain)
    assert stream(first.raw)[-1] == error
    assert DONE not in first.raw
    assert (second.status, second.json) == (502, error)
    assert second.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("usage", [False, True])
async def test_a_streamed_call_answers_whoever_wants_it_plain(rig: Rig, usage: bool):
    leader = await rig.ask(**(ASKS_USAGE if usage else {"stream": True}))
    plain = await rig.ask()
    call = await rig.upstream.next_call()
    assert call.body["stream_options"] == {"include_usage": True}
    call.head()
    call.say(*ANSWER[:-1], usage_event(), DONE)
    call.end()
    _, got = await all_of(leader, plain)
    assert got.json["choices"][0]["message"]["content"] == "All is well"
    assert got.json["usage"]["total_tokens"] == 10
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    assert got.cache == "refrain; fwd=miss; collapsed"


async def test_a_plain_call_answers_whoever_wants_a_stream(rig: Rig):
    leader = await rig.ask()
    bare, full = await rig.ask(stream=True), await rig.ask(**ASKS_USAGE)
    (await rig.upstream.next_call()).plain(completion("All is well"))
    _, first, second = await all_of(leader, bare, full)
    for got in (first, second):
        assert got.headers["Content-Type"].startswith("text/event-stream")
        assert text(got) == "All is well"
        assert got.raw.endswith(DONE)
    assert not any("usage" in event for event in stream(first.raw))
    assert stream(second.raw)[-1]["usage"]["total_tokens"] == 10


@pytest.mark.parametrize("leader_asks", [False, True])
async def test_usage_is_given_to_those_who_asked(rig: Rig, leader_asks: bool):
    wants = [leader_asks, True, False]
    asked = [await rig.ask(**(ASKS_USAGE if one else {"stream": True})) for one in wants]
    call = await rig.upstream.next_call()
    call.head()
    call.say(*ANSWER[:-1], usage_event(), DONE)
    call.end()
    for got, one in zip(await all_of(*asked), wants, strict=True):
        assert any("usage" in event for event in stream(got.raw)) is one
        assert got.raw.endswith(DONE)
        assert text(got) == "All is well"


async def test_who_wants_usage_does_not_follow_a_call_without(rig: Rig):
    leader, follower = await rig.ask(stream=True), await rig.ask(**ASKS_USAGE)
    (await rig.upstream.next_call()).plain({"error": {"message": "stream_options?"}}, 400)
    call = await rig.upstream.next_call()
    assert "stream_options" not in call.body
    call.head()
    call.say(*ANSWER)
    own = await rig.upstream.next_call()
    own.head()
    own.say(*ANSWER[:-1], usage_event(), DONE)
    call.end()
    own.end()
    _, got = await all_of(leader, follower)
    assert stream(got.raw)[-1]["usage"]["total_tokens"] == 10


@pytest.mark.parametrize(
    "odd",
    [
        [chunk(delta={"content": 5}), chunk(delta={"content": "a"})],
        [b"data: oops\n\n"],
    ],
)
async def test_an_answer_that_cannot_be_assembled_leaves_the_plain_ones_to_one_call(
    rig: Rig, odd: list[bytes]
):
    leader = await rig.ask(stream=True)
    plain = [await rig.ask() for _ in range(3)]
    call = await rig.upstream.next_call()
    call.head()
    call.say(*odd, chunk(finish_reason="stop"), DONE)
    call.end()
    (await rig.upstream.next_call()).plain(completion("Plain."))
    got = await all_of(leader, *plain)
    assert [text(one) for one in got[1:]] == ["Plain."] * 3
    assert [one.cache for one in got[1:]] == [
        "refrain; fwd=miss; stored",
        *["refrain; fwd=miss; collapsed"] * 2,
    ]
    assert len(rig.upstream.calls) == 2


async def test_an_answer_that_cannot_be_a_stream_leaves_the_streamed_ones_to_another_call(rig: Rig):
    leader, follower = await rig.ask(), await rig.ask(stream=True)
    (await rig.upstream.next_call()).plain({"choices": [{"index": 0}]})
    own = await rig.upstream.next_call()
    own.head()
    own.say(*ANSWER)
    own.end()
    _, got = await all_of(leader, follower)
    assert got.raw == b"".join(ANSWER)


async def test_a_call_has_no_more_followers_than_the_policy_says(rig: Rig):
    asked = [await rig.ask(decision={"max_followers": 2}) for _ in range(7)]
    for _ in range(3):
        (await rig.upstream.next_call()).plain(completion("All is well"))
    await all_of(*asked)
    assert len(rig.upstream.calls) == 3


async def test_coalescing_can_be_switched_off(rig: Rig):
    asked = [await rig.ask(decision={"max_followers": 0}) for _ in range(3)]
    for _ in range(3):
        (await rig.upstream.next_call()).plain(completion("All is well"))
    assert [got.cache for got in await all_of(*asked)] == ["refrain; fwd=miss; stored"] * 3


async def test_a_follower_that_waits_too_long_makes_a_call_of_its_own(rig: Rig):
    leader = await rig.ask(stream=True)
    follower = await rig.ask(stream=True, decision={"follow_seconds": 0.01})
    call = await rig.upstream.next_call()
    call.head()
    own = await rig.upstream.next_call()
    for one in (own, call):
        if one is own:
            one.head()
        one.say(*ANSWER)
        one.end()
    first, second = await all_of(leader, follower)
    assert first.cache == second.cache == "refrain; fwd=miss"
    assert second.seen.reason is None


async def test_a_follower_that_has_begun_to_read_is_patient(rig: Rig):
    leader = await rig.ask(stream=True)
    follower = await rig.ask(stream=True, decision={"follow_seconds": 0.0})
    call = await rig.upstream.next_call()
    assert await rig.upstream.next_call() is not call  # nothing had come yet
    call.head()
    call.say(ANSWER[0])
    await call.taken()
    patient = await rig.ask(stream=True, decision={"follow_seconds": 0.0, "max_followers": 5})
    assert len(rig.upstream.calls) == 2
    for one in (leader, follower, patient):
        one.cancel()
    await asyncio.wait([leader, follower, patient])


async def test_who_refuses_what_is_stored_leads_but_does_not_follow(rig: Rig):
    no_cache = {"cache-control": "no-cache"}
    first = await rig.ask()
    await rig.upstream.next_call()
    second = await rig.ask(headers=no_cache)
    newest = await rig.upstream.next_call()
    third = await rig.ask()
    newest.plain(completion("Newer."))
    got = await all_of(second, third)
    assert [text(one) for one in got] == ["Newer.", "Newer."]
    assert got[1].cache == "refrain; fwd=miss; collapsed"
    assert not first.done()
    await rig.coalescer.close()
    with pytest.raises(UpstreamError):
        await first


async def test_nothing_is_shared_across_tenants(rig: Rig):
    asked = [
        await rig.ask(headers={"authorization": f"Bearer {name}"}) for name in ("a", "b", "a", "b")
    ]
    for _ in range(2):
        call = await rig.upstream.next_call()
        call.plain(completion(dict(call.asked)["authorization"]))
    got = await all_of(*asked)
    assert [text(one) for one in got] == ["Bearer a", "Bearer b"] * 2
    assert len(rig.upstream.calls) == 2


@pytest.mark.parametrize("change", [{"store": True}, {"headers": {"cache-control": "no-store"}}])
async def test_a_bypass_is_never_coalesced(rig: Rig, change: dict[str, Any]):
    asked = [await rig.ask(**change) for _ in range(3)]
    for _ in range(3):
        (await rig.upstream.next_call()).plain(completion("All is well"))
    await all_of(*asked)
    assert len(rig.upstream.calls) == 3


HEADERS = [
    ("Set-Cookie", "session=leaders"),
    ("X-Request-Id", "req-1"),
    ("openai-processing-ms", "12"),
    ("x-ratelimit-remaining-requests", "3"),
    ("openai-organization", "acme"),
    ("openai-version", "2020-10-01"),
    ("Retry-After", "1"),
    ("Cache-Status", "edge; fwd=miss"),
]


async def test_what_is_true_of_the_leader_only_is_kept_from_followers(rig: Rig):
    leader, follower = await rig.ask(), await rig.ask()
    (await rig.upstream.next_call()).plain(completion("All is well"), 200, HEADERS)
    first, second = await all_of(leader, follower)
    assert {name for name, _ in HEADERS} <= first.headers.keys()
    assert second.headers == {
        "Content-Type": "application/json",
        "openai-version": "2020-10-01",
        "Retry-After": "1",
        "Cache-Status": "edge; fwd=miss, refrain; fwd=miss; collapsed",
    }


async def test_another_tenant_learns_nothing_of_the_leader(rig: Rig):
    public = {"scope": Scope.PUBLIC}
    leader = await rig.ask(headers={"authorization": "Bearer a"}, decision=public)
    follower = await rig.ask(headers={"authorization": "Bearer b"}, decision=public)
    (await rig.upstream.next_call()).plain(completion("All is well"), 200, HEADERS)
    _, got = await all_of(leader, follower)
    assert text(got) == "All is well"
    assert got.headers.keys() == {"Content-Type", "Retry-After", "Cache-Status"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refused_credential_is_no_answer_to_another(rig: Rig, streamed: bool):
    public = {"scope": Scope.PUBLIC}
    leader = await rig.ask(headers={"authorization": "Bearer bad"}, decision=public)
    follower = await rig.ask(
        headers={"authorization": "Bearer good"}, decision=public, stream=streamed
    )
    (await rig.upstream.next_call()).plain({"error": {"message": "who are you?"}}, 401)
    own = await rig.upstream.next_call()
    assert dict(own.asked)["authorization"] == "Bearer good"
    own.plain(completion("All is well"))
    first, second = await all_of(leader, follower)
    assert (first.status, second.status) == (401, 200)


def refuse(call: Call, status: int) -> None:
    call.plain({"error": {"message": "no"}}, status, [("Retry-After", "7")])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_followers_with_another_credential_share_one_more_call(rig: Rig, status: int):
    public = {"scope": Scope.PUBLIC}
    asked = [
        await rig.ask(headers={"authorization": f"Bearer {name}"}, decision=public)
        for name in "aabbbcc"
    ]
    for _ in "abc":
        refuse(await rig.upstream.next_call(), status)
    assert {got.status for got in await all_of(*asked)} == {status}
    sent = sorted(dict(call.asked)["authorization"] for call in rig.upstream.calls)
    assert sent == ["Bearer a", "Bearer b", "Bearer c"]


async def test_a_limit_tells_nobody_of_another_ones_account(rig: Rig):
    public = {"scope": Scope.PUBLIC}
    asked = [
        await rig.ask(headers={"authorization": f"Bearer {name}"}, decision=public)
        for name in "aab"
    ]
    of_a = {"error": {"message": "Rate limit reached in organization org-a"}}
    (await rig.upstream.next_call()).plain(of_a, 429, [("Retry-After", "7")])
    one, same, other = await all_of(*asked)
    assert one.json == same.json == of_a
    assert b"org-a" not in other.raw
    assert (other.json["error"]["code"], other.headers["Retry-After"]) == (
        "rate_limit_exceeded",
        "7",
    )


async def test_nobody_repeats_a_request_that_meets_a_limit(rig: Rig):
    public = {"scope": Scope.PUBLIC}
    asked = [
        await rig.ask(headers={"authorization": f"Bearer {name}"}, decision=public, stream=streamed)
        for name in "abc"
        for streamed in (False, True)
    ]
    refuse(await rig.upstream.next_call(), 429)
    replies = await all_of(*asked)
    assert {(got.status, got.headers["Retry-After"]) for got in replies} == {(429, "7")}
    assert len(rig.upstream.calls) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_nobody_repeats_what_was_refused_to_the_gateways_own_key(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, status: int
):
    monkeypatch.setattr("gated_upstream.Call.served", Served("u", passes_credentials=False))
    public = {"scope": Scope.PUBLIC}
    asked = [
        await rig.ask(headers={"authorization": f"Bearer {name}"}, decision=public)
        for name in "abcdef"
    ]
    refuse(await rig.upstream.next_call(), status)
    assert {got.status for got in await all_of(*asked)} == {status}
    assert len(rig.upstream.calls) == 1


class BrokenClaims:
    """Claims that fail in a way that nobody foresaw."""

    async def take(self, _slot: bytes) -> bool:
        raise AttributeError("no such attribute")

    def release(self, _slot: bytes) -> None:
        raise AssertionError("nothing was claimed")


async def test_claims_that_break_cost_no_answer(rig: Rig, caplog: pytest.LogCaptureFixture):
    rig.coalescer.claims = BrokenClaims()
    asked = [await rig.ask() for _ in range(3)]
    (await rig.upstream.next_call()).plain(completion("All is well"))
    assert [text(got) for got in await all_of(*asked)] == ["All is well"] * 3
    assert "a claim failed" in caplog.text


async def test_a_defect_before_the_call_reaches_all_at_once_and_is_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.coalescer, "_claim_and_call", broken)
    rig.coalescer.claims = BrokenClaims()
    asked = [await rig.ask() for _ in range(3)]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [RuntimeError] * 3
    assert "ZeroDivisionError" in caplog.text
    assert "never retrieved" not in caplog.text


async def test_tokens_are_counted_to_one_request(rig: Rig):
    asked = [await rig.ask(stream=True) for _ in range(3)]
    call = await rig.upstream.next_call()
    call.head()
    call.say(*ANSWER[:-1], usage_event(), DONE)
    call.end()
    seen = [got.seen for got in await all_of(*asked)]
    assert [one.call.usage.completion for one in seen] == [3, None, None]
    assert [one.call.stored for one in seen] == [True, False, False]
    assert [one.call.head is not None for one in seen] == [True, False, False]
    assert {(one.outcome, one.status) for one in seen} == {("miss", 200)}


async def test_tokens_are_counted_to_a_follower_when_the_leader_has_left(rig: Rig):
    leader, follower = await rig.ask(stream=True), await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    leader.cancel()
    await asyncio.wait([leader])
    call.say(*ANSWER[:-1], usage_event(), DONE)
    call.end()
    [got] = await all_of(follower)
    assert (got.seen.call.usage.completion, got.seen.call.stored) == (3, True)


async def test_a_refresh_can_be_followed_and_outlives_its_followers(rig: Rig):
    assert rig.refresh(rig.exchange(stream=True))
    call = await rig.upstream.next_call()
    call.head()
    call.say(ANSWER[0])
    follower, leaver = await rig.ask(stream=True), await rig.ask(stream=True)
    leaver.cancel()
    await asyncio.wait([leaver])
    assert not call.ended.is_set()
    call.say(*ANSWER[1:])
    call.end()
    [got] = await all_of(follower)
    assert got.raw == b"".join(ANSWER)
    assert got.cache == "refrain; fwd=miss; collapsed"
    assert got.seen.call.usage.completion is None


async def test_closing_leaves_nobody_waiting(rig: Rig):
    streamed = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(ANSWER[0])
    await call.taken()
    plain = await rig.ask()
    unbegun = await rig.ask("another")
    await rig.coalescer.close()
    [got] = await all_of(streamed)
    assert stream(got.raw)[-1]["error"]["code"] == "upstream-broke"
    for one in (plain, unbegun):
        with pytest.raises(UpstreamError):
            await all_of(one)
    assert call.ended.is_set()


async def test_a_defect_reaches_all_and_leaves_nobody_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.cache.writer.CacheWriter.store", broken)
    asked = [await rig.ask(stream=streamed) for streamed in (False, False, True)]
    (await rig.upstream.next_call()).plain(completion("All is well"))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [RuntimeError] * 3


async def test_an_upstream_that_does_not_close_after_the_end_holds_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.upstream.answer.DRAIN_SECONDS", 0.01)
    asked = [await rig.ask(stream=True) for _ in range(2)]
    call = await rig.upstream.next_call()
    call.head()
    call.say(*ANSWER)
    for got in await all_of(*asked):
        assert got.raw == b"".join(ANSWER)
        assert got.seen.outcome == "miss"
    assert call.ended.is_set()


async def test_an_upstream_that_does_not_close_after_an_end_without_an_answer_holds_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.upstream.answer.DRAIN_SECONDS", 0.01)
    asked = await rig.ask(stream=True)
    call = await rig.upstream.next_call()
    call.head()
    call.say(DONE)
    async with asyncio.timeout(10):
        [got] = await all_of(asked)
        await call.ended.wait()
    assert b"before the answer's end" in got.raw
