"""The agreement check on any text: total, symmetric, and never deaf to a changed part."""

from hypothesis import assume, given
from hypothesis import strategies as st

from embeddings.verify.agreement import agree
from embeddings.verify.reading import read

VOCABULARY = """
    how do i can you the a my reset delete password account invoice from to before after not never
    without more less Rome Paris US I what is was why 3 10 7.5 twenty five second hundred and or
    'quoted' "two words" `code` C++ e-mail log in out ? ! . , x=1 \U0001f389 can't
"""
WORDS = st.sampled_from(VOCABULARY.split())
SENTENCES = st.lists(WORDS, min_size=1, max_size=14).map(" ".join)


@given(st.text(), st.text())
def test_any_two_texts_get_the_same_verdict_both_ways(asked, stored):
    assert (agree(asked, stored) is None) == (agree(stored, asked) is None)


@given(SENTENCES, SENTENCES)
def test_any_two_sentences_get_the_same_reason_both_ways(asked, stored):
    assert agree(asked, stored) == agree(stored, asked)


@given(st.text())
def test_every_text_agrees_with_itself(text):
    assert agree(text, text) is None
    assert agree(text, f"  {text}\n") is None


@given(SENTENCES, st.integers(0, 10**6), st.integers(0, 10**6))
def test_another_number_is_never_accepted(sentence, one, other):
    assume(one != other)
    assert agree(f"{sentence} costs {one}", f"{sentence} costs {other}") is not None


@given(SENTENCES, st.sampled_from(["not", "never", "without", "hardly"]), st.data())
def test_a_negation_more_is_never_accepted(sentence, negation, data):
    words = sentence.split()
    place = data.draw(st.integers(0, len(words)))
    denied = " ".join([*words[:place], negation, *words[place:]])
    # Within quotes or code it is one changed string, which is refused all the same.
    assert agree(denied, sentence) is not None


@given(SENTENCES, st.text(st.characters(categories=["Ll"]), min_size=4, max_size=12))
def test_a_new_word_is_never_accepted(sentence, word):
    added = f"{sentence} concerning {word}"
    assume(len(read(added)) > len(read(f"{sentence} concerning")))
    assert agree(added, f"{sentence} concerning") is not None


@given(st.permutations(["alice", "bob", "carol"]), st.permutations(["alice", "bob", "carol"]))
def test_swapped_roles_are_never_accepted(one, other):
    asked = "does {} owe {} more than {}".format(*one)
    stored = "does {} owe {} more than {}".format(*other)
    assert (agree(asked, stored) is None) == (one == other)
