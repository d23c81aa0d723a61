"""A gateway's cache in this process: plans, store, index and lookup machine are the gateway's own.

What is left out is what stands around them: sockets, processes, the PII scan. Each realm is a
tenant of its own, as the gateway tells tenants apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from embeddings.encoder import Vector
from embeddings.index_faiss import FaissIndex
from gateway.app import default_policy
from gateway.cache.entry import Entry
from gateway.cache.key import Tenant
from gateway.cache.lookup import start
from gateway.cache.outcomes import Hit
from gateway.cache.plan import Plan, plan_request
from gateway.cache.stores.memory import MemoryStore
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.reasons import Reason
from gateway.semantic.ports import Candidate, SemanticUnavailableError, Verifier
from gateway.semantic.verification import Verification
from gateway.server.admin.explained_lookup import Drive
from policies.decide import Decision, PiiAction, RequestFacts
from policies.freshness import parse_directives
from policies.parse import compile_policy, parse_spec
from quality.outcomes import Outcome, Try
from quality.trial import Request, Trial

STORED_AT = 1_800_000_000.0
_SECRET = bytes(32)
_BYTES = 2**30


@cache
def default_decision() -> Decision:
    """Return what the default policy decides, but for the PII scan: that is not measured here."""
    file = default_policy()
    policy = compile_policy(parse_spec(file.read_text(encoding="utf-8"), str(file)), str(file))
    facts = RequestFacts(Endpoint.CHAT.value, "evaluated", {}, None, None, None, None, None)
    return replace(policy.decide(facts), pii=PiiAction.ALLOW)


def plan_of(request: Request, decision: Decision) -> Plan:
    """Return the gateway's plan of a request."""
    plan = plan_request(
        request.body,
        endpoint=Endpoint.CHAT,
        upstream="http://127.0.0.1/v1",
        query="",
        tenant=Tenant(str(request.realm).encode(), None, None, None),
        secret=_SECRET,
        decision=decision,
        pii_identity="",
        directives=parse_directives(None),
    )
    if isinstance(plan, Reason):
        raise TypeError(f"an evaluated request bypasses the cache: {plan}")
    return plan


class Index:
    """See the port ``SemanticIndex``: the local index, with vectors that were made before."""

    def __init__(self, vectors: Mapping[str, Vector], entries: int) -> None:
        self._vectors = vectors
        self._index = FaissIndex(384, max(1, entries))
        self._known: dict[tuple[bytes, str, int], list[Candidate]] = {}

    def similarity(self, asked: str, stored: str) -> float:
        """Return the cosine of two texts that have vectors."""
        return float(self._vectors[asked] @ self._vectors[stored])

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Candidate]:
        """See the port. The same search is made once."""
        asked = (partition, text, k)
        if asked not in self._known:
            vector = self._vectors.get(text)
            if vector is None:
                raise SemanticUnavailableError("no-vector")
            found = self._index.search(partition, vector, k, STORED_AT)
            self._known[asked] = [Candidate(match.key, match.similarity) for match in found]
        return self._known[asked]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """See the port."""
        vector = self._vectors.get(text)
        if vector is None:
            raise SemanticUnavailableError("no-vector")
        self._index.add(partition, key, vector, expires_at)

    async def remove(self, keys: Sequence[bytes]) -> None:
        """See the port."""
        for key in keys:
            self._index.remove(key)


@dataclass(slots=True)
class Watched:
    """Store and verifier of one lookup, which note the candidates that came to be verified."""

    store: MemoryStore
    verifier: Verifier
    tries: list[Try] = field(default_factory=list)
    _fetched: Entry | None = None

    async def get(self, key: bytes) -> Entry | None:
        """See the port ``Store``."""
        self._fetched = await self.store.get(key)
        return self._fetched

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        """See the port ``Verifier``."""
        verification = await self.verifier.verify(asked, stored, similarity)
        entry = self._fetched
        assert entry is not None
        self.tries.append(Try(stored, entry.result.decode(), similarity, verification))
        return verification

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        """See the port ``Verifier``."""
        return self.verifier.threshold(max_wrong_hits, verifier)


@dataclass(slots=True)
class Cache:
    """The entries of one trial and their vectors."""

    store: MemoryStore
    index: Index
    found_by_meaning: int

    async def ask(self, request: Request, decision: Decision, verifier: Verifier) -> Outcome:
        """Return what the gateway would do with a request; nothing is changed."""
        plan = plan_of(request, decision)
        watched = Watched(self.store, verifier)
        drive = Drive(watched, self.index, watched, (), lambda: STORED_AT, "")
        end = await drive.run(start(plan))
        tries = tuple(watched.tries)
        if isinstance(end, Hit):
            reason = end.status.reason.value
            return Outcome(request, end.entry.result.decode(), reason, tries)
        ineligible = plan.sought.ineligible
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
