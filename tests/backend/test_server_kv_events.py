"""/kv_events over real sockets: snapshot, changes, coming back, slow readers, the end."""

import asyncio
import hashlib

import orjson
import pytest

from backend.app import create_app
from backend.scheduler.cache_events import NOTHING_CACHED, BlockRemoved, BlocksStored, EventBatch
from backend.server import kv_events as module
from backend.server.app import build_application
from backend.server.kv_events import KvEvents
from backend.server.served_model import ServedModel
from backend.settings import Settings

pytest_plugins = ["running_backend"]

ROOT, ONE, TWO, THREE = (bytes([number]) * 32 for number in range(4))
STORED = EventBatch(0, (BlocksStored(ROOT, (ONE, TWO), 32),))


class Follower:
    """A router's connection."""

    def __init__(self, reply):
        self.reply = reply

    async def event(self):
        """The next event, comments left out: kind, id or None, data."""
        async with asyncio.timeout(60):
            while True:
                lines = []
                while line := (await self.reply.content.readline()).decode().rstrip("\n"):
                    lines.append(line)
                fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
                if fields or self.reply.content.at_eof():
                    break
        if not fields:
            return None
        return fields["event"], fields.get("id"), orjson.loads(fields["data"])

    async def comment(self):
        async with asyncio.timeout(60):
            return await self.reply.content.readline()


@pytest.fixture
async def serve_events(serve_application):
    async def start(events):
        model = ServedModel("m", lambda: None)
        return await serve_application(build_application(model, kv_events=events))

    return start


@pytest.fixture
async def follow():
    """Connect to /kv_events; connections are closed at the end."""
    replies = []

    async def connect(server, last_event_id=None):
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        reply = await server.session.get(f"{server.url}/kv_events", headers=headers)
        replies.append(reply)
        return Follower(reply)

    yield connect
    for reply in replies:
        reply.close()


async def test_a_snapshot_then_changes_as_they_come(serve_events, follow):
    events = KvEvents()
    server = await serve_events(events)
    events.fingerprint = lambda: b"model"
    events.apply([STORED])
    follower = await follow(server)
    assert follower.reply.headers["Content-Type"].startswith("text/event-stream")
    kind, first_id, data = await follower.event()
    assert kind == "snapshot"
    assert data == {
        "sequence": 1,
        "fingerprint": hashlib.sha256(b"model").hexdigest(),
        "block_size": 16,
        "blocks": [[ONE.hex(), ROOT.hex()], [TWO.hex(), ONE.hex()]],
        "more": False,
    }
    events.apply([EventBatch(1, (BlockRemoved(TWO), BlocksStored(ONE, (THREE,), 16)))])
    kind, second_id, data = await follower.event()
    assert (kind, data) == ("removed", {"sequence": 2, "block": TWO.hex(), "medium": "GPU"})
    kind, third_id, data = await follower.event()
    assert kind == "stored"
    assert data == {"sequence": 3, "parent": ONE.hex(), "blocks": [THREE.hex()], "medium": "GPU"}
    assert len({first_id, second_id, third_id}) == 3


async def test_who_comes_back_in_time_gets_what_was_missed_and_others_a_snapshot(
    serve_events, follow
):
    events = KvEvents(limit=2)
    server = await serve_events(events)
    events.apply([STORED])
    _, seen, _ = await (await follow(server)).event()
    events.apply([EventBatch(1, (BlockRemoved(TWO),))])
    follower = await follow(server, seen)
    assert (await follower.event())[0] == "removed"
    events.apply([EventBatch(2, (BlockRemoved(ONE), BlocksStored(ROOT, (THREE,), 16)))])
    for stale in (seen, "another-1", "nonsense", "", f"{seen}0", seen + 5_000 * "0"):
        kind, _, data = await (await follow(server, stale)).event()
        assert (kind, data["blocks"]) == ("snapshot", [[THREE.hex(), ROOT.hex()]])


async def test_a_restarted_engine_clears_what_is_known(serve_events, follow):
    events = KvEvents()
    server = await serve_events(events)
    events.apply([STORED])
    follower = await follow(server)
    await follower.event()
    events.apply([NOTHING_CACHED])
    assert (await follower.event())[0] == "cleared"
    events.apply([EventBatch(0, (BlocksStored(ROOT, (THREE,), 16),))])
    kind, _, data = await follower.event()
    assert (kind, data["sequence"]) == ("stored", 3)


async def test_a_large_snapshot_comes_in_parts_of_which_the_last_has_the_id(
    serve_events, follow, monkeypatch
):
    monkeypatch.setattr(module, "_BLOCKS_A_PART", 1)
    events = KvEvents()
    server = await serve_events(events)
    events.apply([STORED])
    follower = await follow(server)
    (_, no_id, first), (_, an_id, last) = await follower.event(), await follower.event()
    assert (no_id, first["more"], last["more"]) == (None, True, False)
    assert an_id is not None
    assert [*first["blocks"], *last["blocks"]] == [
        [ONE.hex(), ROOT.hex()],
        [TWO.hex(), ONE.hex()],
    ]


async def test_a_reader_that_fell_behind_gets_a_snapshot(serve_events, follow):
    events = KvEvents(limit=4)
    server = await serve_events(events)
    follower = await follow(server)
    assert (await follower.event())[2]["blocks"] == []
    many = tuple(BlocksStored(ROOT, (bytes([number]) * 32,), 16) for number in range(50))
    events.apply([EventBatch(0, many)])  # at once: nobody can have read them one by one
    kind, _, data = await follower.event()
    assert (kind, data["sequence"], len(data["blocks"])) == ("snapshot", 50, 50)


async def test_silence_is_broken_by_comments(serve_events, follow):
    server = await serve_events(KvEvents(beat_seconds=0.01))
    follower = await follow(server)
    await follower.event()
    assert (await follower.comment()).startswith(b":")


async def test_readers_are_bounded_and_places_are_freed(serve_events, follow, monkeypatch):
    monkeypatch.setattr(module, "MOST_READERS", 1)
    server = await serve_events(KvEvents(beat_seconds=0.01))
    follower = await follow(server)
    await follower.event()
    reply = await server.get("/kv_events")
    assert (reply.status, reply.error["code"]) == (429, "too_many_readers")
    follower.reply.close()
    async with asyncio.timeout(60):
        while (again := (await follow(server)).reply).status == 429:
            again.close()
    assert again.status == 200


async def test_stopping_ends_readers_at_once(serve_events, follow):
    server = await serve_events(KvEvents())
    follower = await follow(server)
    await follower.event()
    await asyncio.wait_for(server.runner.cleanup(), 10)
    assert await follower.event() is None


async def test_it_is_off_unless_asked_for(server):
    reply = await server.get("/kv_events")
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")


async def test_events_from_another_thread(serve_events, follow):
    events = KvEvents()
    server = await serve_events(events)
    follower = await follow(server)
    await follower.event()
    await asyncio.to_thread(events.publish, [STORED])
    assert (await follower.event())[0] == "stored"


async def test_a_router_finds_the_blocks_of_a_prompt_that_the_real_engine_computed(
    serve_application, follow, chat_model
):
    settings = Settings(str(chat_model), served_model_name="tiny", device="cpu", kv_events=True)
    server = await serve_application(create_app(settings))
    await server.model.load()
    follower = await follow(server)
    _, _, snapshot = await follower.event()
    text = "text that fills more than two blocks of the cache"
    assert (await server.complete(text, max_tokens=1, cache_salt="a tenant")).status == 200
    kind, _, stored = await follower.event()
    assert kind == "stored"
    # As docs/operations/observability.md tells routers to do it.
    tokens = (await server.post("/tokenize", {"prompt": text})).json["tokens"]

    def digests(salt):
        chain = [hashlib.sha256(bytes.fromhex(snapshot["fingerprint"]) + salt).digest()]
        for start in range(0, len(tokens) - 15, 16):
            block = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + 16])
            chain.append(hashlib.sha256(chain[-1] + block).digest())
        return [digest.hex() for digest in chain]

    assert [stored["parent"], *stored["blocks"]] == digests(
        hashlib.sha256(b",a tenant").hexdigest().encode()
    )
    assert not set(stored["blocks"]) & set(digests(b""))
