"""Isolation: requests that differ in what decides the answer, or in whose it is, share none.

The fields and their values are drawn from OpenAI's published schema: each pair of requests differs
in one field. Scopes are tried through the whole pipeline, with an index that finds everything for
everybody and a verifier that agrees to all: only scope and fingerprint are left to tell.
"""

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from core_requests import planned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_schema import ABSENT, DESCRIPTION, description, properties, request_schema
from schema_values import values

from gateway.adapters.journal import QuarantineFile
from gateway.adapters.policy_file import PolicyFile
from gateway.adapters.store_memory import MemoryStore
from gateway.admitting import Admitter
from gateway.core.canonical import parse_body
from gateway.core.fields import FIELDS, Role
from gateway.core.plan import Plan
from gateway.core.types import Endpoint
from gateway.exchange import Inbound
from gateway.forwarding import Forwarder
from gateway.observation import Observation
from gateway.pipeline import Pipeline
from gateway.ports import Candidate
from gateway.scanning import Scans
from scripted_upstream import completion

MANY = settings(database=None, suppress_health_check=list(HealthCheck))
EXAMPLES = max(12, settings().max_examples // 50)
ABSENCE = object()
BODIES: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [{"role": "user", "content": "q"}]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "q"},
    Endpoint.EMBEDDINGS: {"model": "m", "input": "q"},
    Endpoint.RESPONSES: {"model": "m", "input": "q", "store": False},
}


def meaning(value: Any, text: str = "") -> Any:
    """Return what is equal for two values exactly if no upstream tells them apart.

    ``text`` names the kind of a text part, where a message may be one or may be its text.
    """
    match value:
        case bool() | str() | None:
            return (type(value), value)
        case int() | float():
            return ("number", value)
        case list():
            return [meaning(item, text) for item in value]
    members = dict(value)
    match members.get("content"):
        case [{"type": kind, "text": str(only)} as part] if text and kind == text:
            if len(part) == 2:
                members["content"] = only
    return {name: meaning(item) for name, item in members.items()}


def meant(endpoint: Endpoint, field: str, value: Any) -> Any:
    if value is ABSENCE:
        return value
    if (endpoint, field) == (Endpoint.EMBEDDINGS, "input"):
        match value:
            case [str() | list() as only]:
                value = only
    folds = {(Endpoint.CHAT, "messages"): "text", (Endpoint.RESPONSES, "input"): "input_text"}
    kind = folds.get((endpoint, field), "")
    return meaning(value, kind) if isinstance(value, list) else meaning(value)


def plan_with(endpoint: Endpoint, field: str, value: Any) -> Plan | None:
    body = {**BODIES[endpoint], field: value}
    if value is ABSENCE:
        del body[field]
    # Whether it may be asked by meaning is for other tests; here all is exact.
    plan = planned(parse_body(json.dumps(body).encode()), endpoint=endpoint, semantic=False)
    return plan if isinstance(plan, Plan) else None


def check_pairs(endpoint: Endpoint, field: str, drawn: Any) -> int:
    """Check requests that differ in one field; return how many pairs of them were looked up."""
    known = FIELDS[endpoint][field]
    pairs = 0

    @settings(MANY, max_examples=EXAMPLES)
    @given(st.lists(drawn, min_size=4, max_size=6))
    def check(found):
        nonlocal pairs
        plans = [(value, plan_with(endpoint, field, value)) for value in (ABSENCE, *found)]
        for (one, plan), (other, peer) in itertools.combinations(plans, 2):
            if plan is None or peer is None:
                assert known.role is Role.BYPASS
                continue
            same = meant(endpoint, field, one) == meant(endpoint, field, other)
            pairs += not same
            assert (plan.key == peer.key) == (same or not known.keyed)

    check()
    return pairs


@pytest.mark.skipif(not DESCRIPTION.is_file(), reason=ABSENT)
def test_of_ten_thousand_pairs_that_differ_in_one_field_none_shares_a_key_but_for_neutral_ones():
    published = description()
    pairs = sum(
        check_pairs(endpoint, field, values(published, schema))
        for endpoint in Endpoint
        for field, schema in properties(published, request_schema(published, endpoint)).items()
    )
    assert pairs >= 10_000


POLICY = """version: 1
default: {{exact: on, semantic: on, freshness: 1h, scope: {scope}, pii: allow}}
"""
HEADERS = ["authorization", "api-key", "x-api-key", "openai-organization", "openai-project"]
NAMES = ["user", "safety_identifier"]
ASKER = st.fixed_dictionaries(
    {"user": st.sampled_from(["a", "b"])},
    optional={name: st.text("ab", min_size=1, max_size=2) for name in [*HEADERS, NAMES[1]]},
)


class EchoingUpstream:
    """The fake at the upstream's port: its answers name who asked."""

    name = "http://upstream/v1"
    status = 200
    headers = (("Content-Type", "application/json"),)
    content_type = "application/json"

    def send(self, path, headers, body):
        return Sent({name.lower(): value for name, value in headers}, orjson.loads(body))


class Sent(EchoingUpstream):
    def __init__(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        asker = {name: headers[name] for name in HEADERS if name in headers}
        asker |= {name: body[name] for name in NAMES if name in body}
        self.answer = completion(json.dumps(asker))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def chunks(self):
        yield orjson.dumps(self.answer)


class EverybodysIndex:
    """The fake at the index's port, as bad as one can be: finds all, whoever asks."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    async def search(self, partition, text, k):
        return [Candidate(key, 1.0) for key in self.keys]

    async def add(self, partition, key, text, expires_at):
        self.keys.append(key)

    async def remove(self, keys):
        raise AssertionError("no entry goes in this test")


class Agreeing:
    """The fake at the verifier's port: any answer fits any question."""

    async def refusal(self, asked, stored):
        return None


def pipeline_for(policy: PolicyFile, quarantine: QuarantineFile, scans: Scans) -> Pipeline:
    store, index = MemoryStore(max_bytes=2**20), EverybodysIndex()
    admitter = Admitter(store, index, scans, time.time, quarantine)
    return Pipeline(
        store=store,
        semantic=index,
        verifier=Agreeing(),
        policies=policy,
        forwarder=Forwarder(EchoingUpstream(), admitter, 2**20),
        scans=scans,
        secret=bytes(32),
        recorder=None,
        now=time.time,
    )


async def answered(pipeline: Pipeline, asker: dict[str, str], question: str) -> tuple[str, Any]:
    """Ask; return how it was answered, and to whom the answer was made."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    body |= {name: asker[name] for name in NAMES if name in asker}
    headers = {name: asker[name] for name in HEADERS if name in asker}
    inbound = Inbound("/v1/chat/completions", headers, headers.items(), orjson.dumps(body))
    seen = Observation(Endpoint.CHAT.value, time.perf_counter(), time.perf_counter, ())
    reply = await pipeline.answer(Endpoint.CHAT, inbound, seen)
    assert isinstance(reply.body, bytes)
    said = orjson.loads(reply.body)["choices"][0]["message"]["content"]
    return dict(reply.headers)["Cache-Status"], json.loads(said)


def isolated(asker: dict[str, str], scope: str) -> Any:
    """Return whose an answer is: the tenant's, or also the end user's, by whichever name."""
    if scope == "public":
        return None
    names = (asker.get("safety_identifier"), asker.get("user")) if scope == "user" else ()
    user = list(dict.fromkeys(name for name in names if name is not None))
    return {name: asker.get(name) for name in HEADERS}, user


@pytest.mark.parametrize("scope", ["tenant", "user", "public"])
def test_no_answer_crosses_a_scope(scope: str, tmp_path: Path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(scope=scope))
    policy, quarantine = PolicyFile(file), QuarantineFile(tmp_path / "quarantine.jsonl")
    scans = Scans()
    outcomes = set()

    @settings(MANY, max_examples=4 * settings().max_examples)
    @given(
        ASKER,
        st.sampled_from([*HEADERS, *NAMES]),
        st.none() | st.text("ab", min_size=1, max_size=2),
        st.sampled_from(["How do I pay?", "How do I pay now?"]),
    )
    def check(one, changed, value, question):
        other = {name: item for name, item in {**one, changed: value}.items() if item is not None}
        if scope == "user" and not any(name in other for name in NAMES):
            return  # bypasses, since it names no user
        pipeline = pipeline_for(policy, quarantine, scans)
        first, made_for = runner.run(answered(pipeline, one, "How do I pay?"))
        assert (first, made_for) == ("refrain; fwd=miss; stored", one)
        status, made_for = runner.run(answered(pipeline, other, question))
        if isolated(one, scope) != isolated(other, scope):
            assert status.startswith("refrain; fwd=miss")
            assert made_for == other
        else:
            assert status.startswith("refrain; hit")
            assert made_for == one
        outcomes.add((changed, status[:11]))

    with asyncio.Runner() as runner:
        check()
    scans.close()
    # Every name was tried, and the traps do spring where nothing isolates.
    assert {changed for changed, _ in outcomes} == {*HEADERS, *NAMES}
    assert any(status == "refrain; hi" for _, status in outcomes)
