"""What is read of an engine's metrics, and what its figures do to the choice of a replica."""

import pytest

from backend.scheduler.stats import EngineStats
from backend.server.metrics import Metrics
from gateway.upstream.pool.routing import LeastLoaded, PrefixAware, Route
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import Member, loads
from gateway.upstream.pool.watch.engine_load import STALE_SECONDS, EngineLoad, parse_load
from gateway.upstream.request import Outgoing

VLLM = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{reason="capacity"} 90.0
# TYPE python_info gauge
python_info 1 not a number
"""


def test_the_figures_of_vllm_add_up_and_the_highest_kv_use_counts():
    new = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    assert parse_load((VLLM + new).encode()) == EngineLoad(7, 2, 0.5)
    old = "vllm:gpu_cache_usage_perc 0.75\n"
    assert parse_load((VLLM + old).encode()) == EngineLoad(7, 2, 0.75)
    assert parse_load(VLLM.encode()) == EngineLoad(7, 2, 0.0)


def test_the_figures_of_our_own_engine_are_read():
    stats = EngineStats(running=5, waiting=6, kv_blocks_used=30, kv_blocks_total=40)
    assert parse_load(Metrics(lambda: stats).render()) == EngineLoad(5, 6, 0.75)


def test_the_figures_of_sglang_are_read():
    page = "sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\nsglang:token_usage 0.1\n"
    assert parse_load(page.encode()) == EngineLoad(1, 2, 0.1)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"vllm:num_requests_running 1\n",
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running -1\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running +Inf\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running x\nvllm:num_requests_waiting 1\n",
        b'vllm:num_requests_running{a="\nvllm:num_requests_waiting 1\n',
    ],
)
def test_a_page_without_them_says_nothing(page: bytes):
    assert parse_load(page) is None


def chosen(table: PoolTable, now: float, prefix: tuple[int, ...] = ()) -> str:
    call = table.acquire(Outgoing("/v1/chat/completions", (), b"{}", "m", prefix), now)
    assert isinstance(call, Call)
    table.release(call)
    return call.name


@pytest.mark.parametrize(
    "load", [EngineLoad(2, 0, 0.1), EngineLoad(0, 1, 0.1), EngineLoad(0, 0, 1.0)]
)
def test_a_replica_with_more_to_do_comes_second_while_its_figures_are_fresh(load: EngineLoad):
    table = PoolTable([Member("a"), Member("b")], LeastLoaded(), 0.0)
    assert chosen(table, 0.0) == "a"
    table.record_load("a", load, 1.0)
    table.record_load("b", EngineLoad(0, 0, 0.1), 1.0)
    assert chosen(table, 1.0) == "b"
    assert chosen(table, 1.0 + STALE_SECONDS) == "a"


@pytest.mark.parametrize("routing", [LeastLoaded, PrefixAware])
@pytest.mark.parametrize("kv_use", [0.5, 1.0])
def test_a_replica_that_is_too_busy_to_tell_its_load_does_not_look_idle(
    routing: type[LeastLoaded], kv_use: float
):
    table = PoolTable([Member("a"), Member("b"), Member("c")], routing(), 0.0)
    for name, running in (("a", 8), ("b", 200)):
        table.record_load(name, EngineLoad(running, 0, kv_use), 1.0)
    table.record_load("b", None, 3.0)
    stale = 1.0 + STALE_SECONDS
    everyone = list(table.upstreams.values())
    assert [one.in_flight for one in loads(everyone, stale - 0.1)] == [8, 200, 0]
    table.record_load("a", EngineLoad(9, 0, kv_use), stale)
    table.record_load("b", None, stale)
    told, silent, _ = loads(everyone, stale)
    assert (told.in_flight, silent.in_flight) == (9, 9)
    assert told.crowded is silent.crowded is (kv_use == 1.0)
    table.drain("c")
    outgoing = Outgoing("/v1/chat/completions", (), b"{}", "m")
    calls = [table.acquire(outgoing, stale) for _ in range(8)]
    assert sorted(one.name for one in calls if isinstance(one, Call)) == ["a"] * 4 + ["b"] * 4


def test_requests_from_here_do_not_count_twice():
    table = PoolTable([Member("a"), Member("b")], LeastLoaded(), 0.0)
    outgoing = Outgoing("/v1/chat/completions", (), b"{}", "m")
    calls = [table.acquire(outgoing, 0.0) for _ in range(2)]
    table.record_load("a", EngineLoad(1, 0, 0.1), 0.0)
    table.record_load("b", EngineLoad(1, 0, 0.1), 0.0)
    assert [one.in_flight for one in loads([*table.upstreams.values()], 0.0)] == [1, 1]
    table.release(calls[0])
    assert [one.in_flight for one in loads([*table.upstreams.values()], 0.0)] == [0, 1]


def test_a_replica_without_kv_blocks_loses_the_prompts_that_it_holds():
    prefix = tuple(range(20))
    table = PoolTable([Member("a"), Member("b")], PrefixAware(), 0.0)
    table.record_prefix("a", prefix)
    assert chosen(table, 0.0, prefix) == "a"
    table.record_load("a", EngineLoad(1, 0, 0.99), 0.0)
    call = table.acquire(Outgoing("/v1/chat/completions", (), b"{}", "m", prefix), 0.0)
    assert isinstance(call, Call)
    assert (call.name, call.route) == ("b", Route.BALANCE)


def test_all_are_crowded_and_one_is_chosen_nevertheless():
    table = PoolTable([Member("a"), Member("b")], PrefixAware(), 0.0)
    for name, running in (("a", 9), ("b", 2)):
        table.record_load(name, EngineLoad(running, 0, 1.0), 0.0)
    assert chosen(table, 0.0, (1, 2)) == "b"
