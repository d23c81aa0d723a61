"""Any text at all is judged, always alike; lookup and storing agree; other turns never meet."""

import string

import pytest
from example_requests import chat, entry_of, plan_of, user
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.lookup import Forward, SearchSemantic, start
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.eligibility import ineligible

POOL = (
    "how do i reset my password what is the fee for a lost card today it them another joke again"
    " random yesterday weather and why summarise ignore above la der mein paket 2 15"
)
WORDS = st.sampled_from(POOL.split())
SENTENCES = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)
ANYTHING = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=300),
    st.text(string.printable, max_size=300),
    st.builds(lambda text, times: (text * times)[:2000], st.text(max_size=20), st.integers(0, 100)),
    SENTENCES,
)
OPENINGS = (
    "Tell me about the painter Frida Kahlo.",
    "Tell me about the chemist Marie Curie.",
    "I have a snake.",
    "What is the longest bridge in China?",
    "We are in Lisbon.",
    "We are in Reykjavik.",
)
LEANING = (
    "When was she born?",
    "How often should I feed it?",
    "How long did they take?",
    "and her husband?",
    "What about the second longest?",
)
STANDING = ("What is the best month for a visit to the coast?", "Who invented the telephone?")


@given(ANYTHING, st.booleans())
def test_any_text_is_judged_and_always_alike(text, follows):
    judged = ineligible(text, follows=follows)
    assert judged is None or isinstance(judged, Reason)
    assert ineligible(text, follows=follows) is judged


@given(SENTENCES, st.booleans())
def test_case_and_white_space_of_a_sentence_change_nothing(sentence, follows):
    judged = ineligible(sentence, follows=follows)
    for other in (sentence.upper(), sentence.title(), f"  {sentence} ", sentence + "?"):
        assert ineligible(other, follows=follows) is judged
    assert ineligible(sentence.replace(" ", "  "), follows=follows) is judged


@given(ANYTHING)
def test_earlier_turns_only_ever_forbid(text):
    alone = ineligible(text)
    after = ineligible(text, follows=True)
    assert after is alone or after is Reason.FOLLOW_UP


@given(st.one_of(st.text(), SENTENCES))
def test_what_is_not_looked_for_is_not_made_findable(text):
    plan = plan_of(chat(user(text)))
    state = start(plan).next(None, 0.0).next(None)
    if plan.question is None:
        assert entry_of(plan).question is None
        assert isinstance(state, Forward)
        assert state.store is plan
        assert state.ineligible is ineligible(text)
        assert state.ineligible is not None
    else:
        assert entry_of(plan).question == text
        assert isinstance(state, SearchSemantic)


def after(opening, text):
    return plan_of(chat(user(opening), {"role": "assistant", "content": "I see."}, user(text)))


@pytest.mark.parametrize("text", STANDING)
def test_the_same_words_after_other_turns_are_looked_for_elsewhere(text):
    plans = [after(opening, text) for opening in OPENINGS]
    assert {plan.question for plan in plans} == {text}
    assert len({plan.fingerprint for plan in plans}) == len(OPENINGS)


@pytest.mark.parametrize("text", LEANING)
def test_words_that_lean_on_other_turns_are_looked_for_nowhere(text):
    assert all(after(opening, text).question is None for opening in OPENINGS)


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), SENTENCES), max_size=4),
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), SENTENCES), max_size=4),
)
def test_a_turn_is_found_by_meaning_only_after_equal_turns(ours, theirs):
    asked, other = (
        plan_of(
            chat(
                *({"role": role, "content": said} for role, said in turns),
                user("What is the capital of France?"),
            )
        )
        for turns in (ours, theirs)
    )
    assert asked.question is not None
    assert (asked.fingerprint == other.fingerprint) is (ours == theirs)
