"""No answer crosses a scope: whoever asks what somebody else asked is answered for itself.

Tried through the whole pipeline, on every cached path, with an index that finds everything for
everybody and a verifier that agrees to all: only scope and fingerprint are left to tell.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from fake_verifier import SaidVerifier
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from naming_upstream import BODIES as ASKED
from naming_upstream import HEADERS, NAMES, PATHS, Asker, NamingUpstream, made_for

from gateway.cache.pii_scan import Scans
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match
from gateway.server.open.policy_file import PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint

MANY = settings(database=None, suppress_health_check=list(HealthCheck))
POLICY = """version: 1
default: {{exact: on, semantic: on, freshness: 1h, scope: {scope}, pii: allow}}
"""
ASKER = st.fixed_dictionaries(
    {"user": st.sampled_from(["a", "b"])},
    optional={name: st.text("ab", min_size=1, max_size=2) for name in (*HEADERS, NAMES[1])},
)


class EverybodysIndex:
    """The fake at the index's port, as bad as one can be: finds all, whoever asks."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    async def search(self, partition, text, k):
        return [Match(key, 1.0) for key in self.keys]

    async def add(self, partition, key, text, expires_at):
        self.keys.append(key)

    async def remove(self, keys):
        raise AssertionError("no entry goes in this test")


def pipeline_for(policy: PolicyFile, quarantine: QuarantineFile, scans: Scans) -> Pipeline:
    store, index = MemoryStore(max_bytes=2**20), EverybodysIndex()
    writer = CacheWriter(store, index, scans, time.time, quarantine)
    return Pipeline(
        store=store,
        semantic=index,
        verifier=SaidVerifier(),
        policies=policy,
        coalescer=Coalescer(AnsweredCall(NamingUpstream(), writer, 2**20)),
        scans=scans,
        secret=bytes(32),
        outbox=Outbox(bytes(32)),
        recorder=None,
        now=time.time,
    )


async def answered(pipeline: Pipeline, kind: str, asker: Asker, question: str) -> tuple[str, Asker]:
    """Ask; return how it was answered, and to whom the answer was made."""
    path = PATHS[kind]
    body = {"model": "m", **ASKED[kind](question)}
    body |= {name: asker[name] for name in NAMES if name in asker}
    headers = {name: asker[name] for name in HEADERS if name in asker}
    request = read_request(
        Endpoint(path), orjson.dumps(body), headers=headers, fields=headers.items()
    )
    seen = Observation(path, time.perf_counter(), time.perf_counter, ())
    reply, _ = await pipeline.answer(request, seen)
    assert isinstance(reply.body, bytes)
    return dict(reply.headers)["Cache-Status"], made_for(path, orjson.loads(reply.body))


def isolated(asker: dict[str, str], scope: str) -> Any:
    """Return whose an answer is: the tenant's, or also the end user's, by whichever name."""
    if scope == "public":
        return None
    names = (asker.get("safety_identifier"), asker.get("user")) if scope == "user" else ()
    user = list(dict.fromkeys(name for name in names if name is not None))
    return {name: asker.get(name) for name in HEADERS}, user


@pytest.mark.parametrize("scope", ["tenant", "user", "public"])
@pytest.mark.parametrize("kind", ASKED)
def test_no_answer_crosses_a_scope(kind: str, scope: str, tmp_path: Path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(scope=scope))
    policy, quarantine = PolicyFile(file), QuarantineFile(tmp_path / "quarantine.jsonl")
    scans = Scans()
    outcomes = set()

    # What OpenAI does not publish for a path is part of the key.
    names = ["user"] if kind.startswith("embeddings") else NAMES
    # Completions and embeddings are never found by meaning.
    paraphrase = "now" if kind in ("chat", "responses") else ""

    @settings(MANY, max_examples=settings().max_examples)
    @given(
        ASKER,
        st.sampled_from([*HEADERS, *names]),
        st.none() | st.text("ab", min_size=1, max_size=2),
        st.sampled_from(["How do I pay?", f"How do I pay{paraphrase}?"]),
    )
    def check(one, changed, value, question):
        one = {name: item for name, item in one.items() if name in (*HEADERS, *names)}
        other = {name: item for name, item in {**one, changed: value}.items() if item is not None}
        if scope == "user" and not any(name in other for name in names):
            return  # bypasses, since it names no user
        pipeline = pipeline_for(policy, quarantine, scans)
        first, asker = runner.run(answered(pipeline, kind, one, "How do I pay?"))
        assert (first, asker) == ("refrain; fwd=miss; stored", one)
        status, asker = runner.run(answered(pipeline, kind, other, question))
        if isolated(one, scope) != isolated(other, scope):
            assert status.startswith("refrain; fwd=miss")
            assert asker == other
        else:
            assert status.startswith("refrain; hit")
            assert asker == one
        outcomes.add((changed, status[:11]))

    everybody = dict.fromkeys((*HEADERS, *names), "a")
    for name in everybody:
        # Chance alone would leave out one or another of them now and then.
        for value in ("a", "b"):
            check = example(everybody, name, value, "How do I pay?")(check)
    with asyncio.Runner() as runner:
        check()
    scans.close()
    # Every name was tried, and the traps do spring where nothing isolates.
    assert {changed for changed, _ in outcomes} == {*HEADERS, *names}
    assert any(status == "refrain; hi" for _, status in outcomes)
