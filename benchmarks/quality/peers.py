"""Plain cosine, the peers' way: the nearest stored question, served where it passes a threshold.

It looks at the last message alone, as theirs do: their default key holds no conversation.
"""

from collections.abc import Mapping

from embeddings.encoder.encoder import Vector
from embeddings.index.faiss import FaissIndex
from gateway.semantic.ports import Verification
from quality.outcomes import Outcome, Try
from quality.trial import Trial

THRESHOLDS = (0.85, 0.90, 0.95)


def nearest(trial: Trial, vectors: Mapping[str, Vector]) -> list[Outcome]:
    """Return for each request its nearest stored question as the only candidate.

    The similarity is its score, so that the outcome at a threshold is the peers' at that.
    """
    index = FaissIndex(384, max(1, len(trial.stored)))
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
