"""Faults of store, index and scanner end as a miss or a bypass: never as an error to the client."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest
from fake_verifier import SaidVerifier

from gateway.app import default_policy
from gateway.cache.pii_scan import Scans
from gateway.cache.ports import Entry, StoreError
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match, SemanticUnavailableError
from gateway.server.admin.operations import forget_scope
from gateway.server.open.policy_file import ActivePolicy, PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.request import Served
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint, PiiAction
from scripted_upstream import completion


class FaultyStore(MemoryStore):
    """A store that can be told to fail."""

    failing = False

    async def get(self, key: bytes, *, touch: bool = True) -> Entry | None:
        if self.failing:
            raise StoreError("frozen")
        return await super().get(key, touch=touch)

    async def put(self, entry: Entry) -> None:
        if self.failing:
            raise StoreError("full")
        await super().put(entry)


class Index:
    """The fake at the index's port: finds everything it was given, or fails."""

    def __init__(self) -> None:
        self.failing = False
        self.keys: list[bytes] = []
        self.adding = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        if self.failing:
            raise SemanticUnavailableError("timeout")
        return [Match(key, 0.99) for key in self.keys[:k]]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        if self.failing:
            raise SemanticUnavailableError("timeout")
        self.adding += 1
        await self.answers.wait()
        self.adding -= 1
        self.keys.append(key)

    async def remove(self, keys: Sequence[bytes]) -> None:
        self.keys = [key for key in self.keys if key not in keys]


class PlainUpstream:
    """The fake at the upstream's port: answers with one text."""

    name = "http://upstream/v1"
    status = 200
    headers = (("Content-Type", "application/json"),)
    content_type = "application/json"
    served = Served("upstream")

    def __init__(self) -> None:
        self.calls = 0

    def send(self, outgoing):
        self.calls += 1
        return self

    async def __aenter__(self):
        self._rest = orjson.dumps(completion("Fine."))
        return self

    async def __aexit__(self, *_):
        return None

    async def read(self):
        piece, self._rest = self._rest, b""
        return piece


class Rig:
    """A pipeline of real parts but for its three ports."""

    def __init__(self, data_dir: Path) -> None:
        self.quarantine = QuarantineFile(data_dir / "quarantine.jsonl")
        self.store = FaultyStore(max_bytes=2**20)
        self.index = Index()
        self.upstream = PlainUpstream()
        self.verifier = SaidVerifier()
        scans = Scans()
        self.not_added: list[str] = []
        self.writer = CacheWriter(
            *(self.store, self.index, scans, time.time, self.quarantine),
            count_not_added=self.not_added.append,
        )
        self.pipeline = Pipeline(
            store=self.store,
            semantic=self.index,
            verifier=self.verifier,
            policies=PolicyFile(default_policy()),
            coalescer=Coalescer(AnsweredCall(self.upstream, self.writer, 2**20)),
            scans=scans,
            secret=bytes(32),
            outbox=Outbox(bytes(32)),
            recorder=None,
            now=time.time,
        )

    async def ask(self, content: str) -> tuple[str, Observation]:
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        request = read_request(Endpoint.CHAT, orjson.dumps(body), headers={})
        seen = Observation(Endpoint.CHAT.value, time.perf_counter(), time.perf_counter, ())
        reply, _ = await self.pipeline.answer(request, seen)
        assert reply.status == 200
        return dict(reply.headers)["Cache-Status"], seen


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_a_store_that_fails_is_a_miss_and_loses_nothing(rig: Rig):
    await rig.ask("one")
    rig.store.failing = True
    status, seen = await rig.ask("one")
    assert status == "refrain; fwd=miss; detail=store-fault"
    assert seen.call.declined is Reason.STORE_FAULT
    status, _ = await rig.ask("some wording of one")
    assert "fwd=miss" in status
    rig.store.failing = False
    assert "exact" in (await rig.ask("one"))[0]
    assert "semantic" in (await rig.ask("some wording of one"))[0]


async def test_a_vector_whose_entry_is_gone_is_removed(rig: Rig):
    await rig.ask("one")
    await rig.store.delete(rig.index.keys[0])
    assert "fwd=miss; stored" in (await rig.ask("two"))[0]
    assert len(rig.index.keys) == 1


async def test_no_client_waits_until_its_question_is_in_the_index(rig: Rig):
    rig.index.answers.clear()
    async with asyncio.timeout(60):
        assert "stored" in (await rig.ask("one"))[0]
        assert "exact" in (await rig.ask("one"))[0]
    assert not rig.index.keys
    rig.index.answers.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "semantic" in (await rig.ask("some wording of one"))[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)


async def test_no_client_of_a_burst_waits_for_the_index_and_no_vector_is_lost(rig: Rig):
    rig.index.answers.clear()
    questions = [f"question {n}" for n in range(40)]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(rig.ask, questions))
    assert len(rig.writer.adding) == len(questions)
    assert rig.index.adding == len(questions)
    rig.index.answers.set()
    async with asyncio.timeout(60):
        await rig.writer.settle()
    assert len(rig.index.keys) == len(questions)


async def test_vectors_that_wait_are_bounded_and_those_left_out_are_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.cache.writer.MAX_TO_ADD", 2)
    rig.index.answers.clear()
    for n in range(5):
        assert "stored" in (await rig.ask(f"question {n}"))[0]
    assert rig.not_added == ["too-many"] * 3
    rig.index.answers.set()
    await rig.writer.settle()
    assert len(rig.index.keys) == 2
    rig.index.failing = True
    await rig.ask("question 6")
    await rig.writer.settle()
    assert rig.not_added[3:] == ["timeout"]


async def test_a_removal_waits_for_the_vectors_under_way(rig: Rig):
    rig.index.answers.clear()
    for n in range(3):
        await rig.ask(f"question {n}")
    scope = (await rig.store.walk(None, 1)).entries[0].scope
    forgetting = asyncio.create_task(forget_scope(scope, writer=rig.writer, forget_keys=None))
    await until(lambda: not rig.store.stats().entries)
    rig.index.answers.set()
    async with asyncio.timeout(60):
        assert await forgetting == 3
    assert rig.index.keys == []


async def test_a_removal_does_not_wait_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.cache.writer.SETTLE_SECONDS", 0)
    rig.index.answers.clear()
    await rig.ask("one")
    async with asyncio.timeout(60):
        await rig.writer.remove([(await rig.store.walk(None, 1)).entries[0].key])
    assert rig.store.stats().entries == 0


async def test_a_removal_gives_up_the_vectors_of_its_own_entries_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.cache.writer.SETTLE_SECONDS", 0)
    rig.index.answers.clear()
    for n in range(2):
        await rig.ask(f"question {n}")
    first, second = rig.writer.adding
    await rig.writer.remove([first])
    rig.index.answers.set()
    await until(lambda: not rig.writer.adding)
    assert rig.index.keys == [second]


async def test_an_index_that_fails_is_a_miss_and_told(rig: Rig):
    rig.index.failing = True
    status, seen = await rig.ask("one")
    assert status == "refrain; fwd=miss; stored"
    assert seen.lookup.semantic_fault == "timeout"


@pytest.mark.parametrize(
    ("text", "look"),
    [("call 5551234567", "is_clean"), ("call 5551234567", "scan"), ("long " * 1000, "scan")],
)
async def test_a_scanner_that_fails_is_a_bypass(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    look: str,
):
    def fail(_self: object, text: str) -> None:
        raise ValueError(text)

    monkeypatch.setattr(f"policies.pii.scan.PiiScanner.{look}", fail)
    status, _ = await rig.ask(text)
    assert status == "refrain; fwd=bypass; detail=scan-fault"
    assert text not in caplog.text
    assert rig.store.stats().entries == 0


async def test_a_scanner_that_is_slow_is_a_bypass(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    import threading

    release = threading.Event()
    monkeypatch.setattr("policies.pii.scan.PiiScanner.scan", lambda _self, _text: release.wait(20))
    monkeypatch.setattr("gateway.cache.pii_scan.SCAN_SECONDS", 0.05)
    status, _ = await rig.ask("long " * 1000)
    release.set()
    assert status == "refrain; fwd=bypass; detail=scan-fault"


async def test_what_the_verifier_refuses_is_a_miss(rig: Rig):
    await rig.ask("one")
    rig.verifier.said = "number"
    assert "fwd=miss" in (await rig.ask("two"))[0]


async def test_an_upstream_fault_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    async def fail(_self: object) -> None:
        raise UpstreamError(502, "gone", Reason.UPSTREAM_UNREACHABLE)

    monkeypatch.setattr(PlainUpstream, "__aenter__", fail)
    with pytest.raises(UpstreamError):
        await rig.ask("one")


def test_an_edit_counts_once_two_readings_agree(tmp_path: Path):
    path = tmp_path / "policy.yaml"
    text = default_policy().read_text()
    path.write_text(text)
    policy = PolicyFile(path)
    path.write_text(text.replace("generation: 0", "generation: 1"))
    assert not policy.reload()
    path.write_text(text.replace("generation: 0", "generation: 2"))
    assert not policy.reload()
    assert policy.reload()
    assert policy.active.policy.generation == 2
    path.unlink()
    assert not policy.reload()
    assert policy.problem is not None
    assert policy.active.policy.generation == 2
    path.write_bytes(b"\xff")
    assert not policy.reload()
    assert not policy.reload()
    assert "UTF-8" in str(policy.problem)


async def test_an_entry_judged_wrong_is_stored_but_never_found_by_meaning_again(rig: Rig):
    await rig.ask("one")
    (key,) = rig.index.keys
    await rig.quarantine.add(key)
    await rig.store.delete(key)
    rig.index.keys.clear()

    assert (await rig.ask("one"))[0] == "refrain; fwd=miss; stored"
    assert rig.index.keys == []
    assert "hit" in (await rig.ask("one"))[0]


async def test_a_vector_that_outlived_the_word_wrong_leads_to_no_hit(rig: Rig):
    await rig.ask("one")
    (key,) = rig.index.keys
    # The index is down meanwhile: only the entry goes, and it comes back.
    rig.index.failing = True
    await rig.quarantine.add(key)
    await rig.store.delete(key)
    await rig.ask("one")
    rig.index.failing = False
    assert rig.index.keys == [key]

    assert "exact" in (await rig.ask("one"))[0]
    assert "fwd=miss" in (await rig.ask("two"))[0]


def test_public_contacts_of_the_policy_reach_the_scan_and_every_key_of_it(tmp_path: Path):
    def active(allowed: str) -> ActivePolicy:
        path = tmp_path / "policy.yaml"
        path.write_text(
            "version: 1\n"
            "default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}\n"
            f"{allowed}"
        )
        return PolicyFile(path).active

    plain, allowing = active(""), active('pii: {allow: "*@acme.example"}\n')
    assert plain.scanner.scan("ada@acme.example") == "email"
    assert allowing.scanner.scan("ada@acme.example") is None
    assert allowing.scanner.scan("ada@acme.example, bob@other.example") == "email"
    for action in PiiAction:
        assert plain.pii_identities[action] != allowing.pii_identities[action]
