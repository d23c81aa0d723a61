"""A gateway's cache in this process: plans, store, index and pipeline are the gateway's own.

What is left out is what stands around them: sockets, processes, the PII scan. Each realm is a
tenant of its own, as the gateway tells tenants apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

import orjson

from embeddings.encoder.encoder import Vector
from embeddings.index.partition import MemoryIndex
from gateway.app import default_policy
from gateway.cache.key import identify
from gateway.cache.lookup import Forward, Hit
from gateway.cache.plan import Plan, plan_request
from gateway.cache.stores.memory import MemoryStore
from gateway.cli.offline.explain import pipeline_to_explain
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match, SemanticUnavailableError, Verifier
from gateway.server.context import Trace, Verdict
from gateway.server.open.policy_file import ActivePolicy, PolicyFile
from policies.decision import Decision, Endpoint, PiiAction
from policies.freshness import parse_directives
from quality.outcomes import Outcome, Try
from quality.trial import Request, Trial

STORED_AT = 1_800_000_000.0
_SECRET = bytes(32)
_UPSTREAM = "http://127.0.0.1/v1"
_BYTES = 2**30


@cache
def policy() -> ActivePolicy:
    """Return the default policy."""
    return PolicyFile(default_policy()).active


def default_decision() -> Decision:
    """Return what the default policy decides, but for the PII scan: that is not measured here."""
    return replace(policy().policy.default, pii=PiiAction.ALLOW)


def plan_of(request: Request, decision: Decision) -> Plan:
    """Return the gateway's plan of a request."""
    plan = plan_request(
        request.body,
        endpoint=Endpoint.CHAT,
        upstream=_UPSTREAM,
        query="",
        tenant=identify({}, str(request.realm)),
        secret=_SECRET,
        decision=decision,
        pii_identity=policy().pii_identities[decision.pii],
        directives=parse_directives(None),
    )
    if isinstance(plan, Reason):
        raise TypeError(f"an evaluated request bypasses the cache: {plan}")
    return plan


class Index:
    """See the port ``SemanticIndex``: the local index, with vectors that were made before."""

    def __init__(self, vectors: Mapping[str, Vector], entries: int) -> None:
        self._vectors = vectors
        self._index = MemoryIndex(384, max(1, entries))
        self._known: dict[tuple[bytes, str, int], list[Match]] = {}

    def similarity(self, asked: str, stored: str) -> float:
        """Return the cosine of two texts that have vectors."""
        return float(self._vectors[asked] @ self._vectors[stored])

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        # The same search is made once.
        asked = (partition, text, k)
        if asked not in self._known:
            vector = self._vectors.get(text)
            if vector is None:
                raise SemanticUnavailableError("no-vector")
            found = self._index.search(partition, vector, k, STORED_AT)
            self._known[asked] = [Match(match.key, match.similarity) for match in found]
        return self._known[asked]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        vector = self._vectors.get(text)
        if vector is None:
            raise SemanticUnavailableError("no-vector")
        self._index.add(partition, key, vector, expires_at)

    async def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._index.remove(key)


@dataclass(frozen=True, slots=True)
class Policies:
    """See the port ``PolicySource``: a policy without rules, whose default decides on all."""

    active: ActivePolicy


@dataclass(slots=True)
class Cache:
    """The entries of one trial and their vectors."""

    store: MemoryStore
    index: Index
    found_by_meaning: int

    async def ask(self, request: Request, decision: Decision, verifier: Verifier) -> Outcome:
        """Return what the gateway would do with a request; nothing is changed."""
        active = policy()
        policies = Policies(replace(active, policy=replace(active.policy, default=decision)))
        pipeline = pipeline_to_explain(
            policies,
            self.store,
            _SECRET,
            _UPSTREAM,
            semantic=self.index,
            verifier=verifier,
            now=lambda: STORED_AT,
        )
        raw, trace = orjson.dumps(request.body), Trace()
        read = read_request(Endpoint.CHAT, raw, headers={}, holder=str(request.realm))
        end = await replace(pipeline, semantic_seconds=inf).explain(read, trace)
        tries = tuple(
            Try(state.stored, state.hit.entry.result.decode(), state.pair[2], result.verification)
            for (state, result) in trace.lookups[0]
            if isinstance(result, Verdict)
        )
        if isinstance(end, Hit):
            reason = end.status.reason.value
            return Outcome(request, end.entry.result.decode(), reason, tries)
        ineligible = end.ineligible if isinstance(end, Forward) else None
        return Outcome(request, None, "miss" if ineligible is None else ineligible.value, tries)


async def filled(trial: Trial, vectors: Mapping[str, Vector]) -> Cache:
    """Store what the trial stores, as admission would."""
    store, index = MemoryStore(max_bytes=_BYTES), Index(vectors, len(trial.stored))
    eligible = 0
    decision = replace(default_decision(), lifetime=1e6)
    for request in trial.stored:
        entry = plan_of(request, decision).entry((request.answer or "").encode(), STORED_AT)
        await store.put(entry)
        if entry.question is not None:
            await index.add(entry.fingerprint, entry.key, entry.question, entry.expires_at)
            eligible += 1
    return Cache(store, index, eligible)
