"""Drive the lookup machine for an explanation: the same states, and what each came to.

Law: nothing is changed and nothing is forwarded; what is noted holds no text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from gateway.cache.entry import Entry
from gateway.cache.lookup import LookUpExact, LookUpPersonal, ScanPrompt, State
from gateway.cache.lookup_semantic import NEAREST, FetchCandidate, SearchSemantic, VerifyCandidate
from gateway.cache.outcomes import Forward, Hit, Refused
from gateway.cache.plan import Plan
from gateway.cache.ports import Learned
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError, Verifier
from gateway.semantic.verification import Verification
from gateway.server.admin.findings import Finding


class Entries(Protocol):
    """A store that is only read."""

    async def get(self, key: bytes) -> Entry | None:
        """See the port ``Store``."""
        ...


@dataclass(slots=True)
class Drive:
    """Drives the lookup machine and notes what each step came to."""

    store: Entries
    index: SemanticIndex | None
    verifier: Verifier | None
    found: Sequence[Finding]
    now: Callable[[], float]
    without_index: str
    """What to say where there is no index."""
    barred: Callable[[bytes], bool] = lambda _: False
    """Tells of an entry's key that it is in quarantine."""
    learned: Learned | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, state: State) -> Hit | Forward | Refused:
        """Return where the machine ends. Raises StoreError."""
        while True:
            match state:
                case Hit() | Forward() | Refused():
                    return state
                case LookUpExact():
                    entry = await self._get("exact", state.plan.key)
                    state = state.next(entry, self.now())
                case LookUpPersonal():
                    entry = await self._get("exact, in the end user's scope", state.personal.key)
                    state = state.next(entry, self.now())
                case ScanPrompt():
                    kind = self.found[0].kind if self.found else None
                    self._note("scan", f"{kind} found" if kind else "clean")
                    state = state.next(kind)
                case SearchSemantic() if self._off(state.plan):
                    self._note(
                        "meaning", "not looked up: too many such hits of the rule were wrong"
                    )
                    state = state.off()
                case SearchSemantic():
                    state = state.next(await self._search(state.plan))
                case FetchCandidate():
                    entry = await self._get(f"candidate, {state.similarity:.3f}", state.key)
                    state = state.next(entry, self.now())
                case VerifyCandidate():
                    state = await self._verified(state)
                case _:
                    assert_never(state)

    def _note(self, step: str, result: str) -> None:
        self.steps.append({"step": step, "result": result})

    async def _get(self, step: str, key: bytes) -> Entry | None:
        entry = await self.store.get(key)
        self._note(step, "no entry" if entry is None else _state(entry, self.now()))
        return entry

    async def _search(self, plan: Plan) -> list[tuple[bytes, float]]:
        index = self.index
        if index is None or plan.question is None:
            self._note("meaning", f"not looked up: {self.without_index}")
            return []
        try:
            found = await index.search(plan.fingerprint, plan.question, NEAREST)
        except SemanticUnavailableError as error:
            self._note("meaning", f"the index cannot answer: {error.reason}")
            return []
        near = [each for each in found if not self.barred(each.key)]
        least = plan.decision.min_similarity
        if not near:
            self._note("meaning", "no stored question of the same conversation and parameters")
        else:
            enough = sum(each.similarity >= least for each in near)
            first = f"nearest {near[0].similarity:.3f}"
            self._note("meaning", f"{first}, {enough} of {len(near)} reach {least:g}")
        return [(each.key, each.similarity) for each in near]

    async def _verified(self, state: VerifyCandidate) -> State:
        verifier = self.verifier
        verification, threshold = Verification(0.0, "no verifier"), None
        budget = state.plan.decision.max_wrong_hits
        if verifier is not None:
            verification = await verifier.verify(*state.pair)
            threshold = verifier.threshold(budget, verification.verifier)
        learned, entry = self.learned, state.hit.entry
        alias = learned is not None and learned.alias(state.plan, entry, self.now())
        self._note("verification", verification.told(threshold, budget, alias=alias))
        return state.next(verification, threshold, alias=alias)

    def _off(self, plan: Plan) -> bool:
        decision, learned, verifier = plan.decision, self.learned, self.verifier
        if learned is None or verifier is None or decision.shadow:
            return False
        return learned.off(decision, verifier.threshold(decision.max_wrong_hits))


def _state(entry: Entry, now: float) -> str:
    left = int(entry.expires_at - now)
    age = max(0, int(now - entry.stored_at))
    return f"an entry {age} s old, " + (
        f"fresh for {left} s" if left > 0 else f"stale by {-left} s"
    )
