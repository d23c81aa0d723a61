"""What is counted of a language."""

import languages
import numpy as np
import pytest
from quality.outcomes import Share
from quality.sets import Group, groups
from quality.systems import System

from gateway.semantic.ports import Verification

SEED, SAME, OTHER, FOREIGN = (
    "What is the red one called?",
    "How is the red one called?",
    "What is the green one called?",
    "Wie heißt der rote, red?",
)


class ByWord:
    """A verifier whose guards refuse what says "green"."""

    async def verify(self, asked, stored, similarity):
        return Verification(0.0, "name") if "green" in asked else Verification(0.9)

    def threshold(self, max_wrong_hits, verifier=""):
        return 0.5

    async def score(self, asked, stored):
        return 0.9


@pytest.mark.parametrize("name", languages.LANGUAGES.values())
def test_each_group_has_rewordings_and_near_misses(name):
    listed = groups(name)
    assert len(listed) >= 60
    assert all(each.rewordings and each.misses for each in listed)


async def test_what_is_counted_of_a_language(monkeypatch):
    group = Group(SEED, (SAME,), (OTHER, FOREIGN))
    monkeypatch.setattr(languages, "groups", lambda _: [group])
    alike = np.full(4, 0.5, dtype=np.float32)
    monkeypatch.setattr(languages, "vectors_of", lambda texts, _: dict.fromkeys(texts, alike))
    verifier = ByWord()
    found = await languages.measure("some", System("whole", verifier, verifier), kept=None)
    assert found.looked_up == [SEED, SAME, OTHER]
    assert found.figures == {
        "other language": Share(1, 4),
        "looked up": Share(3, 4),
        "found": Share(1, 1),
        "accepted, no guards": Share(1, 1),
        "accepted": Share(1, 1),
        "wrong, no guards": Share(2, 2),
        "wrong": Share(1, 2),
        "wrong if looked up": Share(0, 1),
    }
