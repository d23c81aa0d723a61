"""Whatever the request: what is not declared stays, what stays is in order, and all is valid."""

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompts.compress.compress import begin
from gateway.prompts.compress.facts import facts_of
from gateway.prompts.compress.passages import passages_of
from gateway.prompts.outcome import NotRewrittenError
from policies.decision import CompressSettings, DocumentSettings, Endpoint

PIECES = [
    "The bakery sells bread. ",
    "The bakery sells bread, too. ",
    "It has 12 rooms. ",
    "It is not open. ",
    "Dr. Smith wrote job-17a. ",
    "key: value\n",
    "| a | b |\n",
    '{"a": [1, 2.50]}',
    "```\ncode   here\n```\n",
    "世界很大。",
    "e\u0301\U0001f600 ",
    "\n\n",
    "\n   \n",
    "   ",
    "\t",
    "\r\n",
    '"',
    "\\",
]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(CHARACTERS, max_size=3), max_size=16).map(
    lambda pieces: "".join(pieces).replace("<d>", "").replace("</d>", "")
)
TURNS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=4)), min_size=1, max_size=3)
SETTINGS = st.builds(
    CompressSettings,
    enabled=st.just(value=True),
    documents=st.just(DocumentSettings("<d>", "</d>")),
    minify=st.booleans(),
    duplicates=st.booleans(),
    keep=st.sampled_from([0.0, 0.3, 1.0]),
    min_gain=st.just(0.0),
)


def squeezed(text: str) -> str:
    return "".join(text.split())


def is_part(short: str, whole: str) -> bool:
    """Tell whether all characters of one text stand in the other, in order."""
    left = iter(whole)
    return all(character in left for character in short)


@settings(max_examples=60, deadline=None)
@given(TURNS, SETTINGS, st.randoms(use_true_random=False))
def test_words_outside_of_context_stay_and_context_only_loses(turns: Any, chosen: Any, random: Any):
    contents = [
        words + "".join(f"<d>{block}</d>" for block in blocks) + words for words, blocks in turns
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": each} for each in contents]}
    raw = orjson.dumps(body)
    try:
        begun = begin(Endpoint.CHAT, body, raw, chosen)
        if begun is None:
            return
        result = begun.next([(random.uniform(-1, 1), 0.5) for _ in begun.texts])
    except NotRewrittenError:
        return
    assert orjson.loads(result.raw) == result.body
    assert 0 < result.compression.saved <= result.compression.tokens
    for (words, blocks), turn in zip(turns, result.body["messages"], strict=True):
        first, *rest = turn["content"].split("<d>")
        assert first == words if rest else first == words + words
        assert len(rest) == len(blocks)
        for index, (came, now) in enumerate(zip(blocks, rest, strict=True)):
            inside, behind = now.split("</d>")
            assert behind == (words if index + 1 == len(blocks) else "")
            assert is_part(squeezed(inside), squeezed(came))


@given(TEXTS)
def test_cutting_loses_nothing(text: str):
    passages = passages_of(text, minify=False)
    assert "".join(passage.text for passage in passages) == text


@given(TEXTS)
def test_minifying_keeps_every_fact(text: str):
    text = f"So: {text}"  # what is JSON as a whole is minified as JSON
    now = "".join(passage.text for passage in passages_of(text, minify=True))
    assert squeezed(now) == squeezed(text)
    assert facts_of(now).numbers == facts_of(text).numbers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(CHARACTERS, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(CHARACTERS, max_size=4), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_minified_json_is_the_same_value_in_its_shortest_form(value: Any):
    wide = orjson.dumps([value], option=orjson.OPT_INDENT_2).decode()
    (passage,) = passages_of(wide, minify=True)
    assert passage.text == orjson.dumps([value]).decode()
