"""The would-be hits of a written log: each question's surest candidate, and whether it is wrong.

All first lines of a folder are stored; each other line is asked, and its nearest four are checked
as the gateway checks them. A folder has one writer, since two write the same question without
knowing of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from embeddings.messages import Reason
from embeddings.verify.guards import guard
from embeddings.verify.recipe import WEIGHT, weighed
from embeddings.verify.verifier import Verifier
from embeddings.verify.vocabulary import common_words
from tools.verifier.groups import Group
from tools.verifier.vectors import sentence_vectors

NEAREST: Final = 4
LEAST_COSINE: Final = 0.75
"""As the gateway searches where its policy does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question that the guards let pass; ``score`` is the network's own."""

    score: float
    cosine: float
    wrong: bool


def candidates(groups: Sequence[Group], verifier: Verifier) -> Iterator[list[Candidate]]:
    """Yield those of each question asked."""
    stored = [group.same[0] for group in groups]
    # A group's near miss may be another group's question: such a line stands in both, and is asked
    # once.
    lines = [text for group in groups for text in group.same[1:]]
    lines += [text for group in groups for text in group.misses]
    asked = list(dict.fromkeys(lines))
    index, wanted = sentence_vectors(stored), sentence_vectors(asked)
    common = common_words()
    for place, text in enumerate(asked):
        cosine = index @ wanted[place]
        found = []
        for other in np.argsort(-cosine)[:NEAREST]:
            if cosine[other] < LEAST_COSINE or guard(text, stored[other], common) is not None:
                continue
            score = _score(verifier, text, stored[other])
            if score is not None:
                wrong = text not in groups[other].same
                found.append(Candidate(score, float(cosine[other]), wrong))
        yield found


def hits(
    found: Sequence[Sequence[Candidate]], weight: float = WEIGHT
) -> Iterator[tuple[float, bool]]:
    """Yield score, the cosine in it, and whether it is wrong, of each one's surest candidate."""
    for some in found:
        if some:
            yield max((weighed(each.score, each.cosine, weight), each.wrong) for each in some)


def _score(verifier: Verifier, asked: str, stored: str) -> float | None:
    (score,) = verifier.score([(asked, stored)])
    return None if isinstance(score, Reason) else score
