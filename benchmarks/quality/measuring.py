"""One trial through every system: what the gateway finds, and what each makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embeddings.encoder.encoder import Vector
from embeddings.index.partition import MemoryIndex
from gateway.semantic.ports import Verification
from quality.cache import default_decision, filled
from quality.models import told
from quality.outcomes import Outcome, Try
from quality.systems import System
from quality.trial import Trial

COSINES = (0.85, 0.90, 0.95)


@dataclass(frozen=True, slots=True)
class Measured:
    """`nearest` are plain cosine's candidates, `judged` each system's, none of them served."""

    trial: Trial
    nearest: list[Outcome]
    judged: dict[str, list[Outcome]]
    outcomes: dict[str, list[Outcome]]

    @property
    def name(self) -> str:
        return self.trial.name

    @property
    def all_judged(self) -> list[Outcome]:
        return [each for outcomes in self.judged.values() for each in outcomes]


class Unjudged:
    """A ``Verifier`` that gives none a score, so that every candidate is found and none served."""

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        del asked, stored, similarity
        return Verification(0.0)

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        del max_wrong_hits, verifier
        return None


async def measure(
    trial: Trial,
    vectors: Mapping[str, Vector],
    systems: Sequence[System],
    *,
    min_similarity: float | None = None,
    refused_too: bool = False,
) -> Measured:
    """Return what each system makes of a trial."""
    near = nearest(trial, vectors)
    outcomes = {f"cosine {at:.2f}": [each.at(at) for each in near] for at in COSINES}
    found = await candidates(trial, vectors, min_similarity)
    judged = {}
    for each in systems:
        threshold = each.threshold()
        said = await each.judged(found, label=trial.name, refused_too=refused_too)
        judged[each.name] = said
        outcomes[each.name] = [outcome.at(threshold) for outcome in said]
    return Measured(trial, near, judged, outcomes)


async def candidates(
    trial: Trial, vectors: Mapping[str, Vector], min_similarity: float | None = None
) -> list[Outcome]:
    """Return what the gateway would give to a verifier; the verifications say nothing yet."""
    cache, decision = await filled(trial, vectors), default_decision()
    if min_similarity is not None:
        decision = replace(decision, min_similarity=min_similarity)
    return [
        await cache.ask(request, decision, Unjudged())
        for request in told(f"{trial.name}: requests looked up", trial.asked)
    ]


def nearest(trial: Trial, vectors: Mapping[str, Vector]) -> list[Outcome]:
    """Return for each request its nearest stored question as the only candidate.

    That is plain cosine, the peers' way. It looks at the last message alone, as theirs do: their
    default key holds no conversation. The similarity is the score.
    """
    index = MemoryIndex(384, max(1, len(trial.stored)))
    for number, request in enumerate(trial.stored):
        vector = vectors.get(request.text)
        if vector is not None:
            index.add(str(request.realm).encode(), str(number).encode(), vector, 1.0)
    outcomes = []
    for request in trial.asked:
        vector = vectors.get(request.text)
        found = (
            [] if vector is None else index.search(str(request.realm).encode(), vector, 1, now=0.0)
        )
        tries = []
        for match in found:
            stored = trial.stored[int(match.key)]
            score = Verification(match.similarity)
            tries.append(Try(stored.text, stored.answer or "", match.similarity, score))
        outcomes.append(Outcome(request, None, "miss", tuple(tries)))
    return outcomes
