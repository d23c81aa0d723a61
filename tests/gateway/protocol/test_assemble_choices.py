import time

import orjson
import pytest

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.assemble_choices import MAX_CALLS
from gateway.protocol.streaming.decode import encode
from policies.decision import Endpoint

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def chunk(*choices, **top):
    return {"id": "c1", "created": 1, "model": "m", "choices": list(choices), **top}


def choice(delta=None, index=0, **fields):
    return {"index": index, "delta": delta or {}, "finish_reason": None, **fields}


def text(value, index=0, **fields):
    return {"index": index, "text": value, "finish_reason": None, **fields}


def follow(endpoint=CHAT):
    return SPECS[endpoint].streaming.follow(assemble=True, max_bytes=10**9)


def assembled(*chunks, endpoint=CHAT):
    answer = follow(endpoint)
    for one in chunks:
        answer.feed(encode(orjson.dumps(one)))
    return answer.result()


def message_of(*deltas):
    [merged] = assembled(*(chunk(choice(delta)) for delta in deltas))["choices"]
    return merged["message"]


def test_a_chat_in_openais_form():
    result = assembled(
        chunk(choice({"role": "assistant", "content": "", "refusal": None}, logprobs=None)),
        chunk(choice({"content": "Hel"}, logprobs=None)),
        chunk(choice({"content": "lo ✓"}, logprobs=None)),
        chunk(choice({}, finish_reason="stop", logprobs=None)),
        chunk(usage={"total_tokens": 3}),
    )
    assert result == {
        "id": "c1",
        "created": 1,
        "model": "m",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello ✓", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"total_tokens": 3},
    }


def test_a_completion():
    result = assembled(
        chunk(text("Hel"), object="text_completion"),
        chunk(text("lo", finish_reason="stop", logprobs=None), object="text_completion"),
        endpoint=COMPLETIONS,
    )
    assert result["object"] == "text_completion"
    assert result["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert "usage" not in result


def test_choices_may_interleave_and_come_in_any_order():
    result = assembled(
        chunk(choice({"content": "b"}, 1), choice({"content": "a"}, 0)),
        chunk(choice({"content": "B"}, 1)),
        chunk(choice({"content": "A"}, 0, finish_reason="stop")),
        chunk(choice({}, 1, finish_reason="length")),
    )
    assert [
        (c["index"], c["message"]["content"], c["finish_reason"]) for c in result["choices"]
    ] == [(0, "aA", "stop"), (1, "bB", "length")]


@pytest.mark.parametrize("field", ["content", "refusal", "reasoning_content", "reasoning"])
def test_text_adds_up_and_null_adds_nothing(field):
    message = message_of({field: None}, {field: "a"}, {field: None}, {field: ""}, {field: "b"})
    assert message[field] == "ab"


def test_a_field_that_stays_null_is_null_and_empty_text_is_empty():
    assert message_of({"refusal": None, "content": ""})["content"] == ""
    assert message_of({"content": None})["content"] is None
    assert message_of({"sources": []}, {"sources": None})["sources"] == []
    assert message_of({"sources": None}, {"sources": []})["sources"] == []
    assert message_of({})["role"] == "assistant"


@pytest.mark.parametrize("role", [{"role": "assistant"}, {"role": ""}, {"role": None}, {}])
def test_the_role_comes_once_or_with_every_chunk(role):
    message = message_of({"role": "assistant", "content": "a"}, {"content": "b", **role})
    assert (message["role"], message["content"]) == ("assistant", "ab")


def test_tool_calls_merge_by_index():
    message = message_of(
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": []},
    )
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "function": {"name": "g", "arguments": ""}},
    ]


def whole_call(name, **fields):
    return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}, **fields}


def test_calls_without_an_index_are_whole():
    calls = [whole_call("a"), whole_call("b"), whole_call("c")]
    message = message_of({"tool_calls": calls[:2]}, {"tool_calls": calls[2:]})
    assert message["tool_calls"] == calls


@pytest.mark.parametrize(
    "deltas",
    [
        [whole_call("a"), whole_call("a")],
        [whole_call("a"), whole_call("b", id=None)],
        [whole_call("a"), {"function": {"arguments": "}"}}],
        [whole_call("a"), {"index": 0, "function": {"arguments": "}"}}],
        [whole_call("a", index=0), whole_call("b")],
    ],
)
def test_what_may_be_a_piece_of_a_call_without_an_index_is_refused(deltas):
    chunks = (chunk(choice({"tool_calls": [delta]})) for delta in deltas)
    assert assembled(*chunks) is Reason.UNKNOWN_SHAPE


def test_an_answer_of_too_many_whole_calls_is_not_put_together():
    def calls(number):
        return [chunk(choice({"tool_calls": [whole_call(f"f{at}")]})) for at in range(number)]

    assert assembled(*calls(MAX_CALLS)) is not Reason.UNKNOWN_SHAPE
    assert assembled(*calls(MAX_CALLS + 1)) is Reason.UNKNOWN_SHAPE


def test_reasoning_details_add_up_by_type_and_index():
    def detail(**fields):
        return {"reasoning_details": [{"type": "reasoning.text", "format": "f", **fields}]}

    message = message_of(
        detail(index=0, text="One "),
        detail(index=0, text="two."),
        detail(index=0, text="", signature="s"),
        detail(index=1, type="reasoning.summary", summary="In "),
        detail(index=1, type="reasoning.summary", summary="short."),
        detail(index=1, type="reasoning.encrypted", data="AAAA"),
        {"content": "3"},
    )
    assert message["reasoning_details"] == [
        {
            "type": "reasoning.text",
            "format": "f",
            "index": 0,
            "text": "One two.",
            "signature": "s",
        },
        {"type": "reasoning.summary", "format": "f", "index": 1, "summary": "In short."},
        {"type": "reasoning.encrypted", "format": "f", "index": 1, "data": "AAAA"},
    ]


def test_a_function_call_after_null_ones():
    message = message_of(
        {"function_call": None},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    )
    assert message["function_call"] == {"name": "f", "arguments": "{}"}


def test_logprobs_after_null_ones():
    [merged] = assembled(
        chunk(choice({"role": "assistant"}, logprobs=None)),
        chunk(choice({"content": "a"}, logprobs={"content": [{"token": "a"}], "refusal": None})),
        chunk(choice({"content": "b"}, logprobs={"content": [{"token": "b"}], "refusal": None})),
        chunk(choice({}, logprobs=None)),
    )["choices"]
    assert merged["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}


def test_logprobs_of_a_completion():
    pieces = [
        {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": None, "text_offset": [0]},
        {"tokens": ["b"], "token_logprobs": [-1], "top_logprobs": [{"b": -1}], "text_offset": [1]},
    ]
    [merged] = assembled(
        *(chunk(text(piece["tokens"][0], logprobs=piece)) for piece in pieces),
        endpoint=COMPLETIONS,
    )["choices"]
    assert merged["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1],
        "top_logprobs": [{"b": -1}],
        "text_offset": [0, 1],
    }


def test_the_first_id_and_time_count_and_padding_is_dropped():
    result = assembled(
        chunk(choice({"content": "a"}), obfuscation="xyz", p="abc", system_fingerprint=None),
        chunk(choice(), id="c2", created=2, system_fingerprint="fp", obfuscation="z", p="ab"),
    )
    assert (result["id"], result["created"], result["system_fingerprint"]) == ("c1", 1, "fp")
    assert not {"obfuscation", "p"} & set(result)


def test_fields_unknown_here_are_kept_when_they_have_one_value():
    result = assembled(
        chunk(choice({"content": "a", "sources": [1]}, stop_reason=None), provider="p"),
        chunk(choice({"content": "b"}, stop_reason=7), provider="p", x_groq={"id": "r"}),
        chunk(citations=["u", "v"]),
        chunk(citations=["u", "v"]),
        chunk(usage={"total_tokens": 1}, x_groq={"id": "r", "usage": {"total_time": 1}}),
    )
    assert result["provider"] == "p"
    assert result["citations"] == ["u", "v"]
    assert result["x_groq"] == {"id": "r", "usage": {"total_time": 1}}
    assert result["choices"][0]["stop_reason"] == 7
    assert result["choices"][0]["message"]["sources"] == [1]


def test_a_stream_as_azure_sends_it():
    safe = {"hate": {"filtered": False}}
    result = assembled(
        chunk(prompt_filter_results=[{"prompt_index": 0}]),
        chunk(choice({"role": "assistant", "content": ""}, content_filter_results={})),
        chunk(choice({"content": "a"}, content_filter_results=safe)),
        chunk(choice({"content": "b"}, content_filter_results=safe)),
        chunk(choice({}, finish_reason="stop", content_filter_results={})),
    )
    assert result["prompt_filter_results"] == [{"prompt_index": 0}]
    assert result["choices"][0]["content_filter_results"] == safe


@pytest.mark.parametrize(
    "chunks",
    [
        [{}],
        [{"choices": None}],
        [{"choices": 5}],
        [{"choices": {"index": 0}}],
        [{"choices": [None]}],
        [{"choices": ["x"]}],
        [{"choices": [{"delta": {}}]}],
        [{"choices": [{"index": "0", "delta": {}}]}],
        [chunk({"index": 0, "delta": "a"})],
        [chunk({"index": 0, "delta": [1]})],
        [chunk({"index": 0, "text": 5})],
        [chunk(choice({}, logprobs=[1]))] * 2,
        [chunk(choice({}, logprobs=5)), chunk(choice({}, logprobs={"content": []}))],
        [chunk(choice({}, logprobs={"content": 5}))],
        [chunk(choice({"content": 5})), chunk(choice({"content": "a"}))],
        [chunk(choice({"content": "a"})), chunk(choice({"content": [{"type": "text"}]}))],
        [chunk(choice({"role": "assistant"})), chunk(choice({"role": "user"}))],
        [chunk(choice({"tool_calls": [{"index": 1}]}))],
        [chunk(choice({"tool_calls": [{"index": -1}]}))],
        [chunk(choice({"tool_calls": [{"id": "a"}]}))],
        [chunk(choice({"tool_calls": [5]}))],
        [chunk(choice({"tool_calls": [{"index": 0, "id": i}]})) for i in "ab"],
        [chunk(choice({"tool_calls": [{"index": 0, "function": {"name": i}}]})) for i in "ab"],
        [chunk(choice({"tool_calls": [{"index": 0, "function": f}]})) for f in (5, {"name": "a"})],
        [chunk(choice({"function_call": 5})), chunk(choice({"function_call": {"name": "a"}}))],
        # Deltas whose merge is not defined.
        [chunk(choice({"reasoning_details": [{"text": i}]})) for i in "ab"],
        [chunk(choice({"annotations": [{"url": "u"}]}))] * 2,
        [chunk(choice({"audio": {"data": i}})) for i in "ab"],
        [chunk(choice({"made_up": i})) for i in "ab"],
        [chunk(choice({}, token_ids=[i])) for i in (1, 2)],
        [chunk(choice({}, finish_reason=i)) for i in ("stop", "length")],
        [chunk(choice(), citations=[i]) for i in (1, 2)],
        [chunk(choice(), sources={"n": i}) for i in (1, 2)],
    ],
)
def test_what_is_not_understood_is_refused(chunks):
    assert assembled(*chunks) is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize("odd", ["a", 5, {"a": 1}, ["a"], [["a"]]])
@pytest.mark.parametrize(
    ("field", "piece"),
    [
        ("tool_calls", {"index": 0, "function": {"name": "a"}}),
        ("tool_calls", {"index": 0, "id": "a"}),
        ("tool_calls", whole_call("a")),
        ("reasoning_details", {"index": 0, "text": "a"}),
    ],
)
def test_what_is_no_list_of_objects_gets_no_piece(field, piece, odd):
    first = chunk({**choice(), "message": {field: odd}})
    assert assembled(first, chunk(choice({field: [piece]}))) is Reason.UNKNOWN_SHAPE


def test_no_chunk_or_no_choice_is_no_result():
    assert assembled() is Reason.UNKNOWN_SHAPE
    assert assembled(chunk(), chunk(usage={"total_tokens": 1})) is Reason.UNKNOWN_SHAPE


def test_a_result_is_not_changed_by_what_comes_after():
    answer = follow()
    answer.feed(encode(orjson.dumps(chunk(choice({"content": "a"}, logprobs={"content": [1]})))))
    first = answer.result()
    answer.feed(encode(orjson.dumps(chunk(choice({"content": "b"}, logprobs={"content": [2]})))))
    assert first["choices"][0]["message"]["content"] == "a"
    assert first["choices"][0]["logprobs"] == {"content": [1]}


def test_a_long_answer_takes_linear_time():
    answer = follow()
    piece = chunk(choice({"content": "x" * 64}, logprobs={"content": [{"token": "x"}]}))
    event = encode(orjson.dumps(piece))
    began = time.thread_time()
    for _ in range(100_000):
        answer.feed(event)
    assert len(answer.result()["choices"][0]["message"]["content"]) == 6_400_000
    assert time.thread_time() - began < 5.0
