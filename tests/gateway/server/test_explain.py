"""An explanation of a lookup by meaning: what was near, what the verifier said, what failed."""

import orjson
import pytest
from fake_verifier import SaidVerifier

from gateway.app import default_policy
from gateway.cache.key import ANONYMOUS
from gateway.cache.plan import plan_request
from gateway.cache.ports import StoreError
from gateway.cache.stores.memory import MemoryStore
from gateway.cli.offline.explain import explanation_text, pipeline_to_explain
from gateway.semantic.ports import Match, SemanticUnavailableError
from gateway.server.admin.explain import Explainer
from gateway.server.admin.recorded_request import parse_recorded
from gateway.server.open.policy_file import PolicyFile
from policies.decision import Endpoint
from policies.freshness import Directives

SECRET = b"s" * 32
POLICIES = PolicyFile(default_policy())


def body(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def entry_for(text, now=0.0):
    active = POLICIES.active
    decision = active.policy.default
    plan = plan_request(
        body(text),
        endpoint=Endpoint.CHAT,
        upstream="u",
        query="",
        tenant=ANONYMOUS,
        secret=SECRET,
        decision=decision,
        pii_identity=active.pii_identities[decision.pii],
        directives=Directives(),
    )
    return plan.entry(b"{}", now)


class Index:
    def __init__(self, *near, fault=None):
        self.near, self.fault, self.removed = near, fault, []

    async def search(self, partition, text, k):
        if self.fault:
            raise SemanticUnavailableError(self.fault)
        return self.near

    async def remove(self, keys):
        self.removed += keys


async def explained(text, index, verifier=None, store=None):
    store = store or MemoryStore(max_bytes=10**6)
    await store.put(entry_for("How do I reset my password?"))
    pipeline = pipeline_to_explain(
        POLICIES,
        store,
        SECRET,
        "u",
        semantic=index,
        verifier=verifier or SaidVerifier(),
        now=lambda: 60.0,
    )
    told = await Explainer(pipeline).explain(parse_recorded(orjson.dumps(body(text))))
    assert explanation_text(told, colour=False)
    return told["outcome"], {step["step"]: step["result"] for step in told["lookup"]}


async def test_a_hit_by_meaning_tells_how_near_and_that_it_was_verified():
    key = entry_for("How do I reset my password?").key
    outcome, steps = await explained("How can I reset my password?", Index(Match(key, 0.973)))
    assert (outcome["would"], outcome["reason"], outcome["similarity"]) == (
        "hit",
        "semantic",
        0.973,
    )
    assert (outcome["score"], outcome["threshold"]) == (1.0, 0.5)
    assert (outcome["age"], outcome["entry"]["key"]) == (60, key.hex())
    assert steps == {
        "exact": "no entry",
        "scan": "clean",
        "meaning": "nearest 0.973, 1 of 1 reach 0.75",
        "candidate, 0.973": "an entry 60 s old, fresh for 3540 s",
        "verification": "fits: score 1, needs 0.5 for at most 0.5 % wrong hits",
    }


async def test_a_candidate_whose_entry_is_gone_stays_in_the_index():
    index = Index(Match(b"k" * 32, 0.95))
    outcome, steps = await explained("How can I reset my password?", index)
    assert (outcome["would"], steps["candidate, 0.950"]) == ("miss", "no entry")
    assert index.removed == []


async def test_an_entry_does_not_count_as_used():
    class Noting(MemoryStore):
        used = 0

        async def get(self, key, *, touch=True):
            self.used += touch
            return await super().get(key, touch=touch)

    store = Noting(max_bytes=10**6)
    outcome, _ = await explained("How do I reset my password?", Index(), store=store)
    assert (outcome["would"], outcome["reason"], store.used) == ("hit", "exact", 0)


@pytest.mark.parametrize("where", ["exact", "walk"])
async def test_a_store_that_fails_leaves_the_end_unknown(where):
    class Failing(MemoryStore):
        async def get(self, key, *, touch=True):
            if where == "exact":
                raise StoreError("frozen")
            return await super().get(key, touch=touch)

        async def walk(self, after, limit):
            raise StoreError("frozen")

    outcome, steps = await explained("Something else", Index(), store=Failing(max_bytes=10**6))
    assert outcome == {"would": "unknown", "message": "The store failed: frozen"}
    assert steps["exact"] == ("failed: frozen" if where == "exact" else "no entry")


async def test_a_candidate_that_the_verifier_refuses_is_told_with_its_reason():
    key = entry_for("How do I reset my password?").key
    outcome, steps = await explained("x", Index(Match(key, 0.95)), SaidVerifier("numbers"))
    assert outcome["would"] == "miss"
    assert steps["verification"] == "refused: numbers"


async def test_a_candidate_that_is_not_sure_enough_tells_what_the_budget_needs():
    key = entry_for("How do I reset my password?").key
    index = Index(Match(key, 0.95))
    outcome, steps = await explained("x", index, SaidVerifier(score=0.4996))
    assert outcome["would"] == "miss"
    told = "refused: score 0.4996, needs 0.5 for at most 0.5 % wrong hits"
    assert steps["verification"] == told


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (Index(), "no stored question of the same conversation and parameters"),
        (Index(Match(b"k" * 32, 0.7)), "nearest 0.700, 0 of 1 reach 0.75"),
        (Index(fault="timeout"), "the index cannot answer: timeout"),
        (None, "not looked up: this gateway runs without an index of questions"),
    ],
)
async def test_why_nothing_was_found_by_meaning(index, told):
    outcome, steps = await explained("Something quite unlike", index)
    assert (outcome["would"], steps["meaning"]) == ("miss", told)
