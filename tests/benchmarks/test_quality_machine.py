"""The quality benchmark drives the gateway's own machine; its sweeps say what that would."""

import itertools
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from quality.cache import default_decision, filled
from quality.kept import Kept
from quality.peers import nearest
from quality.remembered import Remembered
from quality.sets import TRIALS, MissingDataError, canard, clinc150, gsm_plus
from quality.systems import Held, System, all_candidates
from quality.trial import Request, Trial

from gateway.semantic.ports import Verification

WORDS = ("red", "green", "blue", "large", "small")


def vector(text):
    """Return a unit vector that is the nearer to another's the more words the two share."""
    counts = np.zeros(384, dtype=np.float32)
    counts[0] = 3.0
    for place, word in enumerate(WORDS, 1):
        counts[place] = text.split().count(word)
    return counts / np.linalg.norm(counts)


def vectors(trial):
    return {text: vector(text) for text in trial.texts}


@dataclass
class ByTable:
    """A verifier of known verdicts; all others are refused."""

    verdicts: dict
    least: float | None = 0.5
    asked: int = 0

    async def verify(self, asked, stored, similarity):
        self.asked += 1
        return self.verdicts.get((asked, stored), Verification(0.0, "words"))

    def threshold(self, max_wrong_hits, verifier=""):
        return self.least


def question(words, answer, **more):
    return Request(f"What is the {words} one called?", answer, **more)


RED, GREEN, BLUE = (question(word, word) for word in ("red", "green", "blue"))
ASKED = question("red large", "red")


async def test_a_hit_is_what_the_machine_serves_and_carries_its_answer():
    trial = Trial("some", (RED, GREEN), (ASKED,))
    verifier = ByTable({(ASKED.text, RED.text): Verification(0.9)})
    cache = await filled(trial, vectors(trial))
    outcome = await cache.ask(ASKED, default_decision(), verifier)
    assert (outcome.served, outcome.right, outcome.reason) == ("red", True, "semantic")
    assert outcome.tries[-1].verification == Verification(0.9)


async def test_the_very_same_question_is_an_exact_hit_that_no_verifier_sees():
    trial = Trial("some", (RED,), (RED,))
    verifier = ByTable({})
    outcome = await (await filled(trial, vectors(trial))).ask(RED, default_decision(), verifier)
    assert (outcome.reason, outcome.identical, verifier.asked) == ("exact", True, 0)


async def test_realms_and_conversations_share_nothing():
    elsewhere = replace(RED, realm=1)
    later = replace(RED, history=(("user", "Tell me of colours."), ("assistant", "There are two.")))
    trial = Trial("some", (RED,), (elsewhere, later))
    cache = await filled(trial, vectors(trial))
    everything = ByTable({(RED.text, RED.text): Verification(1.0)})
    for request in trial.asked:
        outcome = await cache.ask(request, default_decision(), everything)
        assert not outcome.hit
        assert not outcome.tries


async def test_below_the_floor_of_the_policy_nothing_is_verified():
    trial = Trial("some", (RED,), (ASKED,))
    cache = await filled(trial, vectors(trial))
    verifier = ByTable({(ASKED.text, RED.text): Verification(1.0)})
    strict = replace(default_decision(), min_similarity=0.99)
    assert not (await cache.ask(ASKED, strict, verifier)).tries


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
async def test_sweeping_a_threshold_says_what_the_machine_says_at_it(threshold):
    trial = Trial("some", (RED, GREEN, BLUE), (ASKED,))
    cache = await filled(trial, vectors(trial))
    said = (Verification(0.3), Verification(0.8), Verification(0.95, "number"))
    for verdicts in itertools.permutations(said):
        pairs = {(ASKED.text, s.text): v for s, v in zip(trial.stored, verdicts, strict=True)}
        system = System("some", ByTable(pairs))
        swept = all_candidates(system)
        every = await cache.ask(ASKED, default_decision(), swept.verifier)
        assert len(every.tries) == 3
        driven = await cache.ask(ASKED, default_decision(), Held(system.verifier, threshold))
        assert every.at(threshold).served == driven.served


def test_the_peers_serve_the_nearest_whatever_the_conversation():
    asked = replace(ASKED, history=(("user", "Hello."), ("assistant", "Hello.")))
    trial = Trial("some", (RED, GREEN), (asked,))
    (outcome,) = nearest(trial, vectors(trial))
    assert outcome.at(0.8).served == "red"
    assert not outcome.at(0.9999).hit


async def test_verdicts_are_kept_but_never_those_of_a_busy_machine(tmp_path):
    table = ByTable({("a", "b"): Verification(0.5), ("a", "c"): Verification(0.0, "fault")})
    with Kept(tmp_path) as kept:
        for _ in range(2):
            verifier = Remembered(table, "weights", kept)
            assert await verifier.verify("a", "b", 0.9) == Verification(0.5)
            assert await verifier.verify("a", "c", 0.9) == Verification(0.0, "fault")
        assert table.asked == 3
        await Remembered(table, "other weights", kept).verify("a", "b", 0.9)
        assert table.asked == 4


def test_what_is_kept_is_there_in_the_next_run(tmp_path):
    with Kept(tmp_path) as kept:
        kept.keep("encoder", {"a": b"1"})
    with Kept(tmp_path) as kept:
        assert kept.find("encoder", ["a", "b"]) == {"a": b"1"}
        assert kept.find("another", ["a"]) == {}


def test_absent_data_is_told_by_its_path(tmp_path):
    for trial in TRIALS.values():
        with pytest.raises(MissingDataError, match=str(tmp_path)):
            trial(tmp_path)


def written(directory, name, rows):
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_a_problem_is_right_only_for_its_own_seed_with_an_equal_answer(tmp_path):
    row = {"seed_answer": "5", "perturbation_type": "some"}
    rows = [
        {**row, "seed_question": "p", "question": "p, said otherwise", "answer": "5"},
        {**row, "seed_question": "p", "question": "p, other numbers", "answer": "6"},
        {**row, "seed_question": "q", "question": "q, said otherwise", "answer": "5"},
    ]
    trial = gsm_plus(written(tmp_path, "gsm_plus.jsonl", rows))
    answers = [request.answer for request in trial.stored]
    assert len(set(answers)) == len(answers) == 2
    assert [request.answer in answers for request in trial.asked] == [True, False, True]
    assert trial.asked[0].answer != trial.asked[2].answer


def test_the_same_words_are_asked_in_other_conversations_only(tmp_path):
    rows = [
        {
            "history": [f"title {n // 2}", "life", *(["Where?", "There."] * (n % 2))],
            "question": "When was that?",
            "rewrite": f"When was the event {n}?",
        }
        for n in range(12)
    ]
    trial = canard(written(tmp_path, "canard_multiturn.jsonl", rows))
    stored = {request.history for request in trial.stored}
    for request in trial.asked:
        assert (request.history in stored) == (request.group == "same conversation")
        assert (request.answer is None) == (request.group != "same conversation")


def test_nothing_that_is_asked_is_stored_and_out_of_scope_has_no_answer(tmp_path):
    rows = [
        {"text": f"text {n}", "intent": f"intent {n % 9}", "split": "train"} for n in range(8100)
    ]
    rows += [{"text": f"other {n}", "intent": "oos", "split": "oos_val"} for n in range(5)]
    trial = clinc150(written(tmp_path, "clinc150.jsonl", rows))
    assert (len(trial.stored), len(trial.asked)) == (6000, 2005)
    assert not {each.text for each in trial.stored} & {each.text for each in trial.asked}
    assert [each.answer for each in trial.asked if each.group == "oos"] == [None] * 5
