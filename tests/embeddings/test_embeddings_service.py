"""The real service through the real client."""

import asyncio
import os
import time

import pytest

from embeddings.client import EmbeddingsClient, SemanticUnavailableError
from embeddings.messages import (
    Add,
    AskStatus,
    Done,
    Embed,
    Matches,
    Reason,
    Refused,
    Scores,
    Search,
    Verify,
)
from embeddings.service import MAX_IN_FLIGHT, Connection, EmbeddingsService
from embeddings.wire import FrameReader, decode, encode

LATER = time.time() + 3600
RESET = "How do I reset my password?"


async def test_a_paraphrase_is_near_and_another_question_is_not(client, partition):
    await client.add(partition, b"reset", RESET, LATER)
    (near,) = await client.search(partition, "How can I reset my password?", 1)
    (far,) = await client.search(partition, "What is the capital of France?", 1)
    assert near.key == b"reset"
    assert near.similarity > 0.95
    assert far.similarity < 0.3


async def test_matches_come_nearest_first_and_at_most_k(client, partition):
    for key, text in ((b"a", RESET), (b"b", "How do I reset my phone?"), (b"c", "Tell a joke")):
        await client.add(partition, key, text, LATER)
    matches = await client.search(partition, RESET, 2)
    assert [match.key for match in matches] == [b"a", b"b"]
    assert matches[0].similarity == pytest.approx(1.0, abs=1e-4)


async def test_partitions_do_not_see_each_other(client, partition):
    await client.add(partition, os.urandom(8), RESET, LATER)
    assert await client.search(partition + b"x", RESET, 5) == []


async def test_an_expired_vector_is_not_found(client, partition):
    await client.add(partition, os.urandom(8), RESET, time.time() - 1)
    assert await client.search(partition, RESET, 5) == []


async def test_adding_a_key_again_replaces_it(client, partition):
    key = os.urandom(8)
    await client.add(partition, key, "Tell me a joke", LATER)
    await client.add(partition, key, RESET, LATER)
    (match,) = await client.search(partition, RESET, 5)
    assert match.similarity == pytest.approx(1.0, abs=1e-4)


async def test_removed_keys_are_gone_and_unknown_ones_are_no_error(client, partition):
    keys = [os.urandom(8) for _ in range(3)]
    for key in keys:
        await client.add(partition, key, RESET, LATER)
    await client.remove([keys[0], keys[2], b"unknown"])
    assert [match.key for match in await client.search(partition, RESET, 5)] == [keys[1]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty-text"),
        (" \n\t", "empty-text"),
        ("\x00\x01\u200b", "empty-text"),
        ("word " * 300, "text-too-long"),
        ("x" * 100_000, "text-too-long"),
        ("\U0001f389" * 250_000, "text-too-long"),
        ("\ud800", "error"),
    ],
)
async def test_a_text_without_a_vector_is_refused_with_its_reason(client, partition, text, reason):
    with pytest.raises(SemanticUnavailableError) as searched:
        await client.search(partition, text, 1)
    with pytest.raises(SemanticUnavailableError) as added:
        await client.add(partition, b"key", text, LATER)
    with pytest.raises(SemanticUnavailableError) as embedded:
        await client.embed([RESET, text])
    assert searched.value.reason == added.value.reason == embedded.value.reason == reason
    assert (await client.status()).ready


async def test_long_texts_that_differ_only_at_the_end_never_meet(client, partition):
    shared = "word " * 256
    with pytest.raises(SemanticUnavailableError, match="no vector"):
        await client.add(partition, b"key", shared + "one", LATER)
    with pytest.raises(SemanticUnavailableError, match="no vector"):
        await client.search(partition, shared + "two", 1)


@pytest.mark.parametrize("text", ["\U0001f389\U0001f389", "密码怎么重置", "a\x00b", "й" * 50])
async def test_odd_characters_have_a_vector(client, partition, text):
    await client.add(partition, os.urandom(8), text, LATER)
    (match,) = await client.search(partition, text, 1)
    assert match.similarity == pytest.approx(1.0, abs=1e-4)


async def test_embeddings_are_what_sentence_transformers_makes(client, reference):
    texts = [f"How do I reset the password of account {number}?" for number in range(20)]
    vectors = await client.embed([*texts, texts[0]])
    assert vectors[20] == pytest.approx(vectors[0], abs=1e-5)
    for text, vector in zip(texts, vectors, strict=False):
        (expected,) = reference.encode([text])
        assert list(vector) == pytest.approx(expected.tolist(), abs=1e-4)
        assert sum(number * number for number in vector) == pytest.approx(1.0, abs=1e-4)


async def test_embedding_stores_nothing(client, partition):
    before = await client.status()
    await client.embed([RESET])
    assert await client.search(partition, RESET, 1) == []
    assert (await client.status()).vectors == before.vectors


async def test_several_clients_at_once_get_their_own_answers(client, running_service, partition):
    texts = [f"What is the meaning of word {number}?" for number in range(10)]
    for number, text in enumerate(texts):
        await client.add(partition, b"%s-%d" % (partition, number), text, LATER)
    others = [EmbeddingsClient(running_service.socket, timeout=30) for _ in range(4)]
    found = await asyncio.gather(
        *(
            others[number % 4].search(partition, text, 1)
            for number, text in enumerate(texts)
            for _ in range(3)
        )
    )
    await asyncio.gather(*(other.close() for other in others))
    keys = [matches[0].key for matches in found]
    assert keys == [b"%s-%d" % (partition, number) for number in range(10) for _ in range(3)]


async def test_status_tells_what_is_loaded(client, partition):
    before = await client.status()
    await client.add(partition, os.urandom(8), RESET, LATER)
    after = await client.status()
    assert (before.ready, before.encoder, before.dimensions) == (True, "all-MiniLM-L6-v2", 384)
    assert len(bytes.fromhex(before.digest)) == 32
    assert after.vectors == before.vectors + 1


async def test_until_all_is_loaded_only_the_status_is_answered():
    service = EmbeddingsService()
    for request in (Search(b"p", RESET, 1), Verify(((RESET, RESET),)), Embed((RESET,))):
        refused = await service.answer(request)
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.UNAVAILABLE
    status = await service.answer(AskStatus())
    assert (status.ready, status.encoder, status.verifier) == (False, "", "")


async def test_a_client_that_breaks_the_protocol_is_told_and_cut_off(client, running_service):
    reader, writer = await asyncio.open_unix_connection(str(running_service.socket))
    writer.write(b"\xff" * 64)
    async with asyncio.timeout(60):
        (told,) = map(decode, FrameReader().feed(await reader.read()))
    writer.close()
    await writer.wait_closed()
    assert isinstance(told.message, Refused)
    assert told.message.reason is Reason.ERROR
    assert (await client.status()).ready


async def test_requests_beyond_the_bound_are_refused_and_the_rest_answered(
    client, running_service, partition
):
    reader, writer = await asyncio.open_unix_connection(str(running_service.socket))
    sent = MAX_IN_FLIGHT + 50
    writer.write(b"".join(encode(n, Search(partition, f"text {n % 4}", 1)) for n in range(sent)))
    frames, replies = FrameReader(), {}
    async with asyncio.timeout(60):
        while len(replies) < sent:
            data = await reader.read(1 << 16)
            replies.update((e.request_id, e.message) for e in map(decode, frames.feed(data)))
    writer.close()
    await writer.wait_closed()
    kinds = {type(reply) for reply in replies.values()}
    assert kinds <= {Matches, Refused}
    assert all(r.reason is Reason.OVERLOADED for r in replies.values() if isinstance(r, Refused))
    assert sum(isinstance(reply, Matches) for reply in replies.values()) >= MAX_IN_FLIGHT / 2


async def test_a_client_that_goes_away_mid_request_disturbs_nobody(
    client, running_service, partition
):
    reader, writer = await asyncio.open_unix_connection(str(running_service.socket))
    writer.write(encode(1, Add(partition, b"left", RESET, LATER)))
    writer.write(encode(2, Search(partition, "gone before the answer", 1))[:-5])
    await writer.drain()
    frames = FrameReader()
    async with asyncio.timeout(30):
        (first,) = map(decode, frames.feed(await reader.read(1 << 16)))
    assert first.message == Done()
    writer.transport.abort()
    (match,) = await client.search(partition, RESET, 1)
    assert match.key == b"left"


async def test_a_search_sent_after_an_addition_finds_it_without_waiting_for_it(client, partition):
    await client.search(partition, RESET, 1)  # from now on its vector is remembered
    adding = asyncio.create_task(client.add(partition, b"sent", RESET, LATER))
    await asyncio.sleep(0)
    (match,) = await client.search(partition, RESET, 1)
    await adding
    assert match.key == b"sent"


class FullTransport(asyncio.Transport):
    """Tells what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.written = asyncio.Queue()

    def write(self, data):
        self.written.put_nowait(data)

    def is_closing(self):
        return False

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


def test_a_client_that_does_not_read_its_replies_is_not_read_from():
    connection, transport = Connection(EmbeddingsService().answer, set()), FullTransport()
    connection.connection_made(transport)
    connection.pause_writing()
    assert not transport.reading
    connection.resume_writing()
    assert transport.reading


async def test_a_reply_out_of_its_bounds_is_an_error_and_no_silence():
    async def answer(request):
        return Scores("ab", (float("nan"),))

    connection, transport = Connection(answer, set()), FullTransport()
    connection.connection_made(transport)
    connection.data_received(encode(7, AskStatus()))
    async with asyncio.timeout(30):
        (reply,) = map(decode, FrameReader().feed(await transport.written.get()))
    assert reply == (7, Refused(Reason.ERROR, "internal error"))
