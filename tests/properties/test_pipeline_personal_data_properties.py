"""With ``pii: user``, no answer that holds personal data reaches another user's request."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

import orjson
from examples import some
from fake_verifier import SaidVerifier
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.pii_scan import Scans
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match
from gateway.server.open.policy_file import PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.request import Outgoing, Served
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint
from scripted_upstream import completion

POLICY = """
version: 1
default:
  exact: on
  semantic: {enabled: on, min_similarity: 0.5}
  freshness: 100s
  grace: 50s
  scope: tenant
  pii: user
"""
SECRET_WORD = "PERSONAL"


class Scanner:
    """The fake at the scanner's port: one word is personal."""

    identity = "one word"

    def is_clean(self, _text: str) -> bool:
        return False

    def scan(self, text: str) -> str | None:
        return "word" if SECRET_WORD in text else None


class Policies:
    """The policy above in force, with the scanner above."""

    def __init__(self) -> None:
        with NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(POLICY)
            file.flush()
            self.active = replace(PolicyFile(Path(file.name)).active, scanner=Scanner())


POLICIES = Policies()


class Everything:
    """The fake at the index's port: whatever partition is asked for, all entries are near."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        return [Match(key, 0.99) for key in reversed(self.keys)][:k]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        self.keys.append(key)

    async def remove(self, keys: Sequence[bytes]) -> None:
        self.keys = [key for key in self.keys if key not in keys]


class NoQuarantine:
    """Nothing was judged wrong."""

    def holds(self, key: bytes) -> bool:
        return False


class Reply:
    """What the upstream says."""

    status = 200
    headers = (("Content-Type", "application/json"),)
    content_type = "application/json"
    served = Served("upstream")

    def __init__(self, text: str) -> None:
        self._rest = orjson.dumps(completion(text))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        piece, self._rest = self._rest, b""
        return piece

    async def chunks(self) -> Any:
        while piece := await self.read():
            yield piece


class Upstream:
    """The fake at the upstream's port: says whom it answers, and perhaps something personal.

    By the request, not by the moment: a refresh in the background may come later than others.
    """

    name = "http://upstream/v1"

    def __init__(self) -> None:
        self.tells = False

    def send(self, outgoing: Outgoing) -> Reply:
        user = orjson.loads(outgoing.raw).get("user")
        return Reply(f"for {user}" + (f" {SECRET_WORD}" if self.tells else ""))


USERS = st.sampled_from(["ann", "bob", None])
PROMPTS = st.sampled_from(["How?", "How much?", f"{SECRET_WORD} how?"])
ASKED = st.tuples(USERS, PROMPTS, st.booleans(), st.sampled_from([0, 30, 60]), st.booleans())


@settings(max_examples=some(80))
@given(st.lists(ASKED, min_size=2, max_size=12))
def test_personal_data_never_reaches_another_user(asked):
    asyncio.run(_ask_all(asked))


async def _ask_all(asked: list[tuple[str | None, str, bool, int, bool]]) -> None:
    clock = [1_000_000.0]
    store, index, upstream, scans = MemoryStore(max_bytes=2**20), Everything(), Upstream(), Scans()
    writer = CacheWriter(store, index, scans, lambda: clock[0], NoQuarantine())
    pipeline = Pipeline(
        store=store,
        semantic=index,
        verifier=SaidVerifier(),
        policies=POLICIES,
        coalescer=Coalescer(AnsweredCall(upstream, writer, 2**20)),
        scans=scans,
        secret=bytes(32),
        outbox=Outbox(bytes(32)),
        now=lambda: clock[0],
        recorder=None,
    )
    for user, prompt, tells, later, no_cache in asked:
        clock[0] += later
        upstream.tells = tells
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        if user is not None:
            body["user"] = user
        headers = {"cache-control": "no-cache"} if no_cache else {}
        request = read_request(Endpoint.CHAT, orjson.dumps(body), headers=headers)
        seen = Observation(Endpoint.CHAT.value, time.perf_counter(), time.perf_counter, ())
        reply, _ = await pipeline.answer(request, seen)
        assert isinstance(reply.body, bytes)
        text = orjson.loads(reply.body)["choices"][0]["message"]["content"]
        if SECRET_WORD in text or SECRET_WORD in prompt:
            assert f"for {user}" in text, (text, dict(reply.headers)["Cache-Status"])
    await pipeline.coalescer.close()
    scans.close()
