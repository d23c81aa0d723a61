"""What one client's requests meet at an upstream is no state of the upstream for other clients."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_upstreams import Answers, StartServer, pool, says, servers, status
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.health import ACTIVE_SECONDS, FIRST_EJECTION, State
from gateway.upstream.pool.routing import LeastLoaded
from gateway.upstream.pool.table import Call, Change, PoolTable
from gateway.upstream.pool.upstream_state import Member, NoRoom
from gateway.upstream.pool.waiting_queue import Waiting
from gateway.upstream.request import Outgoing
from gateway.upstream.tries import Failure, Kind
from running_gateway import RunningGateway, StartGateway

FAILED = Failure(Kind.FAILED, Reason.UPSTREAM_STATUS)
LIMITED = Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, retry_after=30.0)
REFUSED = Failure(Kind.KEY_REFUSED, Reason.UPSTREAM_REFUSED)
NO_CONNECTION = Failure(Kind.UNREACHABLE, Reason.UPSTREAM_UNREACHABLE)


def asked(client: str | None) -> Outgoing:
    return Outgoing("/v1/chat/completions", (), b"{}", "m", client=client)


class Rig:
    """A table of some upstreams, and what it told of their states."""

    def __init__(self, *names: str) -> None:
        self.changes: list[Change] = []
        members = [Member(name) for name in names]
        self.table = PoolTable(members, LeastLoaded(), 0.0, self.changes.append)

    def call(self, client: str | None, now: float, failure: Failure | None = None) -> str | NoRoom:
        """Make a call that fails so, or is answered; return where, or why there was no room."""
        got = self.table.acquire(asked(client), now)
        if isinstance(got, NoRoom):
            return got
        if failure is None:
            self.table.first_byte(got, now)
        else:
            self.table.record_failure(got, failure, now)
        self.table.release(got)
        return got.name

    def states(self, now: float) -> list[State]:
        return [one.shown(now).state(now) for one in self.table.upstreams.values()]


def test_a_limit_holds_for_the_client_that_met_it():
    rig = Rig("a", "b")
    assert {rig.call("ann", 1.0, LIMITED), rig.call("ann", 1.0, LIMITED)} == {"a", "b"}
    refused = rig.call("ann", 2.0)
    assert isinstance(refused, NoRoom)
    assert (refused.status, refused.at, refused.waits, refused.own) == (429, 31.0, True, True)
    assert rig.table.paused_until(asked("ann"), 2.0) == 31.0
    assert rig.table.paused_until(asked("bob"), 2.0) is None
    assert {rig.call("bob", 2.0) for _ in range(3)} <= {"a", "b"}
    assert rig.call("ann", 31.0) in ("a", "b")


def test_failures_of_one_client_open_the_breaker_for_it_alone():
    rig = Rig("a")
    for _ in range(3):
        assert rig.call("ann", 1.0, FAILED) == "a"
    held = rig.table.acquire(asked("ann"), 1.1)  # one call at a time tries it
    assert isinstance(held, Call)
    refused = rig.call("ann", 1.1)
    assert isinstance(refused, NoRoom)
    assert (refused.status, refused.why) == (503, Reason.UPSTREAM_STATUS)
    for _ in range(5):
        assert rig.call("bob", 1.1) == "a"
    rig.table.first_byte(held, 1.2)
    rig.table.release(held)
    assert rig.call("ann", 1.2) == "a"


def test_a_client_is_tried_again_by_the_clock_and_waits_longer_each_time():
    rig = Rig("a", "b")
    for _ in range(6):
        rig.call("ann", 1.0, FAILED)
    until = 1.0 + FIRST_EJECTION
    assert rig.call("ann", until, FAILED) in ("a", "b")
    trouble = rig.table.upstreams["a"].clients.trouble_of("ann")
    assert trouble is not None
    assert trouble.health.back_at(until) == until + 2 * FIRST_EJECTION


def test_failures_of_clients_in_turn_open_it_for_all():
    rig = Rig("a")
    for client in ("ann", "bob", "cay"):
        rig.call(client, 1.0, FAILED)
    assert rig.states(1.0) == [State.OPEN]
    assert isinstance(rig.table.acquire(asked("dan"), 1.1), Call)
    assert isinstance(rig.call("eve", 1.1), NoRoom)


@pytest.mark.parametrize("client", [None, "ann"])
def test_a_connection_that_cannot_be_made_counts_for_all(client: str | None):
    rig = Rig("a")
    for _ in range(3):
        rig.call(client, 1.0, NO_CONNECTION)
    assert rig.states(1.0) == [State.OPEN]
    assert isinstance(rig.table.acquire(asked("bob"), 1.1), Call)
    assert isinstance(rig.call("bob", 1.1), NoRoom)


def test_operators_see_the_trouble_of_an_only_client_and_not_that_of_one_of_several():
    rig = Rig("a")
    rig.call("ann", 1.0, LIMITED)
    assert rig.states(1.0) == [State.PAUSED]
    rig.call("bob", 2.0)
    assert rig.states(2.0) == [State.UP]
    assert [change.after for change in rig.changes] == [State.PAUSED, State.UP]
    rig.call("cay", 3.0, LIMITED)
    assert rig.states(3.0) == [State.UP]
    assert rig.states(3.0 + ACTIVE_SECONDS) == [State.PAUSED]


def test_operators_see_a_refusal_of_the_key_at_once_until_a_call_is_answered():
    rig = Rig("a")
    rig.call("bob", 1.0)
    rig.call("ann", 2.0, REFUSED)
    assert rig.states(2.0) == [State.OPEN]
    assert [change.after for change in rig.changes] == [State.OPEN]
    rig.call("bob", 3.0)
    assert rig.states(3.0) == [State.UP]


def test_who_waits_for_its_own_pause_holds_nobody_up():
    rig = Rig("a")
    rig.call("ann", 1.0, LIMITED)
    waiting = Waiting[str](8)
    for client in ("ann", "ann", "bob", "cay"):
        waiting.add(asked(client), client)
    started, again = waiting.admit(rig.table, 2.0)
    assert [who for who, _ in started] == ["bob", "cay"]
    assert again == 31.0


@given(
    st.lists(st.tuples(st.sampled_from([FAILED, LIMITED, None]), st.sampled_from([0.0, 0.3, 9.0])))
)
def test_no_client_alone_keeps_another_one_out(history: list[tuple[Failure | None, float]]):
    rig, now = Rig("a", "b"), 0.0
    for failure, seconds in history:
        now += seconds
        rig.call("ann", now, failure)
        assert rig.call("bob", now) in ("a", "b")


@pytest.fixture
async def server() -> AsyncIterator[StartServer]:
    async with servers() as start:
        yield start


def refuses_bad(refusal: Answers) -> Answers:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        bad = "bad" in body["messages"][-1]["content"]
        return await (refusal if bad else says("Fine."))(request, body)

    return answer


async def holders(
    start: StartGateway, tmp_path: Path, *upstreams: Any, **settings: Any
) -> RunningGateway:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{n} {sha256(n.encode()).hexdigest()}\n" for n in ("ann", "bob")))
    return await pool(start, *upstreams, gateway_keys=keys, **settings)


def of(holder: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {holder}"}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "refusal",
    [status(429, Retry_After="30"), status(503, Retry_After="30"), status(529), status(500)],
    ids=["429", "503", "529", "500"],
)
async def test_a_holder_of_bad_requests_costs_no_other_holder_an_answer(
    start_gateway: StartGateway,
    server: StartServer,
    tmp_path: Path,
    number: int,
    refusal: Answers,
):
    upstreams = [await server(refuses_bad(refusal)) for _ in range(number)]
    gateway = await holders(start_gateway, tmp_path, *upstreams, queue_timeout=1.0)
    told = []
    for round_ in range(6):
        bad = await gateway.ask(f"bad {round_}", headers=of("ann"))
        assert bad.status in (429, 503, 529, 500)
        told.append((await gateway.ask(f"good {round_}", headers=of("bob"))).status)
    assert told == [200] * 6
    assert (await gateway.get("/readyz")).json["upstreams"]["a"]["state"] == "up"


async def test_who_met_a_limit_is_told_when_to_come_back(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    one = await server(refuses_bad(status(429, Retry_After="40")))
    gateway = await holders(start_gateway, tmp_path, one)
    assert (await gateway.ask("bad", headers=of("ann"))).headers["Retry-After"] == "40"
    reply = await gateway.ask("good", headers=of("ann"))
    assert (reply.status, reply.json["error"]["code"]) == (429, "upstream-busy")
    assert 1 <= int(reply.headers["Retry-After"]) <= 40
    assert one.calls == 1
    told = (await gateway.get("/readyz")).json["upstreams"]["a"]
    assert (told["state"], told["why"]) == ("paused", "upstream-limited")


async def test_the_fallback_model_is_for_the_holder_whose_upstreams_are_full(
    start_gateway: StartGateway, server: StartServer, tmp_path: Path
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, "
        "pii: allow, fallback_model: small}\n"
    )
    first = await server(refuses_bad(status(429, Retry_After="40")))
    second = await server(says("Small."))
    gateway = await holders(
        start_gateway, tmp_path, first, second, models={"a": ["m"], "b": ["small"]}, policy=policy
    )
    await gateway.ask("bad", headers=of("ann"))
    assert (await gateway.ask("one", headers=of("ann"))).text == "Small."
    assert (await gateway.ask("two", headers=of("bob"))).text == "Fine."
