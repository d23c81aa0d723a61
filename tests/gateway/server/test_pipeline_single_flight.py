"""Identical misses at the same time look once: one read, one search, one call for all of them."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from coalescer_rig import Rig
from fake_verifier import SaidVerifier

from gateway.app import default_policy
from gateway.cache.lookup import Forward, Hit
from gateway.cache.pii_scan import Scans
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match, SemanticUnavailableError
from gateway.server.context import Trace
from gateway.server.open.policy_file import PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from policies.decision import Endpoint
from scripted_upstream import completion


class GatedIndex:
    """The fake at the index's port: every search waits for the test."""

    def __init__(self) -> None:
        self.searches = 0
        self.searching = asyncio.Event()
        self.found: asyncio.Future[list[Match]] = asyncio.get_running_loop().create_future()

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        self.searches += 1
        self.searching.set()
        return await asyncio.shield(self.found)

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        return None

    async def remove(self, keys: Sequence[bytes]) -> None:
        return None


class Whole:
    """A whole pipeline before the rig's upstream."""

    def __init__(self, data_dir: Path) -> None:
        self.rig = Rig(data_dir)
        self.index = GatedIndex()
        self.pipeline = Pipeline(
            store=self.rig.store,
            semantic=self.index,
            verifier=SaidVerifier(),
            policies=PolicyFile(default_policy()),
            coalescer=self.rig.coalescer,
            scans=Scans(),
            secret=bytes(32),
            outbox=Outbox(bytes(32)),
            recorder=None,
            now=time.time,
        )

    async def ask(self, content: str = "one", **headers: str) -> "asyncio.Task[str]":
        """Begin a request; what it comes to is its Cache-Status."""

        async def answered() -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": content}]}
            request = read_request(Endpoint.CHAT, orjson.dumps(body), headers=headers)
            seen = self.rig.exchange(content).observation
            reply, _ = await self.pipeline.answer(request, seen)
            return dict(reply.headers)["Cache-Status"]

        asked = asyncio.create_task(answered())
        for _ in range(4):  # what there is to await before the search takes no time
            await asyncio.sleep(0)
        return asked


@pytest.fixture
async def whole(tmp_path: Path) -> Whole:
    return Whole(tmp_path)


async def test_one_searches_for_all_who_miss_the_same(whole: Whole):
    asked = [await whole.ask() for _ in range(10)]
    assert whole.index.searches == 1
    whole.index.found.set_result([])
    (await whole.rig.upstream.next_call()).plain(completion("Fine."))
    got = await asyncio.gather(*asked)
    assert sorted(got) == [
        *["refrain; fwd=miss; collapsed"] * 9,
        "refrain; fwd=miss; stored",
    ]
    assert whole.index.searches == 1


async def test_a_semantic_hit_found_by_one_answers_all(whole: Whole):
    first = await whole.ask("How do I reset my password?")
    whole.index.found.set_result([])
    (await whole.rig.upstream.next_call()).plain(completion("So."))
    assert "stored" in await first
    [key] = [entry.key for entry in (await whole.rig.store.walk(None, 9)).entries]

    whole.index.found = asyncio.get_running_loop().create_future()
    asked = [await whole.ask("How do I reset my password please?") for _ in range(5)]
    whole.index.found.set_result([Match(key, 0.99)])
    for got in await asyncio.gather(*asked):
        assert 'detail="semantic; similarity=0.990"' in got
    assert whole.index.searches == 2


async def test_an_explanation_looks_up_by_itself_and_forwards_nothing(whole: Whole):
    asked = await whole.ask()
    body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    request = read_request(Endpoint.CHAT, orjson.dumps(body), headers={})
    trace = Trace()
    whole.index.searching.clear()
    explained = asyncio.create_task(whole.pipeline.explain(request, trace))
    await whole.index.searching.wait()
    assert whole.index.searches == 2
    whole.index.found.set_result([])
    assert isinstance(await explained, Forward)
    assert [type(state).__name__ for state, _ in trace.lookups[0]] == [
        "LookUpExact",
        "ScanPrompt",
        "SearchSemantic",
        "Forward",
    ]
    (await whole.rig.upstream.next_call()).plain(completion("Fine."))
    assert await asked == "refrain; fwd=miss; stored"
    again = Trace()
    assert isinstance(await whole.pipeline.explain(request, again), Hit)
    assert whole.index.searches == 2


async def test_a_search_goes_on_for_those_who_stay(whole: Whole):
    first, second = await whole.ask(), await whole.ask()
    first.cancel()
    await asyncio.wait([first])
    whole.index.found.set_exception(SemanticUnavailableError("timeout"))
    (await whole.rig.upstream.next_call()).plain(completion("Fine."))
    assert await second == "refrain; fwd=miss; stored"


async def test_who_comes_while_the_call_is_under_way_does_not_look_at_all(whole: Whole):
    whole.index.found.set_result([])
    first = await whole.ask()
    call = await whole.rig.upstream.next_call()
    reads: list[bytes] = []
    get = whole.rig.store.get

    async def counted(key: bytes, **how: bool):
        reads.append(key)
        return await get(key, **how)

    whole.rig.store.get = counted
    second = await whole.ask()
    await asyncio.sleep(0)
    assert reads == []
    # It takes only a stored answer, so it looks: the store may have been out meanwhile.
    assert "fwd" not in await (await whole.ask(**{"cache-control": "only-if-cached"}))
    call.plain(completion("Fine."))
    assert await first == "refrain; fwd=miss; stored"
    assert await second == "refrain; fwd=miss; collapsed"
    assert len(reads) == 1


async def test_what_another_tenant_looks_for_is_another_look(whole: Whole):
    asked = [await whole.ask(authorization=f"Bearer {name}") for name in ("a", "b", "a")]
    assert whole.index.searches == 2
    whole.index.found.set_result([])
    for _ in range(2):
        (await whole.rig.upstream.next_call()).plain(completion("Fine."))
    await asyncio.gather(*asked)
    assert len(whole.rig.upstream.calls) == 2
