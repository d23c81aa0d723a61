"""Texts cut into sentences and clauses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.semantic.eligibility import sentences_of


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("First. Then! Why?", ["First. ", "Then! ", "Why?"]),
        ("He said “no.” (Why?) So", ["He said “no.” ", "(Why?) ", "So"]),
        ("Dr. Smith, e.g. No. 5, i.e. U. S. Grant vs. Lee.\n", None),
        ("It is 1.50; not two.Three", None),
        ("one\n\ntwo\n", ["one\n\n", "two\n"]),
        ("世界。很大。", ["世界。", "很大。"]),
        ("", []),
    ],
)
def test_a_text_is_cut_between_sentences_and_lines(text, sentences):
    assert sentences_of(text) == ([text] if sentences is None else sentences)


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Say Rome; what is it?", ["Say Rome; ", "what is it?"]),
        ("Say A. What is it?", ["Say A. ", "What is it?"]),
        ("The (fake?) leather", ["The (fake?) leather"]),
    ],
)
def test_clauses_begin_behind_semicolons_and_abbreviations_too(text, clauses):
    assert sentences_of(text, clauses=True) == clauses


@given(st.text("aA .;!?\n\"')。"), st.booleans())
def test_no_letter_is_lost(text, clauses):
    assert "".join(sentences_of(text, clauses=clauses)) == text
