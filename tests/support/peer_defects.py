"""Defects seen in other gateways and caches: a check for each, and the defence against it.

Each check asks the real gateway as a client would and fails where it has the defect. Its
``sabotage`` switches our defence off, so that a test can show the check to be one that fails.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, web

from embeddings.client import EmbeddingsClient
from gateway.cache import canonical, key, lookup
from gateway.cache.plan import Plan
from gateway.cache.stores import eviction
from gateway.cache.stores.redis import store as store_redis
from gateway.cache.stores.redis.store import RedisStore
from gateway.protocol.streaming import render
from running_gateway import Asked, RunningGateway, StartGateway
from running_redis import RunningRedis
from scripted_upstream import DONE, ScriptedUpstream, chunk, completion, stream_of

QUESTION = "How do I reset my password?"
ANNA = {"Authorization": "Bearer anna"}
BERT = {"Authorization": "Bearer bert"}
BOUND = 16.0
"""Seconds; a check that waits longer has failed."""


@dataclass
class Bench:
    """What a check works with."""

    start: StartGateway
    upstream: ScriptedUpstream
    folder: Path
    patch: Callable[[Any, str, Any], None]
    encoding: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a silent encoder was given a text."""


Check = Callable[[Bench], Awaitable[None]]
Sabotage = Callable[[Bench], None]


@dataclass(frozen=True)
class Defect:
    """Who has it, what it is, how we look for it, and how we would have it."""

    name: str
    seen_in: str
    check: Check
    sabotage: Sabotage


DEFECTS: list[Defect] = []


def defect(name: str, seen_in: str, sabotage: Sabotage) -> Callable[[Check], Check]:
    """Register a check."""

    def register(check: Check) -> Check:
        DEFECTS.append(Defect(name, seen_in, check, sabotage))
        return check

    return register


def _answered(asked: Asked) -> None:
    if asked.status != 200:  # a check that failed for this would show nothing
        raise RuntimeError(f"{asked.status}: {asked.raw!r}")


def missed(asked: Asked) -> bool:
    """Tell whether the upstream was asked."""
    _answered(asked)
    return "fwd=miss" in asked.cache


def hit(asked: Asked) -> bool:
    """Tell whether an entry answered."""
    _answered(asked)
    return "; hit" in asked.cache


def _one_scope_for_all(bench: Bench) -> None:
    bench.patch(key, "_owner", lambda scope, tenant: b"everybody")
    key.shared_partition.cache_clear()


@defect("one tenant is served another's answer", "LiteLLM #29955", _one_scope_for_all)
async def tenants_are_apart(bench: Bench) -> None:
    key.shared_partition.cache_clear()
    gateway = await bench.start()
    await gateway.ask(QUESTION, headers=ANNA)
    assert missed(await gateway.ask(QUESTION, headers=BERT))
    assert hit(await gateway.ask(QUESTION, headers=ANNA))
    assert bench.upstream.calls == 2


def _known_fields_only(bench: Bench) -> None:
    whole = canonical.keyed
    known = ("model", "messages", "temperature", "max_tokens")

    def keyed(endpoint: Any, body: Any) -> Any:
        return {name: value for name, value in whole(endpoint, body).items() if name in known}

    bench.patch(canonical, "keyed", keyed)


@defect("a provider's parameter is left out of the key", "LiteLLM #42400", _known_fields_only)
async def every_parameter_counts(bench: Bench) -> None:
    gateway = await bench.start()
    await gateway.ask(QUESTION)
    for extra in (
        {"top_k": 1},
        {"reasoning_effort": "high"},
        {"guided_regex": "a"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ):
        assert missed(await gateway.ask(QUESTION, **extra)), extra


def _order_of_arrival(bench: Bench) -> None:
    bench.patch(canonical.orjson, "OPT_SORT_KEYS", 0)


@defect("the key depends on the order of JSON keys", "Bifrost #2791", _order_of_arrival)
async def order_of_keys_is_nothing(bench: Bench) -> None:
    gateway = await bench.start()
    one = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1}'
    other = b'{"seed":1,"messages":[{"content":"hi","role":"user"}],"model":"m"}'
    await gateway.post("/v1/chat/completions", one)
    assert hit(await gateway.post("/v1/chat/completions", other))


def _lower_case(bench: Bench) -> None:
    whole = canonical.keyed

    def keyed(endpoint: Any, body: Any) -> Any:
        return orjson.loads(orjson.dumps(whole(endpoint, body)).lower())

    bench.patch(canonical, "keyed", keyed)


@defect("an exact key of lower-cased text", "Bifrost", _lower_case)
async def case_of_letters_counts(bench: Bench) -> None:
    gateway = await bench.start()
    await gateway.ask("What does Polish mean?")
    assert missed(await gateway.ask("What does polish mean?"))


def _last_message_alone(bench: Bench) -> None:
    bench.patch(Plan, "fingerprint", b"f" * 32)


@defect(
    "semantic lookup passes over system prompt, history and parameters",
    "vLLM semantic-router #3423",
    _last_message_alone,
)
async def all_but_the_question_must_be_equal(bench: Bench) -> None:
    gateway = await _finding_everything(bench)
    await gateway.ask(QUESTION)
    paraphrase = "How can I reset my password?"
    user = {"role": "user", "content": paraphrase}
    for before in (
        [{"role": "system", "content": "Answer in French."}],
        [{"role": "user", "content": "I use Windows."}, {"role": "assistant", "content": "Ok."}],
    ):
        assert missed(await gateway.ask(paraphrase, messages=[*before, user]))
    assert missed(await gateway.ask(paraphrase, temperature=0.5))
    assert hit(await gateway.ask(paraphrase))


def _anybodys_entries(bench: Bench) -> None:
    _last_message_alone(bench)
    bench.patch(Plan, "belongs", lambda plan, entry: True)


@defect(
    "another tenant's answer at a similarity of 0.91",
    "vLLM semantic-router #1448",
    _anybodys_entries,
)
async def meaning_crosses_no_scope(bench: Bench) -> None:
    gateway = await _finding_everything(bench)
    await gateway.ask(QUESTION, headers=ANNA)
    assert missed(await gateway.ask("How can I reset my password?", headers=BERT))
    assert hit(await gateway.ask("How can I reset my password?", headers=ANNA))


def _plain_always(bench: Bench) -> None:
    from gateway.server import hit_reply as rendering

    whole = rendering.render_hit

    def render_hit(endpoint: Any, body: Any, found: Any, seen: Any) -> Any:
        streamed, seen.streamed = seen.streamed, False
        reply = whole(endpoint, body, found, seen)
        seen.streamed = streamed
        return reply

    from gateway.server import pipeline

    bench.patch(pipeline, "render_hit", render_hit)


@defect(
    "JSON is sent to a client that streams",
    "production-stack; vLLM semantic-router #913",
    _plain_always,
)
async def a_streaming_client_gets_a_stream(bench: Bench) -> None:
    gateway = await bench.start()
    await gateway.ask(QUESTION)
    streamed = await gateway.ask(QUESTION, stream=True)
    assert hit(streamed)
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    assert streamed.raw.endswith(b"data: [DONE]\n\n")


def _text_alone(bench: Bench) -> None:
    whole = render._chat_pieces

    def pieces(choice: Any) -> Any:
        message = {"role": "assistant", "content": choice["message"].get("content")}
        return whole({**choice, "message": message})

    bench.patch(render, "_chat_pieces", pieces)


CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
}


@defect(
    "reasoning, tool calls or usage are lost on a streamed hit",
    "LiteLLM #32068, #42244",
    _text_alone,
)
async def a_streamed_hit_holds_all(bench: Bench) -> None:
    gateway = await bench.start()
    result = completion("", finish_reason="tool_calls")
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]}
    result["choices"][0]["message"] |= message

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(result)

    bench.upstream.answer = answer
    await gateway.ask(QUESTION)
    streamed = await gateway.ask(QUESTION, stream=True, stream_options={"include_usage": True})
    assert hit(streamed)
    deltas = [c["delta"] for event in streamed.events for c in event["choices"]]
    assert "Hm." in [delta.get("reasoning_content") for delta in deltas]
    [calls] = [delta["tool_calls"] for delta in deltas if delta.get("tool_calls")]
    assert calls == [{**CALL, "index": 0}]
    assert streamed.events[-1]["usage"] == result["usage"]


def _all_is_admitted(bench: Bench) -> None:
    from gateway.cache import writer as admitting

    bench.patch(admitting, "declined", lambda *_: None)


@defect("a truncated answer is stored for ever", "LightRAG #3446", _all_is_admitted)
async def what_was_cut_off_is_not_stored(bench: Bench) -> None:
    gateway = await bench.start()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion("To reset your", finish_reason="length"))

    bench.upstream.answer = answer
    assert "detail=truncated" in (await gateway.ask(QUESTION)).cache
    assert missed(await gateway.ask(QUESTION))


def _patience(bench: Bench) -> None:
    from gateway.server import open_store as stores

    bench.patch(stores, "REDIS_SECONDS", 3600.0)
    patient = partial(RedisStore, seconds=3600.0)
    bench.patch(store_redis, "RedisStore", patient)


@defect("a frozen Redis hangs every request", "LiteLLM #34299", _patience)
async def a_frozen_redis_hangs_nobody(bench: Bench) -> None:
    redis = RunningRedis(bench.folder)
    redis.start()
    try:
        gateway = await bench.start(store=redis.url, memory_bytes=0)
        await gateway.ask(QUESTION)
        assert hit(await gateway.ask(QUESTION))
        os.kill(redis.pid, signal.SIGSTOP)
        async with asyncio.timeout(BOUND / 2):
            for n in range(20):
                assert missed(await gateway.ask(f"Question {n}?"))
    finally:
        os.kill(redis.pid, signal.SIGCONT)
        redis.kill()


def _endless_patience(bench: Bench) -> None:
    from gateway.semantic import embeddings_service as semantics

    def patient(socket: Path, *, timeout: float) -> Any:
        return EmbeddingsClient(socket, timeout=timeout * 3600)

    bench.patch(semantics, "EmbeddingsClient", patient)


@defect("a dead embedding endpoint costs minutes a request", "LiteLLM #37742", _endless_patience)
async def a_dead_encoder_costs_next_to_nothing(bench: Bench) -> None:
    async with _silent_socket(bench) as socket:
        gateway = await bench.start(semantic_socket=socket, semantic_timeout=0.2)
        async with asyncio.timeout(BOUND / 2):
            for n in range(20):
                assert missed(await gateway.ask(f"Question {n}?"))


def _encoding_on_the_loop(bench: Bench) -> None:
    from gateway.semantic.embeddings_service import SemanticService

    async def search(self: Any, partition: bytes, text: str, k: int) -> list[Any]:
        time.sleep(BOUND / 4)  # noqa: ASYNC251 - the defect itself
        return []

    bench.patch(SemanticService, "search", search)


@defect("embedding holds up the event loop", "production-stack", _encoding_on_the_loop)
async def others_are_served_while_a_text_is_encoded(bench: Bench) -> None:
    async with _silent_socket(bench) as socket:
        gateway = await bench.start(semantic_socket=socket, semantic_timeout=BOUND / 4)
        asked = asyncio.create_task(gateway.ask(QUESTION))
        async with asyncio.timeout(BOUND / 2):
            await bench.encoding.wait()
        async with asyncio.timeout(BOUND / 8):
            assert (await gateway.get("/healthz")).status == 200
        assert not asked.done()
        assert missed(await asked)


@asynccontextmanager
async def _silent_socket(bench: Bench) -> AsyncIterator[Path]:
    """An encoder that takes texts and never answers."""
    writers = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(65536):
            if QUESTION.encode() in data:  # the gateway also asks how the encoder is
                bench.encoding.set()

    socket = bench.folder / "encoder.sock"
    server = await asyncio.start_unix_server(take, socket)
    try:
        yield socket
    finally:
        server.close()
        for writer in writers:
            writer.close()


def _no_bound_on_memory(bench: Bench) -> None:
    bench.patch(eviction.S3Fifo, "_evict", lambda policy: setattr(policy, "max_bytes", 1 << 60))


@defect(
    "memory grows until the process dies",
    "LiteLLM #12685, Portkey",
    _no_bound_on_memory,
)
async def memory_is_bounded(bench: Bench) -> None:
    bound = 256 * 1024
    gateway = await bench.start(store="memory", memory_bytes=bound)
    for n in range(120):
        await gateway.ask(f"Question {n}? " + "x" * 4000)
    metrics = (await gateway.get("/metrics")).raw.decode()
    [line] = [line for line in metrics.splitlines() if line.startswith("refrain_entry_bytes ")]
    assert bound / 2 < float(line.split()[1]) <= bound


def _calls_outlive_clients(bench: Bench) -> None:
    from gateway.upstream.coalescing import flight

    bench.patch(flight.FlightTable, "leave", lambda table, one: False)


@defect(
    "a client that is gone does not end the upstream call",
    "LiteLLM #37140",
    _calls_outlive_clients,
)
async def a_client_that_leaves_ends_the_call(bench: Bench) -> None:
    gateway = await bench.start()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(stream_of("one")[0])
        await asyncio.Event().wait()
        return response

    bench.upstream.answer = answer
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with ClientSession() as session:
        reply = await session.post(f"{gateway.url}/v1/chat/completions", json=body)
        await reply.content.readany()
        reply.close()
        await asyncio.wait_for(bench.upstream.cancelled.wait(), BOUND / 4)


def _sliding_life(bench: Bench) -> None:
    judged = lookup.judged

    def sliding(plan: Any, entry: Any, now: float) -> Any:
        return judged(plan, entry and replace(entry, stored_at=now, expires_at=now + 60), now)

    bench.patch(lookup, "judged", sliding)


@defect("a hit extends an entry's life", "RedisVL #603", _sliding_life)
async def life_is_absolute(bench: Bench) -> None:
    gateway = await bench.start()
    await gateway.ask(QUESTION)
    clock = _clock(bench, gateway)
    for _ in range(4):
        clock.pass_by(1000)
        last = await gateway.ask(QUESTION)
    assert "fwd=stale" in last.cache


def _no_quarantine(bench: Bench) -> None:
    from gateway.server.admin.operations import Operations

    async def wrong(self: Any, entry: bytes, asked: Any) -> None:
        return None

    bench.patch(Operations, "wrong", wrong)


@defect("nobody can say: that hit was wrong", "vLLM semantic-router #1581", _no_quarantine)
async def a_wrong_hit_can_be_called_wrong(bench: Bench) -> None:
    gateway = await _finding_everything(bench)
    await gateway.ask(QUESTION)
    paraphrase = "How can I reset my password?"
    served = await gateway.ask(paraphrase)
    entry = served.headers["Refrain-Entry"]
    told = orjson.dumps({"entry": entry, "question": paraphrase})
    assert (await gateway.post("/admin/wrong", told)).status == 200
    assert missed(await gateway.ask(QUESTION))  # evicted, and answered anew
    assert missed(await gateway.ask(paraphrase))


def _held_back(bench: Bench) -> None:
    from gateway.upstream.http.client import HttpUpstream

    whole = HttpUpstream.body

    async def body(self: Any, response: Any) -> Any:
        pieces = [piece async for piece in whole(self, response)]
        yield b"".join(pieces)

    bench.patch(HttpUpstream, "body", body)


@defect("the whole body of a miss is buffered", "Helicone", _held_back)
async def a_miss_streams_as_it_comes(bench: Bench) -> None:
    gateway = await bench.start()
    first_is_read = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"role": "assistant", "content": "one"}))
        await asyncio.wait_for(first_is_read.wait(), BOUND / 2)
        await response.write(chunk(finish_reason="stop") + DONE)
        return response

    bench.upstream.answer = answer
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    url = f"{gateway.url}/v1/chat/completions"
    async with ClientSession() as session, session.post(url, json=body) as reply:
        async with asyncio.timeout(BOUND / 4):
            assert b'"one"' in await reply.content.readany()
            first_is_read.set()
            assert (await reply.read()).endswith(DONE)


def _impatient_followers(bench: Bench) -> None:
    from policies.policy import Policy

    decide = Policy.decide
    bench.patch(Policy, "decide", lambda policy, facts: replace(decide(policy, facts), **SOON))


SOON = {"follow_seconds": 0.01}
RULES = """
version: 1
rules: [{name: all, match: {}}]
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}
"""


@defect(
    "identical misses give up waiting for one another", "vLLM semantic-router", _impatient_followers
)
async def followers_wait_for_a_slow_answer(bench: Bench) -> None:
    policy = bench.folder / "policy.yaml"
    policy.write_text(RULES)
    gateway = await bench.start(policy=policy)
    let_go = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await let_go.wait()
        return web.json_response(completion("slowly"))

    bench.upstream.answer = answer
    asked = [asyncio.create_task(gateway.ask(QUESTION)) for _ in range(8)]
    await bench.upstream.arrived.wait()
    # Longer than the impatient wait, and as long as it takes where nobody is impatient.
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while bench.upstream.calls == 1:
                bench.upstream.arrived.clear()
                await bench.upstream.arrived.wait()
    let_go.set()
    answers = await asyncio.gather(*asked)
    assert {each.text for each in answers} == {"slowly"}
    assert bench.upstream.calls == 1


class _Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def _clock(bench: Bench, gateway: RunningGateway) -> _Clock:
    """Give the lookups of all pipelines a clock of ours, from now on."""
    from gateway.server.pipeline import Pipeline

    clock = _Clock(time.time())
    get = Pipeline._get

    async def entry_of_then(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = await get(self, *args, **kwargs)
        past = clock.now - time.time()
        if found is None:
            return None
        return replace(found, stored_at=found.stored_at - past, expires_at=found.expires_at - past)

    bench.patch(Pipeline, "_get", entry_of_then)
    return clock


class _Everything:
    """The worst of indexes: finds whatever it was ever given, in any partition, at 0.91."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    async def search(self, partition: bytes, text: str, k: int) -> list[Any]:
        """Find everything."""
        from gateway.semantic.ports import Candidate

        return [Candidate(each, 0.91) for each in self.keys[:k]]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """Take a key."""
        self.keys.append(key)

    async def remove(self, keys: Any) -> None:
        """Let go of keys."""
        self.keys = [each for each in self.keys if each not in keys]


async def _finding_everything(bench: Bench) -> RunningGateway:
    """Start a gateway whose index tells nothing apart, so that all else has to."""
    from gateway.server import open_semantic

    index = _Everything()

    class Service(_Everything):
        @classmethod
        def at(cls, socket: Path, *, timeout: float) -> "Service":
            return cls()

        search = staticmethod(index.search)  # type: ignore[assignment]
        add = staticmethod(index.add)  # type: ignore[assignment]
        remove = staticmethod(index.remove)  # type: ignore[assignment]
        name = "none"
        verifier = ""

        def details(self) -> dict[str, Any]:
            return {}

        async def not_ready(self) -> None:
            return None

        async def learn(self, seconds: float) -> None:
            return None

        async def close(self) -> None:
            return None

    bench.patch(open_semantic, "SemanticService", Service)
    return await bench.start(semantic_socket=bench.folder / "none")
