"""Long texts are scanned in a thread, piece by piece; what cannot be scanned has failed."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.pii_scan import (
    INLINE_CHARACTERS,
    INLINE_DIGITS,
    INLINE_DISGUISED,
    OVERLAP,
    PIECE,
    SHORTEST_SECTION,
    CleanSections,
    Piece,
    ScanFailedError,
    Scans,
    Turns,
    sections,
)
from policies.pii.scan import PiiScanner

LONG = "".join(f"line {n} of a long text of many words\n" for n in range(8_000))


class Watched:
    """Notes what it scans and in which thread, and does what it is told."""

    identity = "words"

    def __init__(self, does: Callable[[str], str | None] = lambda _text: None) -> None:
        self.does = does
        self.texts: list[str] = []
        self.threads: set[int] = set()

    def is_clean(self, _text: str) -> bool:
        return False

    def scan(self, text: str) -> str | None:
        self.texts.append(text)
        self.threads.add(threading.get_ident())
        return self.does(text)


@pytest.mark.parametrize(
    ("text", "inline"),
    [
        ("a" * INLINE_CHARACTERS, True),
        ("a" * (INLINE_CHARACTERS + 1), False),
        ("1" * INLINE_DIGITS, True),
        ("1" * (INLINE_DIGITS + 1), False),
        ("\uff11" * (INLINE_DIGITS + 1), False),
        ("MTEx" * (INLINE_DISGUISED // 4), True),
        ("MTEx" * (INLINE_DISGUISED // 4 + 1), False),
        ("\ud800 words &#65; " * 40, False),
    ],
)
async def test_texts_that_take_long_are_scanned_off_the_loop(text: str, inline: bool):
    scanner = Watched()
    scans = Scans()
    assert await scans.scan(scanner, text, b"scope") is None
    scans.close()
    assert scanner.texts == [text]
    assert (scanner.threads == {threading.get_ident()}) is inline


async def test_a_finding_in_any_piece_is_found_and_ends_the_scan():
    scans = Scans()
    found = await scans.scan(PiiScanner([]), LONG + "ada@example.com\n" + LONG, b"scope")
    assert found == "email"
    scanner = Watched(lambda _text: "email")
    assert await scans.scan(scanner, LONG, b"scope") == "email"
    assert len(scanner.texts) == 1
    scans.close()


@pytest.mark.parametrize("text", ["short", LONG])
async def test_a_scanner_that_raises_has_failed_and_quotes_nothing(
    caplog: pytest.LogCaptureFixture, text: str
):
    def fail(_text: str) -> None:
        raise ValueError("4111 1111 1111 1111")

    scans = Scans()
    with pytest.raises(ScanFailedError) as failed:
        await scans.scan(Watched(fail), text, b"scope")
    scans.close()
    assert "ValueError" in caplog.text
    assert "4111" not in caplog.text + str(failed.value)
    assert failed.value.__cause__ is None


async def test_a_scan_that_takes_too_long_has_failed_and_stops_at_the_next_piece(
    monkeypatch: pytest.MonkeyPatch,
):
    release = threading.Event()
    scanner = Watched(lambda _text: release.wait(20) and None)
    monkeypatch.setattr("gateway.cache.pii_scan.SCAN_SECONDS", 0.02)
    scans = Scans(threads=1)
    with pytest.raises(ScanFailedError):
        await scans.scan(scanner, LONG, b"scope")
    release.set()
    monkeypatch.setattr("gateway.cache.pii_scan.SCAN_SECONDS", 20)
    # The one thread is free again, though most of the text was not looked at.
    assert await scans.scan(Watched(), LONG, b"scope") is None
    assert len(scanner.texts) == 1
    scans.close()


async def test_a_scan_nobody_waits_for_stops_at_the_next_piece():
    scanning, release = threading.Event(), threading.Event()

    def block(_text: str) -> None:
        scanning.set()
        release.wait(20)

    scanner = Watched(block)
    scans = Scans(threads=1)
    task = asyncio.create_task(scans.scan(scanner, LONG, b"scope"))
    await asyncio.to_thread(scanning.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await scans.scan(Watched(), LONG, b"scope") is None
    assert len(scanner.texts) == 1
    scans.close()


async def test_the_texts_of_one_owner_hold_up_no_scan_of_another():
    release = threading.Event()
    blocked = Watched(lambda _text: release.wait(20) and None)
    scans = Scans(threads=2)
    greedy = [asyncio.create_task(scans.scan(blocked, f"{n}" + LONG, b"a")) for n in range(16)]
    await asyncio.sleep(0)
    assert await scans.scan(PiiScanner([]), LONG + "ada@example.com", b"b") == "email"
    release.set()
    await asyncio.gather(*greedy, return_exceptions=True)
    scans.close()


async def granted(turns: Turns, *asks: tuple[bytes, int]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(turns.take(owner, length)) for owner, length in asks]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_an_owner_has_half_of_the_threads_and_the_next_turn_is_of_who_had_the_least_time():
    turns = Turns(2)
    tasks = await granted(turns, (b"a", 9), (b"a", 9), (b"b", 9), (b"b", 9), (b"c", 9))
    assert done(tasks) == [True, False, True, False, False]
    turns.give_back(b"b", 1.0)  # a still runs, c had none
    await asyncio.sleep(0)
    assert done(tasks) == [True, False, True, False, True]
    turns.give_back(b"c", 0.1)
    turns.give_back(b"a", 2.0)
    await asyncio.sleep(0)
    assert done(tasks) == [True, True, True, True, True]


async def test_who_comes_late_begins_with_the_least_time_of_all_and_short_texts_go_first():
    turns = Turns(2)
    await granted(turns, (b"a", 9), (b"b", 9))
    turns.give_back(b"a", 5.0)
    turns.give_back(b"b", 6.0)  # neither has scans left: what they had is forgotten
    tasks = await granted(turns, (b"a", 9), (b"b", 9), (b"long", 10**6), (b"short", 10))
    turns.give_back(b"a", 1.0)
    await asyncio.sleep(0)
    assert done(tasks) == [True, True, False, True]


async def test_a_turn_that_nobody_waits_for_goes_to_the_next():
    turns = Turns(2)
    tasks = await granted(turns, (b"a", 9), (b"b", 9), (b"c", 9), (b"d", 10))
    tasks[2].cancel()
    turns.give_back(b"a", 1.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done(tasks) == [True, True, True, True]
    assert not tasks[3].cancelled()


async def test_a_turn_that_comes_too_late_is_given_back():
    turns = Turns(2)
    tasks = await granted(turns, (b"a", 9), (b"b", 9), (b"c", 9), (b"d", 10))
    turns.give_back(b"a", 1.0)
    tasks[2].cancel()  # its turn had come, and it had not seen that
    await asyncio.gather(tasks[2], return_exceptions=True)
    await asyncio.sleep(0)
    assert done(tasks) == [True, True, True, True]
    assert not tasks[3].cancelled()


def pieces(text: str, clean: CleanSections | None = None) -> list[tuple[int, int]]:
    """Return from where to where each piece stands that is to be scanned."""
    found = (clean or CleanSections()).pieces(text, b"owner", Watched())
    return [(piece.start, piece.end) for piece in found if piece is not None]


@pytest.mark.parametrize("unit", ["word ", "line of words\n", "x", "\u4ef7"])
@pytest.mark.parametrize(
    "length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - OVERLAP, 5 * PIECE + 17]
)
def test_pieces_cover_the_text_and_share_what_lies_on_their_borders(unit: str, length: int):
    text = (unit * length)[:length]
    spans = pieces(text)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert all(end - start <= PIECE for start, end in spans)
    assert len(spans) <= 1 + length // (PIECE - 2 * OVERLAP)
    # Every stretch of half an overlap lies whole in some piece.
    for (start, end), (following, _) in pairwise(spans):
        assert start < following <= end - OVERLAP // 2


@settings(max_examples=40)
@given(st.integers(0, 2 * PIECE), st.sampled_from(["word ", "line\n", "x "]))
def test_a_finding_is_found_wherever_it_stands(place: int, unit: str):
    filler = (unit * (3 * PIECE // len(unit)))[: 3 * PIECE]
    text = f"{filler[:place]} mail ada@example.com now {filler[place:]}"
    assert any("ada@example.com now" in text[start:end] for start, end in pieces(text))


@settings(max_examples=40)
@given(st.integers(0, len(LONG)), st.text("ab \n", max_size=200))
def test_a_change_of_a_text_leaves_nearly_all_sections_as_they_were(place: int, change: str):
    changed = LONG[:place] + change + LONG[place:]
    before = {LONG[start:end] for start, end in pairwise(sections(LONG))}
    after = [changed[start:end] for start, end in pairwise(sections(changed))]
    assert "".join(after) == changed
    assert sum(len(section) for section in after if section not in before) < 4 * PIECE


async def test_of_a_text_that_grows_only_what_is_new_is_scanned():
    scans, scanner = Scans(), Watched()
    await scans.scan(scanner, LONG, b"owner")
    scanner.texts.clear()
    assert await scans.scan(scanner, LONG, b"owner") is None
    assert scanner.texts == []
    for turn in range(3):
        text = LONG + "".join(f"and turn {n} says more\n" for n in range(turn + 1))
        assert await scans.scan(scanner, text, b"owner") is None
        [scanned] = scanner.texts
        assert scanned.endswith(f"and turn {turn} says more\n")
        scanner.texts.clear()
    assert await scans.scan(PiiScanner([]), f"ada@example.com {LONG}", b"owner") == "email"
    scans.close()


async def test_what_is_clean_for_one_owner_or_scanner_is_scanned_for_another():
    scans, first, other = Scans(), Watched(), Watched()
    other.identity = "words and numbers"
    await scans.scan(first, LONG, b"one")
    scanned = len(first.texts)
    await scans.scan(first, LONG, b"two")
    assert len(first.texts) == 2 * scanned
    await scans.scan(other, LONG, b"one")
    assert other.texts == first.texts[:scanned]
    same = Watched()  # as after a reload of the same policy
    await scans.scan(same, LONG, b"one")
    assert same.texts == []
    scans.close()


async def test_a_piece_with_a_finding_or_a_failure_is_scanned_again():
    scans = Scans()
    text = f"{LONG}\nada@example.com"
    assert await scans.scan(PiiScanner([]), text, b"owner") == "email"
    assert await scans.scan(PiiScanner([]), text, b"owner") == "email"

    def fail(_text: str) -> None:
        raise ValueError

    with pytest.raises(ScanFailedError):
        await scans.scan(Watched(fail), LONG, b"owner")
    scanner = Watched()
    assert await scans.scan(scanner, LONG, b"owner") is None
    assert scanner.texts[0].startswith(LONG[:SHORTEST_SECTION])
    scans.close()


@pytest.mark.parametrize(("word", "found"), [("order", None), ("hello", "phone")])
def test_a_word_before_a_piece_still_says_that_a_number_is_no_persons(word: str, found: str | None):
    text = f"{LONG}{word}\n4155552671\n{LONG}"
    start = len(LONG) + len(word) + 1
    scanner = PiiScanner(["US"])
    assert scanner.scan(text[start : start + PIECE]) == "phone"
    assert Piece(text, start, start + PIECE, []).scan(scanner) == found


def test_no_more_sections_are_remembered_than_there_is_room_for():
    clean = CleanSections(most=3)
    texts = [f"text {n}" for n in range(5)]
    for text in texts:
        [piece] = clean.pieces(text, b"owner", Watched())
        clean.add(piece)
    assert [bool(pieces(text, clean)) for text in texts] == [True, True, False, False, False]
    assert pieces(texts[2], clean) == []  # used last
    [piece] = clean.pieces("one more", b"owner", Watched())
    clean.add(piece)
    assert [bool(pieces(text, clean)) for text in texts[2:]] == [False, True, False]


async def test_only_scans_of_one_owner_are_shared():
    scans, alone, scanner = Scans(), Watched(), Watched()
    alone.identity = "alone"
    await scans.scan(alone, LONG, b"one")
    owners = (b"one", b"one", b"two")
    await asyncio.gather(*(scans.scan(scanner, LONG, owner) for owner in owners))
    assert len(scanner.texts) == 2 * len(alone.texts)
    scans.close()


async def test_scans_that_fail_one_after_another_have_one_line(caplog):
    class Broken:
        def is_clean(self, _):
            raise ZeroDivisionError

    scans = Scans()
    for n in range(20):
        with pytest.raises(ScanFailedError):
            await scans.scan(Broken(), f"text {n}", b"owner")
    scans.close()
    assert caplog.text.count("PII scan failed (ZeroDivisionError)") == 1
