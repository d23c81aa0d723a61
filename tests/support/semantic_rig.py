"""A pipeline that learns: real parts, an upstream over loopback, fakes at the ports of meaning."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from fake_verifier import SaidVerifier

from gateway.cache.pii_scan import Scans
from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cache.quality.comparisons import Comparisons
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match, SemanticUnavailableError
from gateway.server.open.judge import ModelJudge
from gateway.server.open.policy_file import PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.sharing.coalescer import Coalescer
from gateway.upstream.wire.http_client import HttpUpstream
from policies.decision import Endpoint

POLICY = """
version: 1
default:
  exact: on
  semantic: {%s}
  freshness: 1h
  scope: tenant
  pii: bypass
"""


class NearIndex:
    """The fake at the index's port: finds every question of the partition, all as near."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        del text
        return [Match(key, 0.99) for key, of in self.keys.items() if of == partition][:k]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        del text, expires_at
        self.keys[key] = partition

    async def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.keys.pop(key, None)


class WordEncoder:
    """The fake at the encoder's port: one dimension a word."""

    name = "words"
    digest = "words"

    def __init__(self) -> None:
        self.failing = self.broken = False
        self._words: dict[str, int] = {}

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self.failing:
            raise SemanticUnavailableError("timeout")
        if self.broken:
            raise ZeroDivisionError
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * 256
        words = set(text.casefold().replace(".", "").split())
        for word in words:
            vector[self._words.setdefault(word, len(self._words))] = len(words) ** -0.5
        return vector


class LearningRig:
    """What a test asks, and what came of it."""

    def __init__(self, data_dir: Path, url: str, semantic: str, judge: str = "") -> None:
        policy = data_dir / "policy.yaml"
        policy.write_text(POLICY % semantic)
        self.index, self.encoder, self.verifier = NearIndex(), WordEncoder(), SaidVerifier()
        self.store = MemoryStore(max_bytes=2**24)
        self.quarantine = QuarantineFile(data_dir / "quarantine.jsonl")
        self.journal = ComparisonJournal(data_dir / "semantic-checks.jsonl", self.quarantine)
        self.counted: list[tuple[str, str, str]] = []
        self.finished: list[Observation] = []
        self.latest: Observation | None = None
        self.comparisons = Comparisons(
            self.journal,
            self.quarantine,
            index=self.index,
            encoder=self.encoder,
            now=time.time,
            threshold=self.verifier.threshold,
            count=lambda *counted: self.counted.append(counted),
        )
        self.upstream = HttpUpstream(f"{url}/v1")
        self.comparisons.judge = ModelJudge(self.upstream, judge) if judge else None
        scans = Scans()
        writer = CacheWriter(self.store, self.index, scans, time.time, self.quarantine)
        self.pipeline = Pipeline(
            store=self.store,
            semantic=self.index,
            verifier=self.verifier,
            policies=PolicyFile(policy),
            coalescer=Coalescer(
                AnsweredCall(self.upstream, writer, 2**20, comparisons=self.comparisons)
            ),
            scans=scans,
            secret=bytes(32),
            outbox=Outbox(bytes(32)),
            recorder=None,
            now=time.time,
            learned=self.journal,
        )

    async def ask(self, content: str, **fields: Any) -> tuple[str, bytes]:
        """Ask and read to the end; return Cache-Status and the body."""
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        headers = (("Content-Type", "application/json"),)
        request = read_request(Endpoint.CHAT, orjson.dumps(body), headers={}, fields=headers)
        seen = Observation(
            Endpoint.CHAT.value, time.perf_counter(), time.perf_counter, (self.finished.append,)
        )
        self.latest = seen
        reply, _ = await self.pipeline.answer(request, seen)
        cache = dict(reply.headers)["Cache-Status"]
        with contextlib.closing(reply):
            if isinstance(reply.body, bytes):
                return cache, reply.body
            return cache, b"".join([piece async for piece in reply.body])

    def lines(self) -> list[Any]:
        """Return what the journal holds."""
        path = self.journal.path
        return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@contextlib.asynccontextmanager
async def learning(
    data_dir: Path, url: str, semantic: str, judge: str = ""
) -> AsyncIterator[LearningRig]:
    """Open a rig whose default rule has these keys of ``semantic``."""
    rig = LearningRig(data_dir, url, semantic, judge)
    await rig.upstream.open()
    try:
        yield rig
    finally:
        await rig.pipeline.close()
        await rig.comparisons.close()
        await rig.upstream.close()
