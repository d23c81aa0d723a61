"""A cache that answers by meaning as the gateway does, with the default verifier and budget.

`VERIFIERS` are the two that an installation may have: the small network alone, and with the large
one. A test of the latter is skipped where the package of the large one is not installed.
"""

from collections.abc import Iterable

import pytest

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.directories import second_directory
from embeddings.verify.guards import guard
from embeddings.verify.recipe import overlap, weighed
from embeddings.verify.verifier import Verifier, load_verifier
from embeddings.verify.vocabulary import common_words
from gateway.cache.lookup import NEAREST
from gateway.semantic.calibrations import shipped_calibrations
from gateway.semantic.eligibility import ineligible
from policies.format.settings import DEFAULT_MAX_WRONG_HITS, DEFAULT_MIN_SIMILARITY

_HAS_LARGE = second_directory(VERIFIER_DIRECTORY) is not None
VERIFIERS = (
    "small",
    pytest.param(
        "large", marks=pytest.mark.skipif(not _HAS_LARGE, reason="refrain-verifier: not installed")
    ),
)


def shipped_verifier(name: str) -> tuple[Verifier, float]:
    """Return one of `VERIFIERS`, and its threshold at the default budget."""
    verifier = load_verifier(VERIFIER_DIRECTORY, threads=1, alone=name == "small")
    (calibration,) = (each for each in shipped_calibrations() if each.verifier == verifier.digest)
    threshold = calibration.threshold(DEFAULT_MAX_WRONG_HITS)
    assert threshold is not None
    return verifier, threshold


class MeaningCache:
    """It knows the vectors of `texts`; an answer is any text."""

    def __init__(self, encoder, texts: Iterable[str], verifier_name: str) -> None:
        self._verifier, self._threshold = shipped_verifier(verifier_name)
        texts = sorted(set(texts))
        assert [text for text in texts if ineligible(text)] == []
        self._vectors = dict(zip(texts, encoder.encode(texts), strict=True))
        self._known: dict[tuple[str, str], bool] = {}
        self.stored: dict[str, str] = {}

    def ask(self, text: str, answer: str) -> str:
        """Return what is served: a stored answer, else `answer`, which is stored."""
        if text not in self.stored:
            near = sorted(self.stored, key=lambda other: -self._cosine(text, other))
            for other in near[:NEAREST]:
                if self.fits(text, other):
                    return self.stored[other]
            self.stored[text] = answer
        return self.stored[text]

    def fits(self, asked: str, stored: str) -> bool:
        if (asked, stored) not in self._known:
            self._known[asked, stored] = self._verified(asked, stored)
        return self._known[asked, stored]

    def _verified(self, asked: str, stored: str) -> bool:
        cosine = self._cosine(asked, stored)
        if cosine < DEFAULT_MIN_SIMILARITY or guard(asked, stored, common_words()) is not None:
            return False
        (score,) = self._verifier.score([(asked, stored)])
        return weighed(score, cosine, overlap(asked, stored)) >= self._threshold

    def _cosine(self, one: str, other: str) -> float:
        return float(self._vectors[one] @ self._vectors[other])
