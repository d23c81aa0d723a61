"""Prefill apart from decode: which prefill member a request names, and that no client names one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from faulty_upstreams import StartServer, says, servers, status

from gateway.cli.operator.status import screen
from gateway.protocol.http.cache_status import Reason
from gateway.settings import Settings, SettingsError, load_settings
from gateway.upstream.pool.health import State
from gateway.upstream.pool.routing import PrefixAware
from gateway.upstream.pool.table import Call, PoolTable, states
from gateway.upstream.pool.upstream_state import Member, NoRoom
from gateway.upstream.request import Outgoing, call_fields, own_fields, passed_fields
from policies.decision import Priority
from running_gateway import RunningGateway, StartGateway

HEADER = "X-Refrain-Prefill"
DOWN = Reason.UPSTREAM_UNREACHABLE
SYSTEM = "You are a clerk who answers in one sentence. " * 200


def prefill(name: str, **changes: Any) -> Member:
    return Member(name, role="prefill", kv_transfer=f"{name}.internal:8200", **changes)


def table(*members: Member) -> PoolTable:
    return PoolTable(members, PrefixAware(), 0.0)


D = Member("d", role="decode")
TWO = (D, prefill("p1"), prefill("p2"))


def sent(made: PoolTable, *prefix: int, target: str = "chat/completions", model: str = "m") -> Call:
    outgoing = Outgoing(f"/v1/{target}", (), b"{}", model, prefix)
    call = made.acquire(outgoing, 1.0)
    assert isinstance(call, Call)
    return call


def prefill_of(call: Call) -> str:
    return "" if call.prefill is None else call.prefill.name


def answered(made: PoolTable, *prefix: int) -> str:
    """Send a request that is answered; return its prefill member."""
    call = sent(made, *prefix)
    made.first_byte(call, 1.0)
    made.release(call)
    return prefill_of(call)


def in_flight(made: PoolTable) -> dict[str, int]:
    return {name: one.in_flight for name, one in made.upstreams.items()}


def test_prompts_that_begin_alike_have_one_prefill_member_and_others_spread():
    made = table(*TWO)
    chats = [tuple(range(100 * number, 100 * number + 9)) for number in range(20)]
    began = [answered(made, *chat) for chat in chats]
    assert set(began) == {"p1", "p2"}
    assert [answered(made, *chat, -1) for chat in chats] == began


def test_a_prefill_member_is_busy_until_the_first_byte_and_its_load_is_bounded():
    made = table(*TWO)
    calls = [sent(made, 1, 2, 3, number) for number in range(10, 22)]
    named = [prefill_of(call) for call in calls]
    assert set(named) == {"p1", "p2"}  # though one of them alone has the beginning
    for call in calls:
        made.first_byte(call, 1.0)
    assert in_flight(made) == {"d": 12, "p1": 0, "p2": 0}
    for call in calls:
        made.release(call)
    failed = sent(made, 1)
    made.release(failed)
    made.release(failed)
    assert in_flight(made) == {"d": 0, "p1": 0, "p2": 0}


def test_a_prompt_that_is_refused_or_not_answered_is_not_held():
    made = table(*TWO)
    refused, left = sent(made, 1, 2), sent(made, 3, 4)
    made.first_byte(refused, 1.0, refused=True)
    for call in (refused, left):
        made.release(call)
    assert isinstance(made.routing, PrefixAware)
    assert [made.routing.index.size(name) for name in ("d", "p1", "p2")] == [0, 0, 0]


def test_no_client_s_request_goes_to_a_prefill_member():
    made = table(*TWO)
    outgoing = Outgoing("/v1/chat/completions", (), b"{}", "m")
    assert isinstance(made.acquire(outgoing, 1.0, {"d"}), NoRoom)
    assert made.first_available(None, 1.0) == made.first_available("m", 1.0) == ["d"]
    assert [made.takes_requests(name) for name in ("d", "p1", "x")] == [True, False, False]
    assert not made.serves("p1", "m")
    assert not made.can_be_spared("p1", "m", 1.0)
    made.upstreams["p1"].draining = True
    assert not made.serves("p1", "m")


def test_a_member_that_is_down_is_not_named_and_none_is_without_one():
    made = table(D, prefill("p1"))
    for _ in range(2):
        # Answers of decode members say nothing of it, and spare no probe.
        assert answered(made, 1) == "p1"
        assert made.probe_at("p1", 10.0) <= 10.0
        made.record_probe("p1", DOWN, 1.0, for_sure=False)
    assert answered(made, 1) == ""
    made.record_probe("p1", None, 2.0, for_sure=False)
    first, beside = sent(made, 1), sent(made, 2)
    assert [prefill_of(first), prefill_of(beside)] == ["p1", ""]
    made.first_byte(first, 2.0)
    assert {one.member.name: state for one, state, _ in states(made, 2.0)}["p1"] is State.UP
    assert answered(made, 1) == "p1"


def test_a_prefill_member_that_says_it_is_not_ready_is_out_at_once_and_a_full_one_is_passed_over():
    made = table(*TWO)
    made.record_probe("p1", Reason.UPSTREAM_STATUS, 1.0, for_sure=True)
    assert {answered(made, number) for number in range(20)} == {"p2"}
    made = table(D, prefill("p1", max_concurrency=1))
    assert [prefill_of(sent(made, number)) for number in (1, 2)] == ["p1", ""]


def test_it_has_the_decode_member_s_model_and_the_lowest_tier():
    decode = Member("d", ("qwen*", "llama"), rename={"fast": "qwen-4b"}, role="decode")
    made = table(decode, prefill("p1", models=("qwen*",)), prefill("p0", models=("qwen*",), tier=2))
    names = [prefill_of(sent(made, 1, model=model)) for model in ("qwen-8b", "fast", "llama")]
    assert names == ["p1", "p1", ""]
    listed = table(*TWO)
    listed.record_models("p1", frozenset({"m"}))
    listed.record_models("p2", frozenset({"other"}))
    assert prefill_of(sent(listed, 1)) == "p1"
    assert prefill_of(sent(listed, 1, model="")) in ("p1", "p2")


def test_only_decode_members_and_only_generations_need_one():
    made = table(*TWO)
    targets = ("completions?a=b", "responses", "messages", "embeddings", "rerank")
    named = [prefill_of(sent(made, 1, target=target)) != "" for target in targets]
    assert named == [True, True, True, False, False]
    assert prefill_of(sent(table(Member("plain"), prefill("p1")), 1)) == ""


def test_a_second_try_may_name_another_one():
    made = table(*TWO)
    first = sent(made, 1, 2)
    made.record_probe(prefill_of(first), Reason.UPSTREAM_STATUS, 1.0, for_sure=True)
    again = made.retry_same("d", Outgoing("/v1/chat/completions", (), b"{}", "m", (1, 2)), 1.0)
    assert again is not None
    assert {prefill_of(first), prefill_of(again)} == {"p1", "p2"}


def test_no_header_of_a_client_names_a_prefill_engine():
    fields = [("x-refrain-PREFILL", "evil:1"), (HEADER, "evil:2"), ("A", "b")]
    made = (own_fields(fields), call_fields(fields, Priority.NORMAL), passed_fields(fields))
    for rest in made:
        assert ("A", "b") in rest
        assert "evil" not in str(rest)


ENGINE = {"preset": "refrain", "url": "http://a:8100/v1"}
PREFILL = {**ENGINE, "role": "prefill", "kv_transfer": "p1.internal:8200"}


def test_members_have_roles_and_adding_a_prefill_member_keeps_the_cache():
    decode = {"preset": "refrain", "role": "decode"}
    settings = Settings(upstreams=(PREFILL, decode))
    assert [one.role for one in settings.all_upstreams] == ["prefill", "decode"]
    assert settings.all_upstreams[0].kv_transfer == "p1.internal:8200"
    assert settings.upstream_identity == Settings(upstreams=(decode,)).upstream_identity
    assert settings.salts
    models = ({**decode, "models": ["q"]}, {**PREFILL, "models": ["q"]})
    assert not Settings(upstreams=models).refuses_unknown_models
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ENGINE | {"role": "prefill"}, "expected kv_transfer: HOST:PORT beside role: prefill"),
        (PREFILL | {"role": "decode"}, "beside role: prefill, and only there"),
        (ENGINE | {"kv_transfer": "p1:8200"}, "beside role: prefill, and only there"),
        (PREFILL | {"role": "both"}, "role: expected one of prefill, decode, got 'both'"),
        (PREFILL | {"kv_transfer": "p1"}, "].kv_transfer: expected host and port such as p1"),
        (PREFILL | {"kv_transfer": "p1:99999"}, "such as p1.internal:8200, got 'p1:99999'"),
        (PREFILL | {"kv_transfer": "tcp://p1:82"}, "expected host and port"),
        (PREFILL | {"kv_transfer": "p1:82\r\nX-A: b"}, "expected host and port"),
        (PREFILL | {"preset": "vllm"}, "expected preset: refrain beside role"),
        ({"url": "http://a/v1", "role": "decode"}, "expected preset: refrain beside role"),
        (PREFILL | {"discover": "dns"}, "expected no discover and no rename"),
        (PREFILL | {"rename": {"a": "b"}}, "expected no discover and no rename"),
        (PREFILL, "expected an upstream beside those with role: prefill"),
    ],
)
def test_a_wrong_role_is_told(tmp_path: Path, given: dict[str, Any], told: str):
    file = tmp_path / "refrain.yaml"
    file.write_bytes(orjson.dumps({"upstreams": [given]}))
    with pytest.raises(SettingsError) as error:
        load_settings({}, {}, file)
    assert told in str(error.value)


@pytest.fixture
async def start() -> AsyncIterator[StartServer]:
    async with servers() as starting:
        yield starting


async def pool(start_gateway: StartGateway, **urls: str) -> RunningGateway:
    """Start a gateway: members p… are for prefill, d… for decode, and e… if no other decodes."""
    listed = []
    for name, url in urls.items():
        roles: dict[str, Any] = {
            "d": {"role": "decode"},
            "e": {"role": "decode", "tier": 2},
            "x": {},
        }
        roles["p"] = {"role": "prefill", "kv_transfer": f"{name}.internal:8200"}
        listed.append({"name": name, "preset": "refrain", "url": f"{url}/v1", **roles[name[0]]})
    return await start_gateway(upstream=(), upstreams=listed)


async def test_a_decode_engine_is_told_where_and_clients_tell_nobody(
    start_gateway: StartGateway, start: StartServer
):
    one, other = await start(says("Prefill?")), await start(says("Prefill?"))
    broken, decode = await start(status(500)), await start(says("Fine."))
    gateway = await pool(start_gateway, p1=one.url, p2=other.url, d1=broken.url, e1=decode.url)
    evil = {HEADER: "evil.internal:1", "Cache-Control": "no-store"}
    turns = [{"role": "system", "content": SYSTEM}]
    for number in range(6):
        said = await gateway.ask(headers=evil, messages=turns, user=str(number), stream=number > 3)
        assert (said.status, said.text) == (200, "Fine.")
    message = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": SYSTEM}]}
    assert (await gateway.post("/v1/messages", orjson.dumps(message), headers=evil)).status == 200
    assert (await gateway.post("/v1/audio/speech", b'{"model":"m"}', headers=evil)).status == 201
    assert (await gateway.get("/v1/files/a", headers=evil)).status == 201
    of_prefill, of_decode = [*one.requests, *other.requests], [*broken.requests, *decode.requests]
    assert {each.path for each in of_prefill} <= {"/readyz", "/metrics"}
    chats = [each for each in of_decode if each.path == "/v1/chat/completions"]
    assert len(chats) == broken.calls + 7
    assert broken.calls
    named = [each.headers.getall(HEADER) for each in chats]
    alike = {tuple(each) for each in named[:-1]}
    assert alike in ({("p1.internal:8200",)}, {("p2.internal:8200",)})
    assert named[-1] in (["p1.internal:8200"], ["p2.internal:8200"])
    assert {HEADER in each.headers for each in of_decode if each not in chats} == {False}


async def test_an_upstream_without_a_role_gets_no_such_header(
    start_gateway: StartGateway, start: StartServer
):
    plain = await start(says("Fine."))
    gateway = await pool(start_gateway, x=plain.url)
    assert (await gateway.ask(headers={HEADER: "evil.internal:1"})).status == 200
    assert [HEADER in each.headers for each in plain.requests] == [False]


async def test_operators_see_roles_and_what_a_prefill_member_has_to_do(
    start_gateway: StartGateway, start: StartServer
):
    go = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go.wait()
        return await says("Fine.")(request, body)

    prefill, decode = await start(says("Prefill?")), await start(answer)
    gateway = await pool(start_gateway, p1=prefill.url, d1=decode.url)
    asked = asyncio.create_task(gateway.ask())
    await decode.arrived.wait()
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_upstream_in_flight{upstream="p1"} 1.0' in page
    go.set()
    assert (await asked).status == 200
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_upstream_in_flight{upstream="p1"} 0.0' in page
    assert 'refrain_upstream_state{state="up",upstream="p1"} 1.0' in page
    ready = (await gateway.get("/readyz")).json
    roles = {name: each["role"] for name, each in ready["upstreams"].items()}
    assert roles == {"p1": "prefill", "d1": "decode"}
    shown = "\n".join(screen({"url": gateway.url, "ready": ready, "overview": None}))
    assert "p1 (prefill): up, 0 in flight" in shown
