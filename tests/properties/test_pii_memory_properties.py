"""A conversation that grows, scanned with what is remembered of it, is scanned as a whole is."""

from collections.abc import Iterator
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache import pii_scan
from gateway.cache.pii_scan import CleanSections
from gateway.protocol.conversation import prompt_text
from policies.decision import Endpoint
from policies.pii.scan import PiiScanner

SCANNERS = (PiiScanner(["US", "GB"]), PiiScanner(["DE"], ["ada@example.com", "+49 30 1234567"]))


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Cut as short as the reach of the detectors allows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pii_scan, "PIECE", 2048)
        patch.setattr(pii_scan, "OVERLAP", 1024)
        patch.setattr(pii_scan, "SHORTEST_SECTION", 256)
        patch.setattr(pii_scan, "LONGEST_SECTION", 1024)
        patch.setattr(pii_scan, "CHOSEN", 256)
        patch.setattr(pii_scan, "TURN_SECONDS", 60)
        yield


PERSONAL = (
    *("ada@example.com", "(415) 555-2671", "+49 30 1234567", "4111 1111 1111 1111", "123-45-6789"),
    *("203.0.113.8", "DE89370400440532013000", "sk-abcdefghij0123456789", "YWRhQGV4YW1wbGUuY29t"),
    *("password: h1dden&words", "ada&#64;example.com", "4111**1111**1111 1111", "SSN 123456789"),
)
HARMLESS = (
    *("2026-11-29 12:30:45.123 INFO took=12.345ms row=98765432", "order", "version", "1.2.3.4"),
    *(
        "call me",
        "phone:",
        "4155552671",
        "5552671",
        "x = a[12:34] + 5678 - 1234",
        "std::vector<int>",
    ),
    *(
        "3f2a9c4e-77b1-4d0e-9a55-c0ffee123456",
        "the password",
        "is",
        "basic",
        "<b>bold</b> and *more*",
    ),
)
WORDS = ("one", "two", "three", "eleven", "twelve", "thirteen", "seventeen")


def _filler(draw: Random) -> str:
    lines = draw.randrange(12)
    return "\n".join(" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(lines))


def _texts(draw: Random, personal: float) -> list[str]:
    """Return a few texts, some with personal data, whole or cut so that neighbours share it."""
    texts = [_filler(draw)]
    for _ in range(draw.randint(1, 3)):
        said = draw.choice(PERSONAL if draw.random() < personal else HARMLESS)
        cut = draw.randrange(len(said)) if draw.random() < 0.5 else len(said)
        texts[-1] += draw.choice(("\n", " ")) + said[:cut]
        if cut < len(said):
            texts.append(said[cut:])
        if draw.random() < 0.7:
            texts[-1] += draw.choice(("\n", " ")) + _filler(draw)
    return texts


def _turn(draw: Random, personal: float) -> list[dict[str, Any]]:
    """Return the messages of a turn: a text each, or the parts of one message."""
    texts = _texts(draw, personal)
    role = draw.choice(("user", "assistant", "tool"))
    if draw.random() < 0.4:
        parts = [{"type": "text", "text": text} for text in texts]
        return [{"role": role, "content": parts}]
    return [{"role": role, "content": text} for text in texts]


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from(SCANNERS))
def test_what_is_remembered_changes_no_verdict(seed: int, personal: float, scanner: PiiScanner):
    draw, clean = Random(seed), CleanSections()
    tools = [{"type": "function", "function": {"name": f"tool_{n}"}} for n in range(9)]
    messages: list[dict[str, Any]] = []
    for _ in range(draw.randint(2, 16)):
        messages += _turn(draw, personal)
        body = {"model": "m", "messages": messages, "tools": tools}
        text = prompt_text(Endpoint.CHAT, body, "")
        assert text is not None
        left = clean.pieces(text, b"owner", scanner)
        over, found = pii_scan._scan_for(scanner, left, clean, Event())
        assert over
        assert (found is None) == (scanner.scan(text) is None)
        if draw.random() < 0.1:  # another branch of the conversation
            del messages[draw.randrange(len(messages)) :]
