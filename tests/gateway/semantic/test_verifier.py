"""The verifier's port: guards, a score in bounded time, and the threshold of the same verifier."""

import asyncio
import itertools
import json
import logging
import math

import pytest

from embeddings.encoder.model_files import VERIFIER_DIRECTORY
from embeddings.verify.calibration import calibrated, written_calibration
from embeddings.verify.files import read_verifier
from embeddings.verify.recipe import MIDDLE, WEIGHT, WORDING, overlap, weighed
from embeddings.verify.resemblance import MOST, Features, Tally
from gateway.semantic import calibrations as calibrations_module
from gateway.semantic import verifier as verifying
from gateway.semantic.calibrations import (
    MOST_MISSED,
    OWN_FILE,
    QUIET_SECONDS,
    Calibrations,
    known_calibrations,
)
from gateway.semantic.ports import SemanticUnavailableError, SurestCandidate, Verification
from gateway.semantic.verifier import MAX_CHARACTERS, CalibratedVerifier, guard
from policies.format.settings import DEFAULT_MAX_WRONG_HITS, DEFAULT_MIN_SIMILARITY

ASKED, STORED = "I want to reset my password, how?", "How can I reset my password?"
PLAIN = "How do I reset my password?"
CLEAN = [(1 - place / 1000, False) for place in range(400)]


class Scores:
    """The fake at the scorer's port; what it says may be a fault, or never come."""

    def __init__(self, said=0.9, verifier="model"):
        self.said, self.verifier = said, verifier
        self.verifier_name, self.verifier_fault = "mini", ""
        self.asked = []
        self.waits = asyncio.Event()
        self.waits.set()
        self.called = asyncio.Event()
        self.cancelled = False

    async def score(self, asked, stored):
        self.asked.append((asked, stored))
        self.called.set()
        try:
            await self.waits.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.fixture
def shipped(monkeypatch):
    """The calibrations that are installed with the verifier, to be changed by the test."""
    installed = [calibrated(CLEAN, verifier="model")]
    monkeypatch.setattr(calibrations_module, "shipped_calibrations", lambda: installed)
    return installed


@pytest.fixture
def verifier_of(shipped, tmp_path):
    return lambda scores, seconds=5.0: CalibratedVerifier(
        scores, Calibrations(tmp_path), seconds=seconds
    )


def test_there_is_no_threshold_for_a_verifier_that_is_not_in_use(verifier_of):
    assert verifier_of(Scores()).threshold(0.01, "former") is None
    assert verifier_of(Scores(verifier="")).threshold(0.01, "model") is None


async def test_the_score_grows_with_the_similarity_of_the_questions(verifier_of):
    verifier = verifier_of(Scores(0.75))
    near, far = [
        (await verifier.verify(ASKED, STORED, similarity)).score for similarity in (0.95, 0.75)
    ]
    odds = near / (1 - near) / (far / (1 - far))
    shared = overlap(ASKED, STORED)
    assert math.log(odds) == pytest.approx(0.2 * (WEIGHT + WORDING * (1 - shared)))
    assert near == weighed(0.75, 0.95, shared)


@pytest.mark.parametrize("similarity", [math.nan, -math.inf])
async def test_a_similarity_that_is_no_number_is_no_hit(verifier_of, similarity):
    said = await verifier_of(Scores(0.75)).verify(ASKED, STORED, similarity)
    assert said.result(0.5) not in {"hit", "alias"}


async def test_the_score_is_the_models(verifier_of):
    scores = Scores(0.75)
    said = await verifier_of(scores).verify(ASKED, STORED, MIDDLE)
    features = (MIDDLE, 0.75, len(ASKED), 0.625)
    assert said == (pytest.approx(0.75), None, "model", features)
    assert scores.asked == [(ASKED, STORED)]


async def test_what_a_guard_refuses_is_not_scored(verifier_of):
    scores = Scores()
    refused = await verifier_of(scores).verify("Is 2 more than 3?", "Is 2 more than 4?", MIDDLE)
    assert (refused.score, refused.refusal) == (0.0, "number")
    assert scores.asked == []


async def test_the_same_words_are_not_scored(verifier_of):
    scores = Scores()
    said = await verifier_of(scores).verify(f" {ASKED}\n", ASKED, MIDDLE)
    assert said == (1.0, None, "model", None)
    assert scores.asked == []


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("unavailable", "verifier-unavailable"),
        ("timeout", "verifier-timeout"),
        ("overloaded", "verifier-overloaded"),
        ("error", "verifier-error"),
        ("text-too-long", "text-too-long"),
        ("empty-text", "empty-text"),
        ("unreadable-text", "unreadable-text"),
    ],
)
async def test_a_fault_of_the_service_is_a_refusal_with_its_word(verifier_of, reason, word):
    scores = Scores(SemanticUnavailableError(reason))
    assert await verifier_of(scores).verify(ASKED, STORED, MIDDLE) == Verification(0.0, word)


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf, -0.1, 1.1])
async def test_what_is_no_score_is_a_refusal(verifier_of, said):
    assert await verifier_of(Scores(said)).verify(ASKED, STORED, MIDDLE) == Verification(
        0.0, "not-a-number"
    )


async def test_a_verifier_that_does_not_answer_is_waited_for_in_bounded_time(verifier_of):
    scores = Scores()
    scores.waits.clear()
    refused = await verifier_of(scores, seconds=0.01).verify(ASKED, STORED, MIDDLE)
    assert refused == Verification(0.0, "verifier-timeout")
    assert scores.cancelled


async def test_after_one_wait_in_vain_nobody_waits_for_a_second(shipped, tmp_path):
    now, scores = [100.0], Scores()
    scores.waits.clear()
    verifier = CalibratedVerifier(
        scores, Calibrations(tmp_path), seconds=0.01, clock=lambda: now[0]
    )
    in_vain = Verification(0.0, "verifier-timeout")
    assert await verifier.verify(ASKED, STORED, MIDDLE) == in_vain
    scores.waits.set()
    now[0] += 0.99
    assert await verifier.verify(ASKED, STORED, MIDDLE) == in_vain
    assert len(scores.asked) == 1
    now[0] += 0.02
    assert (await verifier.verify(ASKED, STORED, MIDDLE)).refusal is None


async def test_whoever_gives_up_takes_the_call_along(verifier_of):
    scores = Scores()
    scores.waits.clear()
    call = asyncio.create_task(verifier_of(scores).verify(ASKED, STORED, MIDDLE))
    await scores.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert scores.cancelled


async def test_a_score_of_another_verifier_than_the_thresholds_is_refused(verifier_of):
    scores = Scores()
    scores.waits.clear()
    call = asyncio.create_task(verifier_of(scores).verify(ASKED, STORED, MIDDLE))
    await scores.called.wait()
    scores.verifier = "another"
    scores.waits.set()
    assert await call == Verification(0.0, "verifier-changed")


async def test_until_the_verifier_is_known_nothing_is_verified(verifier_of):
    verifier = verifier_of(Scores(verifier=None))
    assert await verifier.verify(ASKED, STORED, MIDDLE) == Verification(0.0, "verifier-unavailable")
    assert verifier.threshold(0.01) is None
    assert verifier.details() == {"kind": "unknown"}


async def test_without_a_model_nothing_is_verified(verifier_of):
    scores = Scores(verifier="")
    scores.verifier_fault = "no model.safetensors"
    unavailable = Verification(0.0, "verifier-unavailable")
    for verifier in (verifier_of(scores), verifier_of(None)):
        assert await verifier.verify(STORED, STORED, MIDDLE) == unavailable
        assert await verifier.verify(PLAIN, STORED, MIDDLE) == unavailable
        assert verifier.threshold(0.01) is None
    assert scores.asked == []
    assert verifier_of(scores).details() == {"kind": "none", "fault": "no model.safetensors"}


@pytest.mark.parametrize("length", [MAX_CHARACTERS, 100_000])
async def test_very_long_texts_are_refused_unread(verifier_of, length):
    long = "How do I reset it? " * (length // 10)
    refused = await verifier_of(Scores()).verify(long, STORED, MIDDLE)
    assert refused == Verification(0.0, "text-too-long")


async def test_texts_of_some_length_are_guarded_off_the_loop(verifier_of, monkeypatch):
    threads = []

    async def noted(check, *texts):
        threads.append(check)
        return check(*texts)

    monkeypatch.setattr(verifying.asyncio, "to_thread", noted)
    long = "Please tell me in plain words: how do I reset the password of my account? " * 4
    verifier = verifier_of(Scores(0.5))
    other = long + "I have 7."
    refused = (await verifier.verify(long, other, MIDDLE)).refusal is not None
    assert refused
    assert threads == [guard]
    threads.clear()
    await verifier.verify(ASKED, STORED, MIDDLE)
    assert not threads


@pytest.mark.parametrize("text", ["", " \n", "\x00\x1b[2J", "🙂🙃", "如何重置密码", "\ud800 a"])
async def test_odd_texts_never_raise(verifier_of, text):
    said = await verifier_of(Scores(0.5)).verify(text, STORED, MIDDLE)
    assert said.refusal is not None or said.score == 0.5


async def test_a_guard_that_breaks_is_a_refusal_and_told_without_the_text(
    verifier_of, monkeypatch, caplog
):
    def broken(asked, stored):
        raise ValueError(asked)

    monkeypatch.setattr(verifying, "guard", broken)
    assert await verifier_of(Scores()).verify(ASKED, STORED, MIDDLE) == Verification(0.0, "fault")
    assert "ValueError" in caplog.text
    assert ASKED not in caplog.text


def own_file(tmp_path, verifier="model", points=CLEAN):
    path = tmp_path / OWN_FILE
    path.write_bytes(written_calibration(calibrated(points, verifier=verifier)))
    return path


def test_the_operators_own_calibration_wins(verifier_of, tmp_path):
    verifier = verifier_of(Scores())
    assert verifier.threshold(0.01) == CLEAN[-1][0]
    assert verifier.details()["calibration"] == "shipped"
    own_file(tmp_path, points=[(0.999, False)] * 300)
    assert verifier.threshold(0.01) == 0.999
    assert verifier.details() == {
        "kind": "model",
        "name": "mini",
        "digest": "model",
        "calibration": "own",
        "calibration_hits": 300,
    }
    (tmp_path / OWN_FILE).unlink()
    assert verifier.threshold(0.01) == CLEAN[-1][0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "it is of verifier other, and model is in use"),
        (b"{", "expected JSON"),
        (json.dumps({"format": 1}).encode(), "verifier: Field required"),
    ],
)
def test_an_own_file_that_is_no_use_is_told_once_and_the_shipped_one_holds(
    verifier_of, tmp_path, caplog, content, told
):
    path = own_file(tmp_path, verifier="other")
    if content is not None:
        path.write_bytes(content)
    verifier = verifier_of(Scores())
    with caplog.at_level(logging.WARNING):
        for budget in (0.01, 0.02, 0.01):
            assert verifier.threshold(budget) is not None
    assert [told in record.getMessage() for record in caplog.records] == [True]
    details = verifier.details()
    assert details["calibration"] == "shipped"
    assert told in details["problem"]


PAIRS = itertools.count(10**6)


def like(count, cosine):
    """Would-be hits that differ in their scores alone."""
    # In no order, so that any stretch of them is alike.
    return [Features(cosine, 37 * place % 101 / 101, 30, 0.5) for place in range(count)]


@pytest.fixture
def watched(tmp_path):
    """Make traffic beside a calibration of cosines 0.9: the traffic, and the time."""
    now = [0.0]
    points = [(each.score, False) for each in like(300, 0.9)]
    calibration = calibrated(points, verifier="model", features=like(300, 0.9))
    (tmp_path / OWN_FILE).write_bytes(written_calibration(calibration))
    verifier = CalibratedVerifier(
        Scores(), Calibrations(tmp_path), seconds=5.0, clock=lambda: now[0]
    )
    return verifier, now


def feed(verifier, count, cosine, pairs=None, least=DEFAULT_MIN_SIMILARITY):
    """Note so many candidates; each is another pair, if no numbers of pairs are given."""
    numbers = itertools.cycle(pairs) if pairs else PAIRS
    for features, pair in zip(like(count, cosine), numbers, strict=False):
        verifier.traffic.note(SurestCandidate(features, pair, least))


UNLIKE = "traffic does not resemble the calibration: cosine "


def test_traffic_unlike_the_calibration_is_an_event_once_and_in_the_details(watched, caplog):
    verifier, _ = watched
    feed(verifier, 199, 0.99)
    assert verifier.traffic.distances() == {}
    assert "unlike" not in verifier.details()
    with caplog.at_level(logging.INFO):
        feed(verifier, 601, 0.99)
    (record,) = caplog.records
    assert record.fields == {"event": "calibration"}
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(UNLIKE)
    assert record.getMessage().endswith(" (limit 0.25); calibrate on your own traffic")
    assert verifier.details()["unlike"].startswith(UNLIKE)
    assert set(verifier.traffic.distances()) == {"cosine", "score", "characters", "overlap"}


def test_a_pair_that_is_asked_often_counts_once(watched, caplog):
    verifier, _ = watched
    feed(verifier, 300, 0.9)
    with caplog.at_level(logging.INFO):
        feed(verifier, 5000, 0.99, pairs=[1, 2, 3])
    assert verifier.traffic.distances()["cosine"] < 0.1
    assert not caplog.records


def test_a_pair_counts_again_after_many_others(watched, monkeypatch):
    verifier, _ = watched
    counted = []
    monkeypatch.setattr(Tally, "add", lambda _tally, features: counted.append(features.cosine))
    for others in (MOST - 1, 1):
        feed(verifier, 1, 0.99, pairs=[1])
        feed(verifier, others, 0.9)
    assert counted.count(0.99) == 1
    feed(verifier, 1, 0.99, pairs=[1])
    assert counted.count(0.99) == 2


def test_another_least_similarity_than_the_default_is_not_compared(watched):
    verifier, _ = watched
    feed(verifier, 400, 0.99, least=0.9)
    assert verifier.traffic.distances() == {}
    assert "unlike" not in verifier.details()


def test_traffic_that_resembles_again_is_an_event_an_hour_later(watched, caplog):
    verifier, now = watched
    feed(verifier, 400, 0.99)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        feed(verifier, 12_000, 0.9)
        assert "unlike" not in verifier.details()
        assert not caplog.records
        now[0] = QUIET_SECONDS
        feed(verifier, 100, 0.9)
    (record,) = caplog.records
    assert (record.levelname, record.fields) == ("INFO", {"event": "calibration"})
    assert record.getMessage() == "traffic resembles the calibration again"


def test_traffic_like_the_calibration_is_no_news(watched, caplog):
    verifier, _ = watched
    with caplog.at_level(logging.INFO):
        feed(verifier, 3000, 0.9)
    assert not caplog.records
    assert max(verifier.traffic.distances().values()) < 0.1


def test_another_calibration_starts_the_comparison_anew(watched, tmp_path):
    verifier, _ = watched
    feed(verifier, 400, 0.99)
    own_file(tmp_path)
    assert verifier.traffic.distances() == {}
    feed(verifier, 400, 0.99)
    assert "unlike" not in verifier.details()


def test_the_traffic_is_compared_once_in_fifty_hits(watched, monkeypatch):
    verifier, _ = watched
    looks = []
    monkeypatch.setattr(verifier.traffic, "_look", lambda: looks.append(1))
    feed(verifier, 500, 0.99)
    assert len(looks) == 10


@pytest.mark.parametrize("alone", [True, False], ids=["small", "installed"])
def test_the_verifier_has_a_calibration_that_is_shipped_and_keeps_the_default_budget(
    tmp_path, alone
):
    digest = read_verifier(VERIFIER_DIRECTORY, alone=alone).digest
    verifier = CalibratedVerifier(Scores(verifier=digest), Calibrations(tmp_path), seconds=5.0)
    assert 0.5 < verifier.threshold(DEFAULT_MAX_WRONG_HITS) < 1.0
    assert verifier.details()["calibration"] == "shipped"


def test_without_any_calibration_no_budget_is_kept_and_that_is_told_once(
    verifier_of, shipped, caplog
):
    shipped.clear()
    verifier = verifier_of(Scores())
    with caplog.at_level(logging.WARNING):
        assert verifier.threshold(0.01) is None
        assert verifier.threshold(0.2) is None
    (record,) = caplog.records
    assert "no calibration: nothing is answered by meaning" in record.getMessage()
    assert verifier.details()["calibration"] == "none"
    assert Verification(1.0).result(verifier.threshold(0.01)) == "budget"


@pytest.fixture
def installed(monkeypatch):
    """What the shipped files hold, and a record of each reading."""
    files, readings = {"old": calibrated(CLEAN, verifier="old")}, []

    def read():
        readings.append(list(files))
        return list(files.values())

    monkeypatch.setattr(calibrations_module, "shipped_calibrations", read)
    return files, readings


def test_a_verifier_that_is_installed_later_gets_its_shipped_calibration(installed, tmp_path):
    files, readings = installed
    scores = Scores(verifier="old")
    calibrations = Calibrations(tmp_path)
    verifier = CalibratedVerifier(scores, calibrations, seconds=5.0)
    before = calibrations.of("old")
    assert verifier.threshold(0.01) is not None
    del files["old"]
    files["new"] = calibrated(CLEAN, verifier="new")
    scores.verifier = "new"
    calibrations.of("new")
    assert verifier.threshold(0.01) is not None
    assert verifier.details()["calibration"] == "shipped"
    assert "problem" not in verifier.details()
    assert calibrations.of("old") is before
    assert readings == [["old"], ["new"]]


def test_no_request_reads_the_shipped_files_where_a_thread_looks(installed, tmp_path):
    files, readings = installed
    calibrations = Calibrations(tmp_path)
    calibrations.look()
    calibrations.is_known = lambda: True
    files["new"] = calibrated(CLEAN, verifier="new")
    assert calibrations.of("new") is calibrations.of("new") is None
    assert len(readings) == 1
    calibrations.look()
    assert calibrations.of("new") is files["new"]


def test_the_shipped_files_are_read_once_for_each_unknown_verifier(installed, tmp_path):
    _, readings = installed
    calibrations = Calibrations(tmp_path)
    for _ in range(3):
        assert calibrations.of("none") is None
    assert len(readings) == 2
    for number in range(3 * MOST_MISSED):
        assert calibrations.of(f"{number}") is None
    assert len(readings) <= 1 + MOST_MISSED


def test_an_unreadable_own_file_is_passed_over(verifier_of, tmp_path):
    (tmp_path / OWN_FILE).mkdir()
    verifier = verifier_of(Scores())
    assert verifier.threshold(0.01) == CLEAN[-1][0]
    assert "Is a directory" in verifier.details()["problem"]


def test_what_is_known_to_a_command(shipped, tmp_path):
    assert known_calibrations(None) == shipped
    own_file(tmp_path, points=CLEAN[:300])
    own, *others = known_calibrations(tmp_path)
    assert (own.hits, others) == (300, shipped)


@pytest.mark.parametrize(
    ("said", "threshold", "told"),
    [
        (
            Verification(0.99312),
            0.98101,
            "fits: score 0.9931, needs 0.9811 for at most 1 % wrong hits",
        ),
        (Verification(0.9), 0.9, "fits: score 0.9, needs 0.9 for at most 1 % wrong hits"),
        (Verification(0.98), 0.981, "refused: score 0.98, needs 0.981 for at most 1 % wrong hits"),
        (Verification(0.99999), 1.0, "refused: score 0.9999, needs 1 for at most 1 % wrong hits"),
        (
            Verification(0.9),
            None,
            "refused: budget (no score is known to keep at most 1 % wrong hits)",
        ),
        (Verification(0.0, "number"), 0.9, "refused: number"),
        (Verification(0.0, "number"), None, "refused: number"),
        (Verification(math.nan), 0.9, "refused: score"),
    ],
)
def test_a_verification_in_words(said, threshold, told):
    assert said.describe(threshold, 0.01) == told


ALIAS = "fits: a fresh answer to this question was the same"
NO_BUDGET = "refused: budget (no score is known to keep at most 1 % wrong hits)"


@pytest.mark.parametrize(
    ("said", "threshold", "result", "told"),
    [
        (Verification(0.3), 0.9, "alias", ALIAS),
        (Verification(0.9), 0.9, "hit", "fits: score 0.9, needs 0.9 for at most 1 % wrong hits"),
        (Verification(math.nan), 0.9, "score", "refused: score"),
        (Verification(0.3), None, "budget", NO_BUDGET),
        (Verification(0.3, "number"), 0.9, "number", "refused: number"),
    ],
)
def test_what_comes_of_an_alias_is_told_as_the_lookup_decides(said, threshold, result, told):
    assert said.result(threshold, alias=True) == result
    assert said.describe(threshold, 0.01, alias=True) == told
