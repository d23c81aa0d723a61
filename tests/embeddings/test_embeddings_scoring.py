"""Pairs scored by the service: through the real client, with a small verifier and with none."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny_verifier import write_tiny_verifier

from embeddings.batching import OverloadedError
from embeddings.client import EmbeddingsClient, SemanticUnavailableError
from embeddings.messages import MAX_FIELD, Reason
from embeddings.scoring import (
    MAX_BATCH,
    MAX_WAIT_SECONDS,
    MAX_WAITING,
    PairScores,
    open_pair_scores,
)
from embeddings.service import tell_verifier
from embeddings.verify.verifier import load_verifier

RESET = "How do I reset my password?"
PHONE = "How do I reset my phone?"


class GatedScorer:
    """Notes each batch, and waits in it until it may go on. A score is a length."""

    name, digest = "gated", "ab" * 32

    def __init__(self) -> None:
        self.batches = []
        self.began = threading.Event()
        self.may_run = threading.Event()
        self.may_run.set()

    def score(self, pairs):
        self.batches.append(list(pairs))
        self.began.set()
        assert self.may_run.wait(30)
        return [Reason.TEXT_TOO_LONG if a == "long" else len(a) / 100 for a, _ in pairs]


@pytest.fixture
def scorer():
    made = GatedScorer()
    yield made
    made.may_run.set()


@pytest.fixture
def pairs(scorer):
    return PairScores(scorer, ThreadPoolExecutor(1))


async def test_lanes_score_pairs_side_by_side(scorer):
    scorer.may_run.clear()
    with ThreadPoolExecutor(2) as threads:
        pairs = PairScores(scorer, threads, lanes=2)
        asked = asyncio.create_task(pairs.score([("a", "b"), ("aa", "b")]))
        while len(scorer.batches) < 2:  # noqa: ASYNC110 - set from the batches' threads
            await asyncio.sleep(0)
        scorer.may_run.set()
        assert await asked == (0.01, 0.02)


async def test_scores_come_in_the_order_of_the_pairs(pairs):
    assert await pairs.score([("a" * n, "b") for n in range(1, 17)]) == tuple(
        n / 100 for n in range(1, 17)
    )
    assert await pairs.score([]) == ()


async def test_one_pair_without_a_score_fails_all_of_its_call_and_no_other(pairs):
    failed, scored = await asyncio.gather(
        pairs.score([("a", "b"), ("long", "b")]), pairs.score([("aa", "b")])
    )
    assert failed is Reason.TEXT_TOO_LONG
    assert scored == (0.02,)


async def test_pairs_beyond_the_bound_are_not_taken(pairs, scorer):
    scorer.may_run.clear()
    waiting = [asyncio.create_task(pairs.score([("a", "b")])) for _ in range(MAX_WAITING + 100)]
    assert await asyncio.to_thread(scorer.began.wait, 30)
    scorer.may_run.set()
    async with asyncio.timeout(30):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [result for result in results if isinstance(result, OverloadedError)]
    assert 0 < len(refused) <= 100
    assert sum(result == (0.01,) for result in results) == len(results) - len(refused)
    assert max(map(len, scorer.batches)) == MAX_BATCH


async def test_a_pair_that_would_wait_too_long_is_not_taken(pairs, scorer):
    assert await pairs.score([("a", "b")]) == (0.01,)
    pairs._waiting.item_seconds = MAX_WAIT_SECONDS  # as if a pair took so long
    scorer.began.clear()
    scorer.may_run.clear()
    running = asyncio.create_task(pairs.score([("a", "b")]))
    assert await asyncio.to_thread(scorer.began.wait, 30)
    waiting = [asyncio.create_task(pairs.score([(name, "b")])) for name in ("aa", "aaa")]
    for _ in range(3):  # turns of the loop until both wait
        await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match=r"over 0\.25 s"):
        await pairs.score([("aaaa", "b")])
    scorer.may_run.set()
    assert await asyncio.gather(running, *waiting) == [(0.01,), (0.02,), (0.03,)]
    assert await pairs.score([("aaaa", "b")]) == (0.04,)


async def test_a_caller_who_left_is_not_scored(pairs, scorer):
    scorer.may_run.clear()
    first = asyncio.create_task(pairs.score([("a", "b")]))
    assert await asyncio.to_thread(scorer.began.wait, 30)
    left = asyncio.create_task(pairs.score([("left", "b")]))
    last = asyncio.create_task(pairs.score([("aaa", "b")]))
    await asyncio.sleep(0)
    left.cancel()
    scorer.may_run.set()
    assert [await first, await last] == [(0.01,), (0.03,)]
    assert ("left", "b") not in [pair for batch in scorer.batches for pair in batch]


async def test_a_verifier_that_raises_fails_its_callers_and_scores_the_next(pairs, scorer):
    score = scorer.score
    scorer.score = lambda pairs: 1 / 0
    broken = PairScores(scorer, ThreadPoolExecutor(1))
    with pytest.raises(ZeroDivisionError):
        await broken.score([("a", "b")])
    scorer.score = score
    assert await pairs.score([("a", "b")]) == (0.01,)


async def test_a_directory_without_a_verifier_is_a_fault_and_no_failure(tmp_path):
    pairs = await open_pair_scores(tmp_path / "none", lanes=1)
    assert await pairs.score([(RESET, PHONE)]) is Reason.UNAVAILABLE
    assert (pairs.name, pairs.digest) == ("", "")
    assert "holds no config.json" in pairs.fault


async def test_that_there_is_no_verifier_is_a_warning_with_what_to_do(tmp_path, caplog):
    pairs = await open_pair_scores(tmp_path, 1)
    tell_verifier(pairs)
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert "verifier: none, " in line.getMessage()
    assert "holds no config.json" in line.getMessage()
    assert "install Refrain anew" in line.getMessage()


async def test_any_failure_to_load_is_a_fault(monkeypatch, tmp_path):
    def load(directory, threads):
        raise MemoryError("\U0001f389" * 5000)

    monkeypatch.setattr("embeddings.verify.verifier.load_verifier", load)
    pairs = await open_pair_scores(tmp_path, lanes=1)
    assert await pairs.score([(RESET, PHONE)]) is Reason.UNAVAILABLE
    assert 0 < len(pairs.fault) <= MAX_FIELD


async def test_the_service_scores_pairs_and_says_with_which_verifier(new_service, tmp_path):
    expected = load_verifier(write_tiny_verifier(tmp_path), threads=1)
    service = new_service("--verifier", str(tmp_path))
    service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    status = await service.ready(client)
    assert (status.verifier, status.verifier_digest) == ("tiny", expected.digest)
    assert status.verifier_fault == ""
    wanted = [(f"What is the price of {n} apples?", RESET) for n in range(20)]
    scores = await asyncio.gather(*(client.score(*pair) for pair in wanted))
    assert scores == pytest.approx(expected.score(wanted), abs=1e-6)
    assert await client.score(RESET, PHONE) == await client.score(PHONE, RESET)
    assert client.verifier == expected.digest
    for text, reason in {
        "": "empty-text",
        "\u200b": "empty-text",
        "word " * 300: "text-too-long",
        "x" * 150_000: "text-too-long",
        "\U0001f389": "unreadable-text",
        "\ud800": "error",
    }.items():
        with pytest.raises(SemanticUnavailableError) as refused:
            await client.score(RESET, text)
        assert refused.value.reason == reason
    await client.close()


async def test_a_broken_verifier_leaves_everything_else_running(new_service, tmp_path):
    write_tiny_verifier(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    service = new_service("--verifier", str(tmp_path))
    service.start()
    client = EmbeddingsClient(service.socket, timeout=30)
    status = await service.ready(client)
    assert (status.verifier, status.verifier_digest, client.verifier) == ("", "", "")
    assert "model.safetensors" in status.verifier_fault or str(tmp_path) in status.verifier_fault
    with pytest.raises(SemanticUnavailableError) as refused:
        await client.score(RESET, PHONE)
    assert refused.value.reason is Reason.UNAVAILABLE
    await client.add(b"p", b"reset", RESET, time.time() + 60)
    assert len(await client.search(b"p", RESET, 1)) == 1
    await client.close()
