"""Marks vanish where they are markdown, and nowhere else."""

import pytest

from gateway.core.markdown import unmarked


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("**Paris** is *it*.", "Paris is it."),
        ("***Paris*** _is_ ~~not~~ it", "Paris is not it"),
        ("(**Paris**), so *they say*!", "(Paris), so they say!"),
        ("**Use `a*b*c`** now", "Use a*b*c now"),
        ("# Title\n### Lower", "Title\nLower"),
        ("- one\n* two\n+ three\n• four", "one\ntwo\nthree\nfour"),
        ("1. one\n12) two", "one\ntwo"),
        ("> said\n> > before", "said\nbefore"),
        ("a\n\n---\n***\n\nb", "a\n\n\n\n\nb"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", " a   b \n\n 1   2 "),
        ("_a_b_", "a_b"),
    ],
)
def test_marks_of_markdown_vanish(written, read):
    assert unmarked(written).text == read


@pytest.mark.parametrize(
    "written",
    [
        *("2*3", "2 * 3 * 4", "a_b", "x~y", "a|b", "|x|", "C#", "#5", "~5 days", "x > 5", "> 5"),
        *("a*b*c", "snake_case_name", "__init__", "*args, **kwargs", "f(*a, *b)", "5* and 6*"),
        *("2**8", "*open", "closed*", "a\n*b\nc*", "**", "~/x and ~/y", ">> 5"),
    ],
)
def test_any_other_mark_is_a_letter(written):
    assert unmarked(written).text == written


def test_code_stays_as_it_was_written():
    text = "So:\n```Sh\n# Not a title\n- LS *x*  \n\n  **kept**\n```\nand `A_*b*` too"
    found = unmarked(text)
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
    assert unmarked(text).blocks == blocks


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
    assert unmarked(text).text.count("a") <= text.count("a")
