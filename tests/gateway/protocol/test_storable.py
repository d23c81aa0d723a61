import orjson
import pytest

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import Reason
from policies.decision import CLEAN_FINISH_REASONS, Endpoint

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
    return SPECS[CHAT].decline(body, {"choices": list(choices)}, CLEAN_FINISH_REASONS)


def judge_text(*choices, **body):
    body = {"prompt": "p", **body}
    return SPECS[COMPLETIONS].decline(body, {"choices": list(choices)}, CLEAN_FINISH_REASONS)


def test_what_ended_with_stop_may_be_stored():
    assert judge(said()) is None
    assert judge(said(refusal=None, annotations=[])) is None
    assert judge(said(reasoning_content="r")) is None
    assert judge_text(written()) is None


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", Reason.TRUNCATED),
        ("content_filter", Reason.FILTERED),
        ("error", Reason.FINISH_REASON),
        ("Stop", Reason.FINISH_REASON),
        ("", Reason.FINISH_REASON),
        (None, Reason.FINISH_REASON),
        (5, Reason.FINISH_REASON),
        (True, Reason.FINISH_REASON),
        ([], Reason.FINISH_REASON),
    ],
)
def test_any_other_end_is_declined(finish, reason):
    assert judge(said(finish=finish)) is reason
    assert judge_text(written(finish=finish)) is reason
    assert judge(said(), said(index=1, finish=finish), n=2) is reason


@pytest.mark.parametrize(
    ("allowed", "finish", "reason"),
    [
        ({"stop", "length"}, "length", None),
        ({"length"}, "stop", Reason.FINISH_REASON),
        ({"stop", "content_filter"}, "content_filter", None),
        ({"stop"}, "tool_calls", Reason.FINISH_REASON),
        ({"stop", "eos"}, "eos", None),
        (set(), "stop", Reason.FINISH_REASON),
    ],
)
def test_the_rule_says_which_ends_are_stored(allowed, finish, reason):
    result = {"choices": [said(finish=finish)]}
    assert SPECS[CHAT].decline({}, result, frozenset(allowed)) is reason


def calls(*arguments, finish="tool_calls", content=None, **changes):
    made = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}, **changes}
        for text in arguments
    ]
    return said(content, finish=finish, tool_calls=made)


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])  # "stop" where the tool was forced
@pytest.mark.parametrize("content", [None, "", "Let me look."])
def test_tool_calls_may_be_stored(finish, content):
    assert judge(calls("{}", '{"a": [1, 2]}', finish=finish, content=content)) is None


def test_calls_in_the_older_form_and_custom_tools_may_be_stored():
    function = {"name": "f", "arguments": "{}"}
    assert judge(said(None, finish="function_call", function_call=function)) is None
    custom = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls {"}}
    assert judge(said(None, finish="tool_calls", tool_calls=[custom])) is None


@pytest.mark.parametrize(
    "choice",
    [
        calls(""),
        calls('{"a": '),
        calls("{}", "{'a': 1}"),
        calls("NaN"),
        calls("{}", finish="stop", content="ok", type="made_up"),
        calls({"a": 1}),
        calls("{}", function={"name": "", "arguments": "{}"}),
        calls("{}", function={"arguments": "{}"}),
        said(None, finish="tool_calls", tool_calls=["f"]),
        said("text", finish="tool_calls"),
        said("text", finish="tool_calls", tool_calls=[]),
        said("text", finish="function_call"),
        said(None, finish="function_call", function_call={"name": "f", "arguments": "{"}),
        said(None, finish="stop", function_call="f"),
    ],
)
def test_a_tool_call_that_cannot_be_read_is_declined(choice):
    assert judge(choice) is Reason.INVALID_TOOL_CALL
    assert judge(said(), {**choice, "index": 1}, n=2) is Reason.INVALID_TOOL_CALL


JSON_FORMATS = [
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
]


@pytest.mark.parametrize("response_format", JSON_FORMATS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"a": 1}', None),
        ("[]", None),
        ('{"a": 1', Reason.INVALID_JSON),
        ('```json\n{"a": 1}\n```', Reason.INVALID_JSON),
        ("Sure!", Reason.INVALID_JSON),
        (" ", Reason.INVALID_JSON),
    ],
)
def test_where_json_was_asked_for_the_answer_must_be_json(response_format, content, reason):
    assert judge(said(content), response_format=response_format) is reason
    assert judge_text(written(content), response_format=response_format) is reason


@pytest.mark.parametrize("response_format", [None, {"type": "text"}, {}, {"type": 5}])
def test_where_json_was_not_asked_for_any_text_will_do(response_format):
    assert judge(said("Sure!"), response_format=response_format) is None


def test_a_tool_call_needs_no_json_beside_its_arguments():
    assert judge(calls("{}"), response_format={"type": "json_object"}) is None


def test_a_missing_finish_reason_is_declined():
    choice = said()
    del choice["finish_reason"]
    assert judge(choice) is Reason.FINISH_REASON


@pytest.mark.parametrize("content", ["", None])
def test_nothing_said_is_declined(content):
    assert judge(said(content)) is Reason.EMPTY
    assert judge(said(content, refusal=None, tool_calls=[])) is Reason.EMPTY
    assert judge(said("a"), said(content, 1), n=2) is Reason.EMPTY


@pytest.mark.parametrize("content", ["", None, "I cannot."])
def test_a_refusal_is_declined(content):
    assert judge(said(content, refusal="No.")) is Reason.REFUSAL


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
        {"choices": [said(content=None, audio={"id": "a"})]},
        {"choices": [said(content=None, tool_calls={})]},
        {"choices": [{"index": 0, "finish_reason": "stop", "text": "a"}]},
    ],
)
def test_what_cannot_be_rendered_again_is_declined(result):
    assert SPECS[CHAT].decline({}, result, CLEAN_FINISH_REASONS) is Reason.UNKNOWN_SHAPE


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


def test_no_arguments_are_stored_where_the_function_needs_none():
    def called(name):
        function = {"name": name, "arguments": ""}
        calls = [{"id": "c", "type": "function", "function": function}]
        return said(None, finish="tool_calls", tool_calls=calls)

    def tool(name, **fields):
        return {"type": "function", "function": {"name": name, **fields}}

    optional = {"type": "object", "properties": {"zone": {"type": "string"}}}
    tools = [
        tool("now"),
        tool("today", parameters=optional),
        tool("weather", parameters={**optional, "required": ["zone"]}),
    ]
    assert judge(called("now"), tools=tools) is None
    assert judge(called("today"), tools=tools) is None
    assert judge(called("weather"), tools=tools) is Reason.INVALID_TOOL_CALL
    assert judge(called("unknown"), tools=tools) is Reason.INVALID_TOOL_CALL
