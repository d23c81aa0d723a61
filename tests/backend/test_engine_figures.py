"""What a real engine says of itself on /metrics, idle and under load."""

import asyncio
import threading

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend.engine.client import EngineClient
from backend.engine.messages import EngineDescription, Report
from backend.scheduler.cache_events import NOTHING_CACHED, EventBatch
from backend.scheduler.sequence import Sequence
from backend.scheduler.stats import EngineStats, Recorder

pytest_plugins = ["running_backend"]

PREFIX = "refrain_engine_"


async def scrape(server):
    """Every sample by name and label values; each family's types and buckets are checked."""
    page = (await server.get("/metrics")).raw.decode()
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            key = (sample.name.removeprefix(PREFIX), *sorted(labels.values()))
            if sample.name.endswith("_bucket"):
                rising = found.setdefault(key, [])
                assert not rising or rising[-1] <= sample.value
                rising.append(sample.value)
            else:
                assert key not in found
                found[key] = sample.value
    for key, value in found.items():
        if key[0].endswith("_count"):
            assert found[key[0].replace("_count", "_bucket"), *key[1:]][-1] == value
    return found


def rose(before, after, *key):
    return after.get(key, 0) - before.get(key, 0)


async def test_one_answer(real_server):
    before = await scrape(real_server)
    reply = await real_server.chat("Hi there", max_tokens=6, temperature=0, ignore_eos=True)
    usage = reply.json["usage"]
    after = await scrape(real_server)
    assert usage["completion_tokens"] == 6
    for name, more in (
        ("prompt_tokens_total", usage["prompt_tokens"]),
        ("generation_tokens_total", 6),
        ("time_to_first_token_seconds_count", 1),
        ("inter_token_latency_seconds_count", 5),
        ("time_per_output_token_seconds_count", 1),
        ("queue_seconds_count", 1),
        ("prefill_seconds_count", 1),
        ("decode_seconds_count", 1),
        ("sequence_prompt_tokens_sum", usage["prompt_tokens"]),
        ("sequence_generation_tokens_sum", 6),
        ("step_tokens_sum", usage["prompt_tokens"] + 5),
        ("batch_size_sum", 6),
        ("prefix_cache_queries_total", usage["prompt_tokens"]),
        ("preemptions_total", 0),
        ("tokens_after_disconnect_total", 0),
        ("restarts_total", 0),
    ):
        assert rose(before, after, name) == more, name
    assert rose(before, after, "sequences_finished_total", "length") == 1
    assert rose(before, after, "step_seconds_count", "1", "prefill") == 1
    assert rose(before, after, "step_seconds_count", "1", "decode") == 5
    assert after["sequences_running",] == after["sequences_waiting",] == 0
    assert after["resident_bytes",] > 10_000_000
    assert after["build_info", *sorted(("tiny", after_version(after)))] == 1


def after_version(found):
    (labels,) = [key[1:] for key in found if key[0] == "build_info"]
    (version,) = set(labels) - {"tiny"}
    return version


async def test_the_times_of_a_sequence_are_parts_of_its_requests_time(real_server):
    before = await scrape(real_server)
    await real_server.chat("Hi", max_tokens=8, temperature=0, ignore_eos=True)
    after = await scrape(real_server)
    first = rose(before, after, "time_to_first_token_seconds_sum")
    queue = rose(before, after, "queue_seconds_sum")
    prefill = rose(before, after, "prefill_seconds_sum")
    decode = rose(before, after, "decode_seconds_sum")
    between = rose(before, after, "inter_token_latency_seconds_sum")
    whole = rose(before, after, "request_seconds_sum", "/v1/chat/completions")
    assert queue + prefill == pytest.approx(first)
    assert between == pytest.approx(decode)
    assert 0 < first < first + decode <= whole


async def test_prefix_hits_and_tenants(real_server):
    before = await scrape(real_server)
    text = "a common beginning that is long enough for several blocks of the cache"
    replies = [await real_server.complete(text, max_tokens=1) for _ in range(2)]
    after = await scrape(real_server)
    hits = rose(before, after, "prefix_cache_hits_total")
    assert hits == sum(
        reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies
    )
    assert hits == len(text) // 16 * 16
    assert rose(before, after, "prefix_cache_queries_total") == 2 * len(text)
    assert after["prefix_cache_blocks", "shared"] == rose(
        before, after, "prefix_cache_blocks", "shared"
    ) + before.get(("prefix_cache_blocks", "shared"), 0)
    assert rose(before, after, "prefix_cache_blocks", "shared") == len(text) // 16


async def test_a_client_that_leaves_is_an_abort_and_costs_next_to_nothing(real_server):
    before = await scrape(real_server)
    runner, go = real_server.generator._core.runner, threading.Semaphore(0)
    launch = runner.launch

    def paced(step):
        assert go.acquire(timeout=60)
        return launch(step)

    runner.launch = paced
    asking = asyncio.create_task(
        real_server.complete("Hi", max_tokens=500, temperature=0, ignore_eos=True)
    )
    async with asyncio.timeout(60):
        while (await scrape(real_server))["sequences_running",] != 1:
            go.release()
        asking.cancel()
        go.release(500)
        while True:
            after = await scrape(real_server)
            if rose(before, after, "sequences_finished_total", "abort"):
                break
    assert after["sequences_running",] == 0
    # A message of microseconds, where a step of the tiny model takes hardly longer.
    assert rose(before, after, "tokens_after_disconnect_total") <= 30
    assert rose(before, after, "generation_tokens_total") < 500


async def test_scraping_under_load_shows_consistent_figures(real_server):
    fields = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}

    def load():
        return asyncio.gather(
            *(real_server.chat(f"question {number}", **fields) for number in range(24)),
            *(real_server.chat(f"streamed {number}", stream=True, **fields) for number in range(8)),
        )

    last, seen, loads = await scrape(real_server), set(), [load()]
    while not loads[-1].done() or max(seen) < 2:
        if loads[-1].done():  # too quick to be seen
            loads.append(load())
        found = await scrape(real_server)
        seen.add(found["sequences_running",])
        assert 0 <= found["kv_use_ratio",] <= 1
        for key, value in last.items():
            if key[0].endswith(("_total", "_count", "_sum")):
                assert found[key] >= value, key
        last = found
    replies = [reply for each in loads for reply in await each]
    assert all(reply.status == 200 for reply in replies)
    found = await scrape(real_server)
    assert found["sequences_finished_total", "length"] >= 32
    assert found["batch_size_count",] < found["batch_size_sum",]  # they were batched
    assert max(seen) > 1
    assert found["sequences_running",] == 0


def figures_of(sequences):
    recorder = Recorder()
    for _ in range(sequences):
        sequence = Sequence(0, [1], max_length=9)
        recorder.arrived([sequence], 0.0)
        recorder.ended(sequence, "stop")
    return EngineStats(2, 1, 3, 9, 5, 6, 7, recording=recorder.read())


def test_an_engines_process_that_dies_is_a_restart_and_counters_never_fall():
    client = EngineClient(lambda _: None)
    told = []
    client.cache_listener = told.extend
    description = EngineDescription(100, 100)
    client.open(description, None)
    client.receive(Report(stats=figures_of(3), cache_events=[EventBatch(0, ())]))
    client.close("it died")
    down = client.stats()
    assert (down.running, down.waiting, down.kv_blocks_used) == (0, 0, 0)
    assert down.prompt_tokens == 6
    client.close("it is being started again")
    assert told == [EventBatch(0, ()), NOTHING_CACHED]
    client.open(description, None)
    client.receive(Report(stats=figures_of(1)))
    now = client.stats()
    assert (now.running, now.preemptions, now.prompt_tokens, now.restarts) == (2, 10, 12, 1)
    assert now.recording.counts["sequences_finished", ("stop",)] == 4
    client.receive(Report(stats=figures_of(2)))  # of the same engine, a moment later
    assert client.stats().recording.counts["sequences_finished", ("stop",)] == 5


async def test_a_request_that_waits_too_long_has_an_end_of_its_own(start_real_server):
    server = await start_real_server(max_num_seqs=1)
    # One after the other, so that whoever comes next would wait for seconds.
    long = asyncio.gather(
        *(server.complete("Hi", max_tokens=500, ignore_eos=True) for _ in range(8))
    )
    async with asyncio.timeout(60):
        while (await scrape(server))["sequences_running",] != 1:
            pass
    headers = {"X-Refrain-Queue-Timeout": "0.001"}
    body = orjson.dumps({"model": "tiny", "prompt": "Hi", "max_tokens": 1})
    async with server.session.post(
        f"{server.url}/v1/completions", data=body, headers=headers
    ) as reply:
        assert reply.status == 503
    async with asyncio.timeout(60):
        while (await scrape(server)).get(("sequences_finished_total", "queue_timeout")) != 1:
            pass  # figures are a moment old while the engine works
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
