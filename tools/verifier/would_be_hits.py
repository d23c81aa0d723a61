"""The would-be hits of a written log: each question's surest candidate, and whether it is wrong.

All first lines of a folder are stored; each other line is asked, and its nearest four are checked
as the gateway checks them. A folder has one writer, since two write the same question without
knowing of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from embeddings.messages import Reason
from embeddings.verify.guards import guard
from embeddings.verify.recipe import WEIGHT, WORDING, overlap, weighed
from embeddings.verify.resemblance import Features, features_of
from embeddings.verify.verifier import Verifier
from embeddings.verify.vocabulary import common_words
from tools.verifier.material.groups import Group
from tools.verifier.material.people import Pair
from tools.verifier.vectors import sentence_vectors

NEAREST: Final = 4
LEAST_COSINE: Final = 0.75
"""As the gateway searches where its policy does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question that the guards let pass; ``score`` is the network's own."""

    asked: str
    stored: str
    score: float
    cosine: float
    wrong: bool

    def weighed(self, weight: float = WEIGHT, wording: float = WORDING) -> float:
        """Return the score with the cosine in it."""
        shared = overlap(self.asked, self.stored)
        return weighed(self.score, self.cosine, shared, weight, wording)


class WouldBeHit(NamedTuple):
    """A question's surest candidate, and its score with the cosine in it."""

    score: float
    wrong: bool
    features: Features


def candidates(groups: Sequence[Group], verifier: Verifier) -> Iterator[list[Candidate]]:
    """Yield the candidates of each question asked."""
    stored = [group.same[0] for group in groups]
    # A group's near miss may be another group's question: such a line stands in both, and is asked
    # once.
    lines = [text for group in groups for text in group.same[1:]]
    lines += [text for group in groups for text in group.misses]
    asked = list(dict.fromkeys(lines))
    index, wanted = sentence_vectors(stored), sentence_vectors(asked)
    for place, text in enumerate(asked):
        cosine = index @ wanted[place]
        found = (
            _candidate(
                verifier, text, stored[other], float(cosine[other]), text in groups[other].same
            )
            for other in np.argsort(-cosine)[:NEAREST]
        )
        yield [each for each in found if each is not None]


def intents(pairs: Sequence[Pair], verifier: Verifier) -> Iterator[list[Candidate]]:
    """Yield the candidate of each pair of other people, one text asked and the other stored."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.a, pair.b)))
    vectors = dict(zip(texts, sentence_vectors(texts), strict=True))
    for pair in pairs:
        cosine = float(vectors[pair.a] @ vectors[pair.b])
        found = _candidate(verifier, pair.a, pair.b, cosine, pair.same)
        yield [] if found is None else [found]


def hits(
    found: Sequence[Sequence[Candidate]], weight: float = WEIGHT, wording: float = WORDING
) -> Iterator[WouldBeHit]:
    """Yield each question's surest candidate."""
    for some in found:
        if some:
            surest = max(some, key=lambda each: (each.weighed(weight, wording), each.wrong))
            score = surest.weighed(weight, wording)
            yield WouldBeHit(
                score,
                surest.wrong,
                features_of(surest.asked, surest.stored, surest.cosine, score),
            )


def _candidate(
    verifier: Verifier, asked: str, stored: str, cosine: float, same: bool
) -> Candidate | None:
    """Return a candidate that is near enough and passes the guards and the verifier's limits."""
    if cosine < LEAST_COSINE or guard(asked, stored, common_words()) is not None:
        return None
    (score,) = verifier.score([(asked, stored)])
    return None if isinstance(score, Reason) else Candidate(asked, stored, score, cosine, not same)
