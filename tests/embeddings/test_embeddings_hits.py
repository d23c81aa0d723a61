"""Similarity and agreement together, as the gateway uses them, at its default threshold."""

import pytest

from embeddings.verify.agreement import agree

MIN_SIMILARITY = 0.90
STORED = ("How do I reset my password?", "How do I delete my account?", "How do I upgrade my plan?")


def hit(encoder, asked: str, stored: str) -> bool:
    one, other = encoder.encode([asked, stored])
    return float(one @ other) >= MIN_SIMILARITY and agree(asked, stored) is None


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(
    "frame",
    [
        "How can I {}?",
        "how to {}",
        "What is the way to {}?",
        "What's the best way to {}?",
        "What are the steps to {}?",
        "Please tell me how to {}.",
        "how do i {}",
    ],
)
def test_plain_paraphrases_hit(encoder, stored, frame):
    what = stored.removeprefix("How do I ").removesuffix("?")
    assert hit(encoder, frame.format(what), stored)


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How do I delete my project?", "How do I delete my account?"),
        ("How do I reset my PIN?", "How do I reset my password?"),
        ("How do I downgrade my plan?", "How do I upgrade my plan?"),
        ("How do I not delete my account?", "How do I delete my account?"),
        ("How do I reset my 2 passwords?", "How do I reset my password?"),
        ("Why do I reset my password?", "How do I reset my password?"),
        ("How do I reset his password?", "How do I reset my password?"),
        ("What is the capital of France?", "How do I reset my password?"),
    ],
)
def test_near_misses_miss(encoder, asked, stored):
    assert not hit(encoder, asked, stored)
