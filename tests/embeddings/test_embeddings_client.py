"""The client against servers that misbehave; the real service has its own tests."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from embeddings.client import EmbeddingsClient, Match, SemanticUnavailableError
from embeddings.load_limit import FIRST, LEAST
from embeddings.messages import (
    Add,
    AskStatus,
    Cancel,
    Done,
    Matches,
    Reason,
    Refused,
    Remove,
    Search,
    Vectors,
)
from embeddings.wire import FrameReader, decode, encode

SOON = 0.1
LONG = 60.0


class FakeService:
    """Speaks the protocol; `reply` decides what to do with each request."""

    def __init__(self, path, reply) -> None:
        self.path = path
        self.reply = reply
        self.received = []
        self.connections = 0
        self.writers = []
        self.arrived = asyncio.Condition()

    async def connected(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for envelope in map(decode, frames.feed(data)):
                async with self.arrived:
                    self.received.append(envelope)
                    self.arrived.notify_all()
                answer = self.reply(envelope.message)
                if answer is not None:
                    writer.write(encode(envelope.request_id, answer))
        writer.close()

    async def until(self, condition):
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: condition(self.received))


@asynccontextmanager
async def serving(path, reply):
    service = FakeService(path, reply)
    server = await asyncio.start_unix_server(service.connected, path=str(path))
    try:
        yield service
    finally:
        server.close()
        for writer in service.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def calling(path, **options):
    client = EmbeddingsClient(path, **{"timeout": LONG, **options})
    try:
        yield client
    finally:
        await client.close()


async def reason_of(call) -> str:
    with pytest.raises(SemanticUnavailableError) as refused:
        await call
    return refused.value.reason


def stall(message):
    return None


def done(message):
    return None if isinstance(message, Cancel) else Done()


async def test_no_service_is_unavailable_at_once(short_path):
    async with calling(short_path / "s") as client:
        started = time.monotonic()
        assert await reason_of(client.search(b"p", "text", 1)) == "unavailable"
        assert await reason_of(client.remove([b"k"])) == "unavailable"
        assert time.monotonic() - started < LONG / 2


async def test_a_stalled_service_costs_one_timeout_and_then_nothing(short_path):
    async with serving(short_path / "s", stall), calling(short_path / "s", timeout=SOON) as client:
        assert await reason_of(client.search(b"p", "text", 1)) == "timeout"
        assert await reason_of(client.search(b"p", "text", 1)) == "unavailable"


async def test_calls_go_on_after_a_slow_one_when_the_service_answers_others(short_path):
    def slow_search(message):
        return Done() if isinstance(message, Remove) else None

    async with (
        serving(short_path / "s", slow_search) as service,
        calling(short_path / "s", timeout=2.0) as client,
    ):
        slow = asyncio.create_task(reason_of(client.search(b"p", "text", 1)))
        await service.until(lambda received: len(received) == 1)
        await client.remove([b"k"])
        assert await slow == "timeout"
        await client.remove([b"k"])
        assert service.connections == 1


async def test_a_search_beyond_the_limit_is_given_up_at_once(short_path):
    async with serving(short_path / "s", stall) as service, calling(short_path / "s") as client:
        waiting = [asyncio.create_task(client.search(b"p", "text", 1)) for _ in range(int(FIRST))]
        await service.until(lambda received: len(received) == FIRST)
        assert await reason_of(client.search(b"p", "text", 1)) == "semantic-busy"
        for search in waiting:
            search.cancel()
        await asyncio.wait(waiting)
        again = asyncio.create_task(client.search(b"p", "text", 1))
        await service.until(lambda received: isinstance(received[-1].message, Search))
        again.cancel()


async def test_texts_without_a_vector_leave_places_to_those_with_one(short_path):
    def only_short(message):
        return Done() if isinstance(message, Add) and message.text == "searched" else None

    async with (
        serving(short_path / "s", only_short) as service,
        calling(short_path / "s") as client,
    ):
        waiting = [asyncio.create_task(client.search(b"p", "text", 1)) for _ in range(int(FIRST))]
        await service.until(lambda received: len(received) == FIRST)
        for number in range(40):
            assert await reason_of(client.search(b"p", f"skipped {number}", 1)) == "semantic-busy"
        waiting += [
            asyncio.create_task(client.add(b"p", b"k%d" % n, f"skipped {n}", 2e9))
            for n in range(40)
        ]
        for number in range(40):
            await client.add(b"p", b"s%d" % number, "searched", 2e9)
        for call in waiting:
            call.cancel()
        await asyncio.wait(waiting)


async def test_searches_that_waited_long_leave_fewer_places(short_path):
    def slow(message):
        return Matches((), waited=5.0)

    async with serving(short_path / "s", slow), calling(short_path / "s") as client:
        for _ in range(100):
            await client.search(b"p", "text", 1)
        found = await asyncio.gather(
            *(client.search(b"p", "text", 1) for _ in range(int(LEAST) + 3)),
            return_exceptions=True,
        )
    assert [type(each) is list for each in found] == [True] * int(LEAST) + [False] * 3


async def test_a_timed_out_call_is_cancelled_and_its_late_reply_dropped(short_path):
    def only_removes(message):
        return Done() if isinstance(message, Remove) else None

    async with (
        serving(short_path / "s", only_removes) as service,
        calling(short_path / "s", timeout=2.0) as client,
    ):
        slow = asyncio.create_task(reason_of(client.search(b"p", "text", 1)))
        await service.until(lambda received: len(received) == 1)
        await client.remove([b"k"])
        assert await slow == "timeout"
        await service.until(lambda received: isinstance(received[-1].message, Cancel))
        late = service.received[0].request_id
        assert service.received[-1].request_id == late
        service.writers[0].write(encode(late, Matches((Match(b"late", 1.0),))))
        await client.remove([b"k"])


async def test_a_cancelled_call_tells_the_service_and_leaves_no_trace(short_path):
    async with serving(short_path / "s", stall) as service, calling(short_path / "s") as client:
        call = asyncio.create_task(client.search(b"p", "text", 1))
        await service.until(lambda received: len(received) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await service.until(lambda received: len(received) == 2)
        searched, cancelled = service.received
        assert cancelled.message == Cancel()
        assert cancelled.request_id == searched.request_id
        assert client._in_flight == 0  # nothing else shows that the slot is free
        assert client._link._pending == {}


async def test_calls_beyond_the_bound_are_refused_at_once(short_path):
    async with (
        serving(short_path / "s", stall) as service,
        calling(short_path / "s", max_in_flight=2) as client,
    ):
        calls = [asyncio.create_task(client.search(b"p", f"t{n}", 1)) for n in range(2)]
        await service.until(lambda received: len(received) == 2)
        assert await reason_of(client.search(b"p", "third", 1)) == "overloaded"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        service.reply = done
        await client.remove([b"k"])


async def test_a_service_that_does_not_read_overloads_and_does_not_fill_memory(short_path):
    async def never_read(reader, writer):
        writers.append(writer)

    writers = []
    server = await asyncio.start_unix_server(never_read, path=str(short_path / "s"), limit=1)
    async with calling(short_path / "s") as client:
        calls = [
            asyncio.create_task(client.add(b"p", b"k%d" % n, "x" * 199_000, 2e9)) for n in range(40)
        ]
        finished, waiting = await asyncio.wait(
            calls, timeout=LONG / 2, return_when=asyncio.FIRST_COMPLETED
        )
        reasons = {call.exception().reason for call in finished}
        for call in waiting:
            call.cancel()
        await asyncio.wait(calls)
    server.close()
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)
    assert reasons == {"overloaded"}
    assert waiting


async def test_many_calls_share_one_connection_and_get_their_own_replies(short_path):
    held = []

    async with serving(short_path / "s", stall) as service, calling(short_path / "s") as client:
        number = int(FIRST)
        calls = [asyncio.create_task(client.search(b"p", f"t{n}", 1)) for n in range(number)]
        await service.until(lambda received: len(received) == number)
        held = list(reversed(service.received))
        for envelope in held:
            match = Match(envelope.message.text.encode(), 0.5)
            service.writers[0].write(encode(envelope.request_id, Matches((match,))))
        found = await asyncio.gather(*calls)
    assert [matches[0].key for matches in found] == [b"t%d" % n for n in range(number)]
    assert service.connections == 1


async def test_it_reconnects_after_the_service_went_away(short_path):
    async with calling(short_path / "s") as client:
        async with serving(short_path / "s", done):
            await client.remove([b"k"])
        assert await reason_of(client.remove([b"k"])) == "unavailable"
        (short_path / "s").unlink(missing_ok=True)
        async with serving(short_path / "s", done), asyncio.timeout(60):
            while True:
                try:
                    await client.remove([b"k"])
                    break
                except SemanticUnavailableError:
                    await asyncio.sleep(0.01)


async def test_a_connection_lost_mid_call_fails_all_its_calls(short_path):
    async with serving(short_path / "s", stall) as service, calling(short_path / "s") as client:
        calls = [asyncio.create_task(reason_of(client.search(b"p", str(n), 1))) for n in range(3)]
        await service.until(lambda received: len(received) == 3)
        service.writers[0].transport.abort()
        assert await asyncio.gather(*calls) == ["unavailable"] * 3


@pytest.mark.parametrize("garbage", [b"\xff" * 8, encode(1, AskStatus())])
async def test_a_service_that_breaks_the_protocol_is_unavailable(short_path, garbage):
    async with serving(short_path / "s", stall) as service, calling(short_path / "s") as client:
        call = asyncio.create_task(reason_of(client.search(b"p", "text", 1)))
        await service.until(lambda received: len(received) == 1)
        service.writers[0].write(garbage)
        assert await call == "unavailable"


@pytest.mark.parametrize("reason", list(Reason))
async def test_the_reason_of_a_refusal_is_passed_on(short_path, reason):
    async with (
        serving(short_path / "s", lambda message: Refused(reason, "why")),
        calling(short_path / "s") as client,
    ):
        assert await reason_of(client.add(b"p", b"k", "text", 1.0)) == reason


async def test_a_reply_of_the_wrong_kind_is_an_error(short_path):
    async with serving(short_path / "s", done), calling(short_path / "s") as client:
        assert await reason_of(client.search(b"p", "text", 1)) == "error"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda client: client.search(b"p", " ", 1), "empty-text"),
        (lambda client: client.search(b"p", "x" * 200_001, 1), "text-too-long"),
        (lambda client: client.search(b"p" * 2000, "text", 1), "error"),
        (lambda client: client.search(b"p", "text", -1), "error"),
        (lambda client: client.add(b"p", b"k", "text", float("nan")), "error"),
        (lambda client: client.add(b"p", b"k", "\udfff", 1.0), "error"),
        (lambda client: client.embed(["1", "\udfff"]), "error"),
        (lambda client: client.embed(["1", ""]), "empty-text"),
        (lambda client: client.embed(["1"] * 20 + ["x" * 200_001]), "text-too-long"),
    ],
)
async def test_what_cannot_be_sent_is_refused_without_harm(short_path, call, reason):
    async with serving(short_path / "s", done) as service, calling(short_path / "s") as client:
        assert await reason_of(call(client)) == reason
        await client.remove([b"k"])
        assert [type(envelope.message) for envelope in service.received] == [Remove]


async def test_a_text_of_the_longest_length_fits_a_frame(short_path):
    async with serving(short_path / "s", done) as service, calling(short_path / "s") as client:
        await client.add(b"p" * 1024, b"k" * 1024, "\U0001f389" * 200_000, 1.0)
        assert len(service.received) == 1


async def test_many_keys_are_removed_in_several_frames(short_path):
    keys = [b"%d" % number for number in range(1300)]
    async with serving(short_path / "s", done) as service, calling(short_path / "s") as client:
        await client.remove(keys)
    assert [key for envelope in service.received for key in envelope.message.keys] == keys


def embedded(message):
    """Tells each text by its vector."""
    return Vectors.packed((float(text.strip("x") or 0), 0.5) for text in message.texts)


async def test_many_texts_are_embedded_in_several_frames_one_at_a_time(short_path):
    texts = [str(number) for number in range(40)]
    async with serving(short_path / "s", embedded) as service, calling(short_path / "s") as client:
        vectors = await client.embed(texts)
    assert [int(vector[0]) for vector in vectors] == list(range(40))
    assert [len(envelope.message.texts) for envelope in service.received] == [16, 16, 8]


async def test_long_texts_are_embedded_in_frames_of_their_own(short_path):
    texts = [f"{number}".ljust(150_000, "x") for number in range(3)]
    async with serving(short_path / "s", embedded) as service, calling(short_path / "s") as client:
        vectors = await client.embed(texts)
    assert [int(vector[0]) for vector in vectors] == [0, 1, 2]
    assert len(service.received) == 3


async def test_no_texts_have_no_vectors_and_ask_nobody(short_path):
    async with calling(short_path / "nowhere") as client:
        assert await client.embed([]) == []


async def test_an_embedding_may_take_longer_than_a_search(short_path):
    async with (
        serving(short_path / "s", stall) as service,
        calling(short_path / "s", timeout=SOON) as client,
    ):
        call = asyncio.create_task(client.embed(["1"]))
        await service.until(lambda received: len(received) == 1)
        assert await reason_of(client.search(b"p", "text", 1)) == "timeout"
        assert await reason_of(call) == "unavailable"
    async with (
        serving(short_path / "s", stall),
        calling(short_path / "s", long_timeout=SOON) as client,
    ):
        assert await reason_of(client.embed(["1"])) == "timeout"


@pytest.mark.parametrize(
    "reply",
    [
        Vectors(()),
        Vectors.packed([(1.0,), (1.0,)]),
        Vectors.packed([(float("nan"),)]),
        Vectors((b"\0" * 5,)),
        Done(),
        Refused(Reason.ERROR, "why"),
    ],
)
async def test_an_embed_without_one_vector_for_each_text_is_an_error(short_path, reply):
    async with (
        serving(short_path / "s", lambda message: reply),
        calling(short_path / "s") as client,
    ):
        assert await reason_of(client.embed(["1"])) == "error"


async def test_closing_fails_calls_in_flight_and_later_ones(short_path):
    async with serving(short_path / "s", stall) as service:
        client = EmbeddingsClient(short_path / "s", timeout=LONG)
        call = asyncio.create_task(reason_of(client.search(b"p", "text", 1)))
        await service.until(lambda received: len(received) == 1)
        await client.close()
        assert await call == "unavailable"
        assert await reason_of(client.status()) == "unavailable"
        await client.close()


async def test_the_first_call_cancelled_does_not_take_the_connection_from_the_others(short_path):
    async with serving(short_path / "s", done), calling(short_path / "s") as client:
        first = asyncio.create_task(client.remove([b"a"]))
        second = asyncio.create_task(client.remove([b"b"]))
        await asyncio.sleep(0)
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first


def test_search_frames_hold_what_was_asked():
    (envelope,) = map(decode, FrameReader().feed(encode(7, Search(b"p", "text", 3))))
    assert (envelope.request_id, envelope.message) == (7, Search(b"p", "text", 3))
