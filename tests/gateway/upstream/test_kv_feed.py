"""The gateway follows the KV events of real servers: what it makes of them, and of what is none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from backend.core.cache_events import NOTHING_CACHED, BlockRemoved, BlocksStored, EventBatch
from backend.server.application import build_application
from backend.server.kv_events import KvEvents
from backend.server.served_model import ServedModel
from gateway.protocol.streaming import sse
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.routing import kv_feed as module
from gateway.upstream.routing.kv_feed import KvFeed
from gateway.upstream.routing.kv_news import Emptied, Full, KvReader
from gateway.upstream.routing.prefix_aware import PrefixAware
from running_gateway import start_app

ROOT = bytes(32)
News = asyncio.Queue[tuple[str, Emptied | Full]]
Follow = Callable[[web.Application], Awaitable[News]]


def digests(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(32, "big") for number in range(1, count + 1))


def stored(count: int) -> EventBatch:
    return EventBatch(0, (BlocksStored(ROOT, digests(count), 16 * count),))


class Engine:
    """An engine's feed; ``known`` is set when a reader gets its snapshot."""

    def __init__(self, batch: EventBatch) -> None:
        self.events = KvEvents()
        self.events.apply([batch])
        self.events.fingerprint = self._fingerprint
        self.known = asyncio.Event()

    def _fingerprint(self) -> bytes:
        self.known.set()
        return b"model"

    @property
    def app(self) -> web.Application:
        return build_application(ServedModel("m", lambda: None), kv_events=self.events)

    async def apply(self, batch: EventBatch) -> None:
        """Change the cache once its first state is told."""
        async with asyncio.timeout(60):
            await self.known.wait()
        self.events.apply([batch])


SNAPSHOT = (
    'id: e-1\nevent: snapshot\ndata: {"block_size":16,"more":false,"blocks":['
    + ",".join(['["a","b"]'] * 70)
    + "]}\n\n"
)
REMOVED = 'id: e-2\nevent: removed\ndata: {"block":"a"}\n\n'
ONE_GONE = EventBatch(1, (BlockRemoved(digests(1)[0]),))


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    """Serve an application and follow it, without a pause where it has to be done again."""
    ends: list[Callable[[], Awaitable[object]]] = []

    async def start(app: web.Application) -> News:
        runner, url = await start_app(app)
        ends.append(runner.cleanup)
        upstream = HttpUpstream(f"{url}/v1", name="a")
        await upstream.open()
        ends.append(upstream.close)
        news: News = asyncio.Queue()
        following = asyncio.create_task(
            KvFeed({"a": upstream}, lambda name, each: news.put_nowait((name, each))).run()
        )

        async def stop() -> None:
            following.cancel()
            await asyncio.wait([following])

        ends.append(stop)
        return news

    yield start
    for end in reversed(ends):
        await end()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)


async def told(news: News) -> tuple[str, Emptied | Full]:
    async with asyncio.timeout(60):
        return await news.get()


async def test_an_engine_that_drops_blocks_is_full(follow: Follow):
    engine = Engine(stored(100))
    news = await follow(engine.app)
    await engine.apply(EventBatch(1, (BlockRemoved(digests(1)[0]), BlockRemoved(digests(2)[1]))))
    assert await told(news) == ("a", Full(1600))
    assert news.empty()


async def test_an_engine_that_starts_over_is_empty(follow: Follow):
    engine = Engine(stored(100))
    news = await follow(engine.app)
    await engine.apply(NOTHING_CACHED)
    assert await told(news) == ("a", Emptied())


async def test_another_server_in_its_place_is_empty(follow: Follow):
    before, after = Engine(stored(100)), Engine(stored(80))
    serving = [before.events, after.events]

    async def events(request: web.Request) -> web.StreamResponse:
        return await serving[0].stream(request)

    app = web.Application()
    app.router.add_get("/kv_events", events)
    news = await follow(app)
    await before.apply(ONE_GONE)
    assert await told(news) == ("a", Full(1600))
    serving.pop(0)
    before.events.close()
    assert await told(news) == ("a", Emptied())
    after.events.close()


@pytest.mark.parametrize(
    "body",
    [b"event: stored\ndata: [1]\n\n", b"data: {\n\n", b"x" * 2**21],
    ids=["no event", "no JSON", "without an end"],
)
async def test_what_is_no_event_is_left_and_asked_for_again(follow: Follow, body: bytes):
    engine = Engine(stored(100))
    answers = [web.Response(body=body)]

    async def stream(request: web.Request) -> web.StreamResponse:
        return answers.pop() if answers else await engine.events.stream(request)

    app = web.Application()
    app.router.add_get("/kv_events", stream)
    news = await follow(app)
    await engine.apply(ONE_GONE)
    assert await told(news) == ("a", Full(1600))
    engine.events.close()


async def test_a_stream_on_which_nothing_comes_is_left_and_asked_for_again(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "SILENCE", 0.2)
    stalled = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        if stalled.is_set():
            return web.Response(text=f"{SNAPSHOT}{REMOVED}")
        response = web.StreamResponse()
        await response.prepare(request)
        stalled.set()
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/kv_events", stream)
    assert await told(await follow(app)) == ("a", Full(70 * 16))


def event(text: str) -> sse.Event:
    (one,) = sse.Decoder().feed(text.encode() + b"\n\n")
    return one


def test_a_snapshot_that_broke_off_is_counted_anew():
    reader = KvReader()
    pairs = str([["a", "b"]] * 70).replace("'", '"')
    part = f'event: snapshot\ndata: {{"blocks":{pairs},"block_size":16,"more":true}}'
    reader.take(event(part))
    reader.disconnected()
    reader.take(event(f"id: e-1\n{part.replace('true', 'false')}"))
    assert reader.take(event('id: e-2\nevent: removed\ndata: {"block":"a"}')) == Full(70 * 16)
    assert reader.position == "e-2"


@pytest.mark.parametrize(
    "odd",
    ["e-1\x00", "e-\x7f", "e-\x1b[31m", "e-1\x0bevent: cleared", "e-1\x85", "\u00e9", "e" * 129],
    ids=["null", "delete", "escape", "vertical tab", "next line", "no ASCII", "long"],
)
def test_an_id_that_no_header_can_hold_is_no_position(odd: str):
    reader = KvReader()
    reader.take(event('id: e-1\nevent: removed\ndata: {"block":"a"}'))
    assert reader.take(event(f'id: {odd}\nevent: removed\ndata: {{"block":"a"}}')) is None
    assert reader.position == ""


@pytest.mark.parametrize("size", [0, -16])
def test_blocks_of_no_tokens_are_no_event(size: int):
    told = f'event: snapshot\ndata: {{"blocks":[],"block_size":{size},"more":false}}'
    with pytest.raises(ValueError, match="not an event"):
        KvReader().take(event(told))


def test_comments_and_a_few_blocks_say_nothing():
    reader = KvReader()
    assert reader.take(event(": no news")) is None
    assert reader.take(event('id: e-1\nevent: removed\ndata: {"block":"a"}')) is None


def test_a_cache_that_is_known_to_be_small_bounds_what_is_believed():
    routing = PrefixAware()
    routing.index.add("a", tuple(range(1000)))
    routing.resize("a", 12_800)
    assert routing.index.size("a") <= 200
    routing.forget("a")
    routing.index.add("a", tuple(range(1000)))
    assert routing.index.size("a") <= 200
