"""The demo model's corpus: deterministic, without contradictions, honest about what is held out."""

import re
from itertools import islice

import pytest

from policies.pii.scan import PiiScanner
from tools.demo_model.corpus import CUT_SHARE, Corpus, unique_beginnings
from tools.demo_model.knowledge import load_knowledge
from tools.demo_model.phrasing import Phrasing, Reason, normalise, phrasings


@pytest.fixture(scope="module")
def knowledge():
    return load_knowledge()


@pytest.fixture(scope="module")
def phrased(knowledge):
    """Each topic of the FAQ, and all ways to ask it."""
    return [(topic, phrasings(topic)) for topic in knowledge.faq]


@pytest.fixture(scope="module")
def answers(phrased):
    """The answer to each way to ask."""
    return {
        normalise(way.text): topic.answer
        for topic, ways in phrased
        for way in (Phrasing(topic.ask), *ways)
    }


@pytest.fixture(scope="module")
def drawn(knowledge):
    """A corpus, and so many examples of it that any shorter one is their beginning."""
    corpus = Corpus(knowledge, seed=0)
    return corpus, list(corpus.examples(8_000))


def all_topics(knowledge):
    return (*knowledge.faq, *knowledge.smalltalk, knowledge.offtopic)


def user_texts(examples):
    for example in examples:
        for message in example.messages:
            if message.role == "user":
                yield message.content.removeprefix("Q: ") if example.plain else message.content


def test_the_faq_has_at_least_two_hundred_distinct_questions(knowledge):
    assert len({normalise(topic.ask) for topic in knowledge.faq}) >= 200
    assert len({topic.answer for topic in knowledge.faq}) == len(knowledge.faq)
    assert len({topic.id for topic in all_topics(knowledge)}) == len(all_topics(knowledge))


def test_the_questions_every_newcomer_asks_are_there(knowledge):
    asked = {topic.ask for topic in knowledge.faq}
    assert {"How do I reset my password?", "How do I delete my account?"} <= asked


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "How do I enable two-factor authentication?",
            "How do I disable two-factor authentication?",
        ),
        ("How do I upgrade my plan?", "How do I downgrade my plan?"),
        ("How do I delete my account?", "How do I delete my project?"),
        ("How do I reset my password?", "How do I change my password?"),
        ("How do I turn on dark mode?", "How do I turn off dark mode?"),
    ],
)
def test_one_word_can_change_the_answer(answers, one, other):
    assert answers[normalise(one)] != answers[normalise(other)]


def test_no_phrasing_belongs_to_two_answers(knowledge):
    owner = {}
    for topic in all_topics(knowledge):
        for text in {normalise(w.text) for w in (Phrasing(topic.ask), *phrasings(topic))}:
            assert owner.setdefault(text, topic.id) == topic.id, text


def test_every_topic_has_phrasings_to_train_on_and_to_hold_out(phrased):
    for topic, ways in phrased:
        reasons = [way.held for way in ways]
        assert reasons.count(None) >= 10, topic.id
        assert Reason.WORDING in reasons, topic.id
        assert Reason.TEMPLATE in reasons, topic.id


def test_answers_are_short_sentences_without_contact_details(knowledge):
    for topic in all_topics(knowledge):
        assert topic.answer[0].isupper(), topic.id
        assert topic.answer[-1] in ".!?", topic.id
        assert len(topic.answer.split()) <= 40, topic.id
        assert not re.search(r"\S@\S|\d{5}|\d[ .-]\d|https?:|www\.|[A-Z]{2}\d{2}", topic.answer)


def test_neither_questions_nor_answers_look_like_personal_data(knowledge):
    scanner = PiiScanner(("US", "GB", "DE"))
    for topic in all_topics(knowledge):
        for text in (topic.ask, topic.answer, *topic.do, *topic.know, *topic.say, *topic.held):
            assert scanner.scan(text) is None, text


def test_follow_ups_lead_from_topic_to_topic(knowledge):
    ids = {topic.id for topic in knowledge.faq}
    for follow_up in knowledge.follow_ups:
        assert {follow_up.before, follow_up.after} <= ids
        assert not {normalise(t) for t in follow_up.ask} & {normalise(t) for t in follow_up.held}


def test_the_same_seed_draws_the_same_corpus(knowledge):
    first = list(Corpus(knowledge, seed=7).examples(500))
    assert first == list(Corpus(knowledge, seed=7).examples(500))
    assert first != list(Corpus(knowledge, seed=8).examples(500))


def test_a_longer_corpus_begins_with_the_shorter_one(knowledge):
    longer = Corpus(knowledge, seed=7).examples(500)
    assert list(islice(longer, 100)) == list(Corpus(knowledge, seed=7).examples(100))


def test_held_out_phrasings_never_reach_training(drawn):
    corpus, examples = drawn
    assert len(corpus.held) > 10_000
    asked = {normalise(text) for text in user_texts(examples)}
    assert not asked & corpus.held


def test_training_covers_every_topic_and_every_kind_of_dialogue(knowledge, drawn):
    examples = drawn[1][:5_000]
    learnt = {m.content for e in examples for m in e.messages if m.learn and not e.plain}
    assert {topic.answer for topic in all_topics(knowledge)} <= learnt
    assert any(example.plain for example in examples)
    assert any(example.messages[0].role == "system" for example in examples)
    assert any(example.messages[0].role == "assistant" for example in examples)
    assert max(sum(len(m.content) for m in e.messages) for e in examples) > 8_000


def test_beginnings_tell_answers_apart(knowledge):
    beginnings = unique_beginnings(["a b c", "a b d", "a", "x y"])
    assert beginnings == {"a b c": "a b c", "a b d": "a b d", "a": "a", "x y": "x"}
    answers = [topic.answer for topic in all_topics(knowledge)]
    for answer, beginning in unique_beginnings(answers).items():
        assert [other for other in answers if f"{other} ".startswith(f"{beginning} ")] == [answer]


def test_only_final_answers_are_cut(drawn):
    examples = drawn[1][:2_000]
    assert not any(message.cut for example in examples for message in example.messages[:-1])
    cut = [example for example in examples if example.messages[-1].cut]
    assert not any(example.plain for example in cut)
    assert abs(len(cut) / len(examples) - CUT_SHARE) < 0.05


def test_only_the_assistant_is_learnt(drawn):
    for example in drawn[1][:1_000]:
        assert example.messages[-1].learn
        assert all(m.role == "assistant" for m in example.messages if m.learn)
