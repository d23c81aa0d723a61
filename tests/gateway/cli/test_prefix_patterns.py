"""Patterns made from prompts: anchored by words, one value, never past the end of a line."""

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cli.prefix_patterns import LONGEST_VALUE, pattern
from policies.format.load import parse_policy


def made(template, *values):
    """The pattern for texts that differ in what stands for ``@``."""
    texts = [template.replace("@", value) for value in values]
    at = next(
        index
        for index, letters in enumerate(zip(*texts, strict=False))
        if len(set(letters)) > 1 or index + 1 == min(map(len, texts))
    )
    found = pattern(texts, at)
    if found is None:
        return None
    matches = [re2.search(found, text) for text in texts]
    return found, [match[1] for match in matches]


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("Be kind.\nTurn @ of 50\nGo.", ["1", "2", "13"], "(?m)^Turn ([0-9]+)"),
        ("Ticket: ACME-@\nPlan: gold", ["17", "18"], "(?m)^Ticket: (.+)"),
        ("Customer: @\nPlan: gold", ["María José", "Wei", "O'Brien"], "(?m)^Customer: (.+)"),
        ("a; cch=@;\nYou are", ["10e6d", "2959f"], r"(?m)^a; cch=([\w.:/@+-]*\w)"),
        ("[date-1] span=@ ts=3", ["88f", "45c"], r"\bspan=([\w.:/@+-]*\w)"),
        ("job 17 step=@ ts=3", ["88f", "45c"], r"\bstep=([\w.:/@+-]*\w)"),
        ("The user is @ and asks.", ["Zoë", "Jo"], r"(?m)^The user is ([\pL\pN.:/@+_-]*[\pL\pN])"),
        ('"user_id": "@", "x": 1', ["u-123", "u-9"], r'(?m)^"user_id": "([^"\r\n]+)'),
        (
            '{"n": 17, "user": {"name": "@", "x"',
            ["Zoë S.", "O'Ry"],
            r'\buser": \{"name": "([^"\r\n]+)',
        ),
        ("In 17 Ämter @ or", ["a1", "b2"], r"Ämter ([\w.:/@+-]*\w)"),
        ("cwd: /home/@/src\nOS: linux", ["anna", "jan"], "(?m)^cwd: /(.+)"),
        ("Hi.\nIt is @ by now", ["10:01", "10:02"], r"(?m)^It is ([\w.:/@+-]*\w)"),
        ("request #@ from", ["1", "22"], "(?m)^request #([0-9]+)"),
        ("Speak (@): be brief", ["de-DE", "pt-BR"], r"(?m)^Speak \(([^\)\r\n]+)"),
    ],
)
def test_a_value_is_found_by_the_words_before_it(template, values, expected):
    found, groups = made(template, *values)
    assert found == expected
    assert all(value in group for group, value in zip(groups, values, strict=True))


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("Answer:\n@ it is.", ["a", "b"]),
        ("17: @ it is.", ["a", "b"]),
        ("Chapter: @\nNext: 1", ["x" * LONGEST_VALUE + "x y", "z" * LONGEST_VALUE + "z y"]),
        ("Chapter @", ["1: One thing.\nIs this.", "2: Another one.\nOr that."]),
        ("- name: @\n- name: Otto\n", ["Anna", "Jan"]),
        ("Control \x1b word @\nEnd", ["Anna", "Jan"]),
        ("In 2026 it was @ who", ["Anna", "Jan"]),
        ("x" * 20_000 + "=@ y", ["Anna", "Jan"]),
        (" " * 50 + "x" * 60 + "=@ y", ["Anna", "Jan"]),
    ],
    ids=[
        "no words",
        "a number",
        "long",
        "more differs",
        "several",
        "unprintable",
        "usual words",
        "one word",
        "no space",
    ],
)
def test_there_is_none_where_it_might_move_something_else(template, values):
    assert made(template, *values) is None


def test_a_pattern_is_one_that_a_policy_takes_in_yaml():
    found, _ = made("Job's \\ a {x} [y] (z)?: @ then\n", "1", "2")
    quoted = found.replace("'", "''")
    policy = parse_policy(
        "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant,\n"
        f"  pii: bypass, prefix: {{volatile: {{patterns: ['{quoted}']}}}}}}\n",
        "pasted",
    )
    assert policy.default.prefix.patterns == (found,)


PIECES = st.sampled_from(
    ["Job: ", "id=", "#", "17", "ab-3", "Zoë", " ", "\n", "\r\n", "(", "\\", "[value-1]", '"', "."]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@settings(max_examples=80, deadline=None)
@given(TEXTS, st.lists(TEXTS, min_size=2, max_size=4, unique_by=lambda text: text[:1]))
def test_a_pattern_finds_one_value_in_each_text_that_begins_no_later(before, ends):
    texts = [before + end for end in ends if end]
    found = pattern(texts, len(before)) if len(texts) > 1 else None
    for text in texts if found else ():
        (match,) = re2.finditer(found, text)
        assert match.start(1) <= len(before) <= match.end(1)
        assert "\n" not in match[1]
