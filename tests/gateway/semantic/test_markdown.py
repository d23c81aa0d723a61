"""Marks vanish where they are markdown, and nowhere else."""

import pytest

from gateway.semantic.plain_text import strip_markdown


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("**Paris** is *it*.", "Paris is it."),
        ("***Paris*** _is_ it", "Paris is it"),
        ("(**Paris**), so *they say*!", "(Paris), so they say!"),
        ("**Use `a*b*c`** now", "Use a*b*c now"),
        ("# Title\n### Lower", "Title\nLower"),
        ("- one\n- two\n* three\n+ four\n+ five\n• six", "one\ntwo\nthree\nfour\nfive\nsix"),
        ("1. one\n2) two", "one\ntwo"),
        ("1. one\n   - a\n   - b\n2. two\n   1. c\n   2. d", "one\na\nb\ntwo\nc\nd"),
        ("1. Do:\n```\nx\n```\n2. Close", "Do:\n\nx\n\nClose"),
        ("1. a\n2. b\n1. c\n2. d", "a\nb\nc\nd"),
        ("* one", "one"),
        ("• 5 things", "5 things"),
        ("H₂O, CO₂, x₁", "H2O, CO2, x1"),
        ("10⁶ m², 2ⁿ, 10⁻⁶", "10^6 m^2, 2^n, 10^\u22126"),
        ("10²³ 10²3 2ⁿm x²y", "10^23 10^2 3 2^n m x^2 y"),
        ("e²⁻¹ e²-1", "e^(2\u22121) e^2-1"),
        ("10₂ log₂8 1½ ½ 5① ①②", "10_2 log2_8 1 1/2 1/2 5_1 1_2"),
        ("ﬁne \uff11\uff10", "fine 10"),
        ("> said\n> > before", "said\nbefore"),
        ("a\n\n---\n***\n\nb", "a\n\n\n\n\nb"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", " a   b \n\n 1   2 "),
        ("_a_b_", "a_b"),
    ],
)
def test_marks_of_markdown_vanish(written, read):
    assert strip_markdown(written).text == read


@pytest.mark.parametrize(
    "written",
    [
        *("2*3", "2 * 3 * 4", "a_b", "x~y", "a|b", "|x|", "C#", "#5", "~5 days", "x > 5", "> 5"),
        *("a*b*c", "snake_case_name", "__init__", "*args, **kwargs", "f(*a, *b)", "5* and 6*"),
        *("2**8", "*open", "closed*", "a\n*b\nc*", "**", "~/x and ~/y", ">> 5"),
        *("5. May 2020", "3. Oktober", "2. Paris", "1. Paris", "1. one\n12) two", "2. a\n3. b"),
        *("5. May\n6. May", "1. May it be\n2. March", "1. 5 km\n2. 6 km", "- 5 degrees", "+ 5"),
        *("- x", "It is\n- 5 degrees\n- (6)", "* 5", "~~Paris~~ London", "~~a b~~"),
    ],
)
def test_any_other_mark_is_a_letter(written):
    assert strip_markdown(written).text == written


def test_code_stays_as_it_was_written():
    text = "So:\n```Sh\n# Not a title\n- LS *x*  \n\n  **kept**\n```\nand `A_*b*` too"
    found = strip_markdown(text)
    block = "# Not a title\n- LS *x*\n\n  **kept**"
    assert found.blocks == (block,)
    assert found.inline == {"A_*b*"}
    assert found.text == f"So:\n\n{block}\n\nand A_*b* too"
    assert found.folded == f"so:\n\n{block}\n\nand A_*b* too"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("So: ```sh\nls\n``` it is", ("ls",)),
        ("~~~\na\n```\nb\n~~~", ("a\n```\nb",)),
        ("```\na\n```\n```\nb\n```", ("a", "b")),
        ("```\nnever *closed*", ("never *closed*",)),
        ("```\nls```", ("ls",)),
        ("no ``` fence", ()),
    ],
)
def test_blocks_of_code_are_found_where_they_begin_and_end(text, blocks):
    assert strip_markdown(text).blocks == blocks


@pytest.mark.parametrize(
    "text",
    [
        *("*a " * 9_000, "`" * 20_000, "```a\n" * 5_000, "> " * 9_000 + "5", "| " * 9_000),
        *("- " * 9_000, "\n" * 20_000, "__" * 9_000, "*_" * 9_000, "\x00" * 9_000, "# " * 9_000),
        *("``a" * 6_000, "~" * 19_999 + "`", " " * 19_999 + "~", "~ " * 9_000 + "`"),
        *("a" * 19_990 + "```" + "a`", "a```" + "b" * 19_990 + "`", "a```" + " " * 19_990 + "`"),
        *("- " * 9_000 + "x", "|-" * 9_000 + "x", "| " * 9_000 + "|x", "`" + "a" * 19_990),
    ],
    ids=range(22),
)
def test_hostile_marks_are_read_through(text):
    assert strip_markdown(text).text.count("a") <= text.count("a")


def test_marks_above_and_below_one_letter_are_read_through():
    assert len(strip_markdown("a" + "\u0300\u0327" * 200_000).text) >= 400_000


@pytest.mark.parametrize("text", ["~" * 10**6 + "`", " " * 10**6 + "~", "a```" + "b" * 10**6 + "`"])
def test_a_line_that_is_nearly_a_fence_is_read_once(text):
    """Time in the square of its length would not come to an end."""
    assert strip_markdown(text).blocks == ()
