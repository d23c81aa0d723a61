"""Qdrant slow, frozen, killed, full, misled, and back: the real client against real sockets."""

import asyncio
import json
import logging
import socketserver
import threading
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager, suppress

import numpy as np
import pytest
from ports import closed_port

from embeddings.index import breaker
from embeddings.index.breaker import GuardedIndex
from embeddings.index.qdrant import QdrantIndex, connect, open_qdrant
from embeddings.index.vector_index import IndexLostError, VectorIndexError
from embeddings.settings import QdrantSettings

DIGEST = "ab" * 32
VECTOR = np.array([0.6, 0.8, 0, 0], dtype=np.float32)
KEY, PARTITION = b"key-of-an-entry", b"partition-of-a-tenant"
LATER, NOW = 2_000_000_000.0, 1_700_000_000.0
# The stand-in shares two busy cores with the tests: what is fast in earnest may take longer here.
PATIENT = 10.0
SECRET = "k3y-of-qdrant"


@pytest.fixture
def qdrant(qdrant_server):
    """The server, with no collections, whatever the test before did to it."""
    yield qdrant_server
    qdrant_server.thaw()
    qdrant_server.fault()
    with suppress(urllib.error.HTTPError):
        drop(qdrant_server)


def drop(server, digest=DIGEST):
    collection = f"refrain-{digest[:16]}-4"
    request = urllib.request.Request(f"{server.url}/collections/{collection}", method="DELETE")
    with urllib.request.urlopen(request, timeout=10):
        pass


@asynccontextmanager
async def opened(url, seconds=PATIENT, **settings):
    index = await open_qdrant(
        QdrantSettings(url, seconds=seconds, **settings),
        encoder_digest=DIGEST,
        dimensions=4,
        max_vectors=100,
    )
    try:
        yield index
    finally:
        await index.close()


def add(index, key=KEY):
    return index.add(PARTITION, key, VECTOR, LATER, NOW)


def search(index):
    return index.search(PARTITION, VECTOR, 3, NOW)


async def reason_of(call):
    with pytest.raises(VectorIndexError) as refused:
        await call
    return refused.value.reason


async def found_again(index):
    """Search until it is answered, in bounded time."""
    async with asyncio.timeout(60):
        while True:
            try:
                return [match.key for match in await search(index)]
            except VectorIndexError:
                await asyncio.sleep(0.02)


async def test_frozen_it_costs_one_wait_and_is_used_again_once_it_is_thawed(qdrant):
    async with opened(qdrant.url) as index:
        await add(index)
        index._seconds = 0.05  # from here on as in earnest
        qdrant.freeze()
        assert await reason_of(search(index)) == "index-timeout"
        assert await reason_of(search(index)) == "index-unavailable"
        assert await reason_of(add(index, b"lost")) == "index-unavailable"
        assert (index.fault, index.dropped) == ("not answering", 1)
        qdrant.thaw()
        index._seconds = PATIENT
        assert await found_again(index) == [KEY]
        assert index.fault is None


async def test_killed_and_started_again_it_has_what_it_had(qdrant):
    async with opened(qdrant.url) as index:
        await add(index)
        qdrant.kill()
        assert await reason_of(search(index)) == "index-unavailable"
        assert await reason_of(index.remove([KEY])) == "index-unavailable"
        qdrant.start()
        assert await found_again(index) == [KEY]


async def test_come_back_empty_it_is_made_ready_anew(qdrant, tmp_path):
    async with opened(qdrant.url) as index:
        await add(index)
        qdrant.kill()
        assert await reason_of(search(index)) == "index-unavailable"
        qdrant.folder = tmp_path / "another"
        qdrant.start()
        assert await found_again(index) == []
        await add(index)
        assert await found_again(index) == [KEY]


async def test_a_collection_dropped_by_hand_is_made_anew(qdrant):
    async with opened(qdrant.url) as index:
        await add(index)
        await asyncio.to_thread(drop, qdrant)
        assert await reason_of(search(index)) == "index-error"
        assert await found_again(index) == []


async def test_full_it_is_searched_on_and_takes_vectors_once_there_is_room(qdrant):
    async with opened(qdrant.url) as index:
        await add(index)
        qdrant.fault(writes=507)
        assert await reason_of(add(index, b"lost")) == "index-error"
        assert [match.key for match in await search(index)] == [KEY]
        assert index.fault == "not storing"
        assert await reason_of(index.sweep(NOW)) == "index-error"
        qdrant.fault()
        await add(index, b"kept")
        assert sorted(match.key for match in await search(index)) == [b"kept", KEY]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_error_it_answers_with_is_a_miss_and_nothing_more(qdrant, status):
    async with opened(qdrant.url) as index:
        await add(index)
        qdrant.fault(all=status)
        assert await reason_of(search(index)) == "index-error"
        qdrant.fault()
        assert [match.key for match in await search(index)] == [KEY]


async def test_the_key_is_sent_and_never_told(qdrant, caplog):
    caplog.set_level(logging.DEBUG)
    qdrant.fault(key=SECRET)
    async with opened(qdrant.url, api_key=SECRET) as index:
        await add(index)
        assert [match.key for match in await search(index)] == [KEY]
    async with opened(qdrant.url, api_key="wrong-" + SECRET) as index:
        assert await reason_of(search(index)) == "index-unavailable"
        assert index.fault == "not answering"
    assert "answered with 401" in caplog.text
    ours = [record.getMessage() for record in caplog.records if "embeddings" in record.name]
    assert SECRET not in "".join(ours)


async def test_a_key_in_clear_text_over_the_network_is_warned_of(caplog):
    client = connect(QdrantSettings("http://qdrant.example:6333", api_key=SECRET))
    await client.close()
    assert "clear text" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a", "http://a:80"),
        ("https://a", "https://a:443"),
        ("http://a:6333/", "http://a:6333"),
        ("https://a/behind/proxy", "https://a:443/behind/proxy"),
    ],
)
async def test_a_url_means_what_it_means_elsewhere(url, target):
    client = connect(QdrantSettings(url))
    assert client._client.rest_uri.rstrip("/") == target
    await client.close()


def answering(reply):
    """A server that answers everybody with these bytes, or with none of any."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(10)
            with suppress(OSError):
                self.request.recv(1)
                if reply is None:
                    while self.request.recv(1 << 16):
                        pass
                else:
                    self.request.sendall(reply)

    @contextmanager
    def start():
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield server.server_address[1]
            server.shutdown()
            thread.join()

    return start


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Type: text/html\r\n\r\n<html>"
HUGE_HEAD = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000


@pytest.mark.parametrize(
    "start",
    [
        closed_port,
        answering(None),
        answering(b""),
        answering(b"\x00\xff nonsense\r\n\r\n"),
        answering(HTML),
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        answering(
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
        ),
        answering(HUGE_HEAD),
    ],
    ids=["refuses", "stalls", "closes", "nonsense", "html", "cut", "redirect", "huge"],
)
async def test_whatever_stands_at_the_port_every_call_ends_in_a_reason(start, monkeypatch):
    monkeypatch.setattr(breaker, "PREPARE_S", 0.5)
    with start() as port:
        url = f"http://127.0.0.1:{port}"
        async with opened(url, seconds=0.05) as index:
            assert index.fault == "not answering"
            assert await reason_of(search(index)) == "index-unavailable"
            assert await reason_of(add(index)) == "index-unavailable"
        raw = QdrantIndex(
            connect(QdrantSettings(url)), encoder_digest=DIGEST, dimensions=4, max_vectors=100
        )
        guarded = GuardedIndex(raw, dimensions=4, seconds=0.05)
        assert (await reason_of(search(guarded))).startswith("index-")
        await guarded.close()


async def test_a_foreign_collection_of_that_name_is_left_alone(qdrant):
    name = f"refrain-{DIGEST[:16]}-4"
    create = urllib.request.Request(
        f"{qdrant.url}/collections/{name}",
        json.dumps({"vectors": {"size": 3, "distance": "Dot"}}).encode(),
        method="PUT",
    )
    (await asyncio.to_thread(urllib.request.urlopen, create)).close()
    async with opened(qdrant.url) as index:
        assert await reason_of(search(index)) == "index-unavailable"
    raw = QdrantIndex(
        connect(QdrantSettings(qdrant.url)), encoder_digest=DIGEST, dimensions=4, max_vectors=9
    )
    with pytest.raises(IndexLostError, match="not one of ours"):
        await raw.prepare()
    await raw.close()


async def test_two_installations_share_vectors_and_make_the_collection_once(qdrant):
    async with opened(qdrant.url) as one, opened(qdrant.url) as other:
        raws = [one._index, other._index]
        await asyncio.gather(*(raw.prepare() for raw in raws * 4))
        await add(one)
        assert [match.key for match in await search(other)] == [KEY]
        await other.remove([KEY])
        assert await search(one) == []


async def test_points_that_no_search_of_ours_may_return_are_passed_over(qdrant):
    """As a server would that does not filter: the answer is checked again."""
    async with opened(qdrant.url) as index:
        raw = index._index
        good = {"partition": PARTITION.hex(), "encoder": DIGEST, "key": KEY.hex()}
        payloads = [
            {**good, "expires_at": LATER},
            {**good, "expires_at": NOW},
            {**good, "expires_at": "later"},
            {**good, "expires_at": LATER, "partition": "00"},
            {**good, "expires_at": LATER, "encoder": "cd" * 32},
            {**good, "expires_at": LATER, "key": "odd"},
            {**good, "expires_at": LATER, "key": 7},
            {},
            None,
        ]
        points = [type("Point", (), {"payload": p, "score": 1.0000001}) for p in payloads]
        kept = [match for point in points if (match := raw._match(point, PARTITION, NOW))]
    assert [(match.key, match.similarity) for match in kept] == [(KEY, 1.0)]
