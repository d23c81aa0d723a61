"""Whatever the words: a mark inside one counts, and marks around words do not."""

import re
import string

from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.quality.same_answer import Judgement, Outcome, compare
from gateway.semantic.plain_text import strip_markdown
from scripted_upstream import completion

WORD = st.text(string.ascii_letters + string.digits, min_size=1, max_size=6)
MARK = st.sampled_from(["*", "**", "_", "__", "~", "~~", "#", ">", "|"])
MARKS = st.text("*_~#>|`-+ \nab1", max_size=60)


@given(WORD, MARK, WORD)
def test_words_are_never_run_together(one, mark, other):
    marked = compare(completion(f"so {one}{mark}{other} is"), completion(f"so {one}{other} is"))
    assert not isinstance(marked, Judgement)
    assert marked.next([(1.0,)] * len(marked.texts)).outcome is not Outcome.EQUAL


@given(st.lists(WORD, min_size=1, max_size=5), st.sampled_from(["*", "**", "***", "_"]))
def test_emphasis_around_words_tells_nothing(words, mark):
    plain = " ".join(words)
    assert strip_markdown(f"so {mark}{plain}{mark} is").text == f"so {plain} is"


@given(st.text("*_~#>|-+ \nab", max_size=60).filter(lambda text: "~~~" not in text))
def test_no_letter_is_lost_and_none_is_added(text):
    letters = [letter for letter in text if letter in "ab"]
    assert [letter for letter in strip_markdown(text).text if letter in "ab"] == letters


HIGH = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
LOW = {ord("0") + digit: 0x2080 + digit for digit in range(10)}
FIGURES = st.text(string.digits, min_size=1, max_size=3)


@given(FIGURES, FIGURES, FIGURES, st.sampled_from([HIGH, LOW]))
def test_figures_that_stand_high_or_low_join_no_others(before, apart, after, how):
    set_apart = strip_markdown(f"x {before}{apart.translate(how)}{after} y").text
    assert re.findall("[0-9]+", set_apart) == [before, apart, after]


@given(FIGURES, FIGURES)
def test_a_lone_number_before_words_stays(number, other):
    one, two = (strip_markdown(f"{each}. Paris").folded for each in (number, other))
    assert (one == two) == (number == other)


@given(MARKS, MARKS)
def test_it_does_not_matter_which_answer_was_first(one, other):
    there = compare(completion(one), completion(other))
    back = compare(completion(other), completion(one))
    assert isinstance(there, Judgement) == isinstance(back, Judgement)
    if isinstance(there, Judgement):
        assert there == back
