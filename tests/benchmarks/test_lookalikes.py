"""Look-alike names are not served one another's answer: a sample of what `make eval` measures."""

import pytest
from quality.lookalikes import ANOTHER, lookalikes
from quality.sets import HELD_OUT
from semantic_cache import VERIFIERS, MeaningCache

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from gateway.semantic.eligibility import ineligible

FILES = sorted(HELD_OUT.glob("lookalikes*.txt"))
SAMPLE = 41
"""Each so many a pair; it shares no factor with the four pairs of a frame."""


def rows(file):
    trial = lookalikes(file.stem, file)
    return [(a.text, s.text, a.group) for a, s in zip(trial.asked, trial.stored, strict=True)]


def test_there_are_more_than_four_thousand_pairs():
    groups = [group for file in FILES for _, _, group in rows(file)]
    assert groups.count(ANOTHER) > 4000
    assert len(groups) - groups.count(ANOTHER) > 1000


@pytest.fixture(scope="module", params=VERIFIERS)
def sample(request):
    kept = [row for file in FILES for row in rows(file)[::SAMPLE]]
    kept = [row for row in kept if not ineligible(row[0]) and not ineligible(row[1])]
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    cache = MeaningCache(encoder, [text for row in kept for text in row[:2]], request.param)
    return [(*row, cache.fits(row[0], row[1])) for row in kept]


def test_no_name_gets_the_answer_of_another(sample):
    assert [row[:2] for row in sample if row[2] == ANOTHER and row[3]] == []


def test_most_rewordings_with_the_same_name_are_hits(sample):
    same = [row for row in sample if row[2] != ANOTHER]
    assert sum(row[3] for row in same) > len(same) / 2
