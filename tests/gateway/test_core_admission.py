import orjson
import pytest

from gateway.core.admission import declined
from gateway.core.types import Endpoint, Reason

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def said(content="a", index=0, finish="stop", **message):
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
    }


def written(text="a", index=0, finish="stop"):
    return {"index": index, "text": text, "finish_reason": finish}


def judge(*choices, **body):
    return declined(CHAT, body, {"choices": list(choices)})


def judge_text(*choices, **body):
    return declined(COMPLETIONS, {"prompt": "p", **body}, {"choices": list(choices)})


def test_what_ended_with_stop_may_be_stored():
    assert judge(said()) is None
    assert judge(said(refusal=None, annotations=[])) is None
    assert judge(said(reasoning_content="r")) is None
    assert judge_text(written()) is None


@pytest.mark.parametrize(
    "finish",
    ["length", "content_filter", "tool_calls", "function_call", "error", "", None, 5, True],
)
def test_any_other_end_is_declined(finish):
    assert judge(said(finish=finish)) is Reason.FINISH_REASON
    assert judge_text(written(finish=finish)) is Reason.FINISH_REASON
    assert judge(said(), said(index=1, finish=finish), n=2) is Reason.FINISH_REASON


def test_a_missing_finish_reason_is_declined():
    choice = said()
    del choice["finish_reason"]
    assert judge(choice) is Reason.FINISH_REASON


@pytest.mark.parametrize("content", ["", None])
def test_nothing_said_is_declined(content):
    assert judge(said(content)) is Reason.EMPTY
    assert judge(said(content, refusal="No.")) is Reason.EMPTY
    assert judge(said(content, tool_calls=[{"id": "a"}])) is Reason.EMPTY
    assert judge(said("a"), said(content, 1), n=2) is Reason.EMPTY


def test_no_choices_is_declined():
    assert judge() is Reason.EMPTY
    assert judge_text(written("")) is Reason.EMPTY


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        "text",
        5,
        {},
        {"error": {"message": "m"}},
        {"choices": None},
        {"choices": {}},
        {"choices": [None]},
        {"choices": ["a"]},
        {"choices": [{}]},
        {"choices": [{**said(), "index": "0"}]},
        {"choices": [{**said(), "index": None}]},
        {"choices": [said(index=1)]},
        {"choices": [said(index=-1)]},
        {"choices": [{**said(), "message": None}]},
        {"choices": [{**said(), "message": "a"}]},
        {"choices": [said(content=[{"type": "text", "text": "a"}])]},
        {"choices": [said(content=5)]},
        {"choices": [{"index": 0, "finish_reason": "stop", "text": "a"}]},
    ],
)
def test_what_cannot_be_rendered_again_is_declined(result):
    assert declined(CHAT, {}, result) is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_a_completion_without_text_is_declined(text):
    assert judge_text(written(text)) is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize("n", [None, 0, 1])
def test_one_choice_is_expected_unless_more_are_asked_for(n):
    assert judge(said(), n=n) is None
    assert judge(said(), said(index=1), n=n) is Reason.UNCLEAN


def test_each_of_n_choices_must_be_there_once():
    assert judge(said(), said(index=1), said(index=2), n=3) is None
    assert judge(said(), said(index=1), n=3) is Reason.UNCLEAN
    assert judge(said(), said(index=0), n=2) is Reason.UNKNOWN_SHAPE
    assert judge(said(), said(index=2), n=2) is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize(
    ("prompt", "n", "choices"),
    [
        ("p", None, 1),
        ("p", 2, 2),
        (["p"], None, 1),
        (["p", "q"], None, 2),
        (["p", "q"], 2, 4),
        ([1, 2, 3], None, 1),
        ([[1], [2, 3]], None, 2),
        ([[1], [2, 3]], 3, 6),
        ([], None, 1),
    ],
)
def test_a_completion_has_n_choices_for_each_prompt(prompt, n, choices):
    for count in range(1, 7):
        replies = [written(index=index) for index in range(count)]
        expected = None if count == choices else Reason.UNCLEAN
        assert judge_text(*replies, prompt=prompt, n=n) is expected


def test_a_result_too_deep_to_be_rendered_is_declined():
    deep = orjson.loads(b"[" * 300 + b"]" * 300)
    assert judge({**said(), "made_up": deep}) is Reason.UNKNOWN_SHAPE
    assert judge({**said(), "made_up": deep[0][0]}) is Reason.UNKNOWN_SHAPE
    assert judge({**said(), "made_up": orjson.loads(b"[" * 200 + b"]" * 200)}) is None
