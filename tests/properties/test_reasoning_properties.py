"""Reasoning in text: where it is cut changes nothing, and nothing is lost but tags and space."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.server.tool_parsers.families import HermesToolCallParser
from backend.server.tool_parsers.reasoning import FORMATS, ReasoningParser
from backend.server.tool_parsers.streaming_json import Content, Reasoning, gather, joined

FORM = FORMATS["qwen3"]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
PARTS = [
    *("<think>", "</think>", "<thi", "nk>", "</th", "ink>", "<", ">", "/", "think"),
    *(" ", "\n", "\n\n", "\t", "word", "é🙂", "a<b", "{", CALL, CALL[:20]),
]
TEXT = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
TAGGED = re.compile(r"\s*<think>(?P<reasoning>.*?)(</think>\s*(?P<answer>.*)|\Z)", re.DOTALL)
BEGUN = re.compile(r"(?P<reasoning>.*?)(</think>\s*(?P<answer>.*)|\Z)", re.DOTALL)


def parsed(parser, pieces):
    return joined([event for piece in pieces for event in parser.push(piece)] + parser.finish())


def inner(tools):
    return HermesToolCallParser(max_calls=None, eager=True) if tools else None


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("tools", [True, False])
@given(TEXT, st.lists(st.integers(0, 200), max_size=8))
@example("</think>", [3])
@example("<think> \n a \n </thi", [2, 8])
def test_where_text_is_cut_changes_nothing(tools, begun, text, points):
    at = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    cuts = ([text[start:stop] for start, stop in pairwise(at)], list(text))
    whole = parsed(ReasoningParser(FORM, inner(tools), begun=begun), [text])
    for cut in cuts:
        assert parsed(ReasoningParser(FORM, inner(tools), begun=begun), cut) == whole


@pytest.mark.parametrize("begun", [True, False])
@given(TEXT)
def test_what_stands_between_the_tags_is_reasoning(begun, text):
    """Against a regular expression, which sees the whole text."""
    parser = ReasoningParser(FORM, None, begun=begun)
    events = parsed(parser, list(text))
    found = TAGGED.fullmatch(text) or (BEGUN.fullmatch(text) if begun else None)
    reasoning, answer = (found["reasoning"].strip(), found["answer"] or "") if found else ("", text)
    expected = [kind(said) for kind, said in ((Reasoning, reasoning), (Content, answer)) if said]
    assert events == expected
    if answer:
        assert text[parser.answer_at :] == answer


@given(TEXT, TEXT)
def test_what_follows_the_reasoning_is_read_as_without_it(thought, answer):
    thought = thought.replace("</think>", "").replace("<think>", "")
    whole = f"<think>{thought}</think>{answer}"
    if whole.index("</think>") != len("<think>" + thought):
        return  # two parts made another tag
    events = parsed(ReasoningParser(FORM, inner(True), begun=False), list(whole))
    alone = parsed(inner(True), [answer.lstrip()])
    assert gather(events) == gather(alone)
