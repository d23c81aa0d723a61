"""The quality benchmark drives the gateway's own machine; its sweeps say what that would."""

import asyncio
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from quality.cache import default_decision, filled
from quality.kept import Kept
from quality.measuring import candidates, measure, nearest
from quality.models import Scores
from quality.sets import TRIALS, MissingDataError, canard, clinc150, gsm_plus
from quality.systems import System, faults, guards_in
from quality.trial import Request, Trial
from tiny_verifier import write_tiny_verifier

from gateway.semantic.ports import SemanticUnavailableError, Verification

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


@dataclass
class ByScore:
    """A scorer of one score for all pairs."""

    of_all: float = 0.0

    async def score(self, asked, stored):
        return self.of_all


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
        found = await candidates(trial, vectors(trial))
        (every,) = await System("some", ByTable(pairs), ByScore()).judged(found)
        assert len(every.tries) == 3
        driven = await cache.ask(ASKED, default_decision(), ByTable(pairs, threshold))
        assert every.at(threshold).served == driven.served


def test_the_peers_serve_the_nearest_whatever_the_conversation():
    asked = replace(ASKED, history=(("user", "Hello."), ("assistant", "Hello.")))
    trial = Trial("some", (RED, GREEN), (asked,))
    (outcome,) = nearest(trial, vectors(trial))
    assert outcome.at(0.8).served == "red"
    assert not outcome.at(0.9999).hit


async def test_a_verifier_gives_each_candidate_its_verdict_and_serves_at_its_threshold():
    trial = Trial("some", (RED, GREEN), (ASKED,))
    verdicts = {(ASKED.text, RED.text): Verification(0.6)}
    system = System("some", ByTable(verdicts, least=0.7), ByScore())
    measured = await measure(trial, vectors(trial), [system])
    (judged,), (served,) = measured.judged["some"], measured.outcomes["some"]
    said = {each.stored: each.verification for each in judged.tries}
    assert said == {RED.text: Verification(0.6), GREEN.text: Verification(0.0, "words")}
    assert (served.served, judged.at(0.6).served) == (None, "red")


async def test_a_guards_refusal_has_a_score_where_it_is_to_be_left_out_and_a_fault_has_none():
    trial = Trial("some", (RED, GREEN), (ASKED,))
    verdicts = {(ASKED.text, GREEN.text): Verification(0.0, "verifier-timeout")}
    system = System("some", ByTable(verdicts), ByScore(0.9))
    measured = await measure(trial, vectors(trial), [system], refused_too=True)
    (judged,) = measured.judged["some"]
    assert not judged.at(0.5).hit
    assert judged.at(0.5, without={"words"}).right
    assert not judged.at(0.5, without={"number"}).hit
    assert (guards_in([judged]), faults([judged])) == ({"words": 1}, {"verifier-timeout": 1})


def test_what_is_kept_is_there_in_the_next_run(tmp_path):
    with Kept(tmp_path) as kept:
        kept.keep("encoder", {"a": b"1"})
    with Kept(tmp_path) as kept:
        assert kept.find("encoder", ["a", "b"]) == {"a": b"1"}
        assert kept.find("another", ["a"]) == {}


async def test_a_pair_is_scored_once_in_whichever_order_it_comes(tmp_path):
    with Kept(tmp_path) as kept:
        scores = Scores(write_tiny_verifier(tmp_path / "weights"), kept)
        asked = await asyncio.gather(*(scores.score("How?", text) for text in ("a b", "c d")))
        again = [await scores.score(text, "How?") for text in ("a b", "c d")]
        (known,) = kept.find(f"verifier {scores.verifier}", ["How?\0a b"]).values()
    assert asked == again
    assert known == pack("<d", asked[0])


async def test_a_text_without_a_score_is_so_in_the_next_run_too(tmp_path):
    directory = write_tiny_verifier(tmp_path / "weights")
    for _ in range(2):
        refused = pytest.raises(SemanticUnavailableError, match="text-too-long")
        with Kept(tmp_path) as kept, refused:
            await Scores(directory, kept).score("How?", "word " * 5000)


def test_a_near_miss_of_a_verb_has_no_right_answer_and_a_rewording_has_its_seeds():
    trial = TRIALS["verbs"](Path())
    seeds = {each.answer for each in trial.stored}
    assert {each.answer in seeds for each in trial.asked if each.group == "rewording"} == {True}
    assert {each.answer for each in trial.asked if each.group == "near miss"} == {None}
    assert sum(each.group == "near miss" for each in trial.asked) >= 300


def test_absent_data_is_told_by_its_path(tmp_path):
    own = {"verbs", "lookalikes", "lookalikes_held_out"}
    assert all(TRIALS[name](tmp_path).asked for name in own)
    for name in TRIALS.keys() - own:
        with pytest.raises(MissingDataError, match=str(tmp_path)):
            TRIALS[name](tmp_path)


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
