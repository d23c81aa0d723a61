"""Tool calls over HTTP, with a scripted generator: OpenAI's shapes, and what the engine is told."""

import json
import threading

import pytest

from backend.grammar.json_schema import enforceable
from backend.ports import GrammarRejectedError
from backend.scheduler.request import FinishReason, GrammarKind, TextDelta, TokenLogprobs
from backend.server import structured
from backend.server.tool_parsers import FORMATS

pytest_plugins = ["running_backend"]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
STRICT = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def saying(*pieces, reason=FinishReason.STOP, logprobs=False):
    async def script(request):
        for index in range(request.n):
            for number, piece in enumerate(pieces, start=1):
                told = (TokenLogprobs(ord(piece[0]), -0.5),) if logprobs else ()
                yield TextDelta(index, piece, number, None, told)
            yield TextDelta(index, "", len(pieces) + 1, reason)

    return script


@pytest.fixture
def speaking(start_server):
    async def start(*pieces, form="qwen", **options):
        return await start_server(script=saying(*pieces, **options), tools=FORMATS[form])

    return start


async def test_a_plain_reply_with_calls_has_openais_form(speaking):
    server = await speaking("Let me see.\n", CALL + "\n" + CALL)
    choice = (await server.chat(tools=[WEATHER])).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]
    assert first | {"id": ""} == {
        "id": "",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }


async def test_a_call_alone_leaves_no_content(speaking):
    server = await speaking('{"name": "get_weather", "parameters": {}}', form="llama")
    message = (await server.chat(tools=[WEATHER])).json["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}


async def test_a_stream_with_calls_has_openais_form(speaking):
    server = await speaking("Hm. <tool", *CALL[5:])
    reply = await server.chat(tools=[WEATHER], stream=True)
    deltas = [event["choices"][0]["delta"] for event in reply.events]
    assert deltas[:2] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hm."},
    ]
    start = deltas[2]["tool_calls"][0]
    assert start | {"id": ""} == {
        "index": 0,
        "id": "",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    pieces = [delta["tool_calls"][0] for delta in deltas[3:-1]]
    assert len(pieces) > 5
    assert all(set(piece) == {"index", "function"} for piece in pieces)
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city": "Paris"}'
    assert deltas[-1] == {}
    assert reply.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
async def test_values_in_tags_have_the_types_of_the_functions_schema(speaking, stream, reason):
    text = "<tool_call>\n<function={}>\n<parameter={}>\n5\n</parameter>\n</function>\n</tool_call>"
    said = text.format("get_weather", "city") + "\n" + text.format("add", "a")
    server = await speaking(*said, form="qwen_xml", reason=reason)
    reply = await server.chat(tools=[WEATHER, STRICT], stream=stream)
    if stream:
        told = [event["choices"][0]["delta"].get("tool_calls", []) for event in reply.events]
        names = [each["function"]["name"] for [each] in filter(None, told) if "id" in each]
        calls = ["", ""]
        for [each] in filter(None, told):
            calls[each["index"]] += each["function"]["arguments"]
        end = reply.events[-1]["choices"][0]["finish_reason"]
    else:
        choice = reply.json["choices"][0]
        functions = [each["function"] for each in choice["message"]["tool_calls"]]
        names = [each["name"] for each in functions]
        calls, end = [each["arguments"] for each in functions], choice["finish_reason"]
    assert (names, calls) == (["get_weather", "add"], ['{"city": "5"}', '{"a": 5}'])
    assert end == ("tool_calls" if reason is FinishReason.STOP else "length")
    wanted = server.generator.requests[-1]
    assert wanted.text.markup == wanted.sampling.grammar.markup == FORMATS["qwen_xml"].markup
    assert {"<tool_call>", "</tool_call>"} <= {*wanted.text.markup}
    assert grammar_of(server)["tags"][0]["content"]["style"] == "qwen_xml"


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_read_apart(speaking, stream):
    server = await speaking(CALL[:20], CALL[20:])
    reply = await server.chat(tools=[WEATHER], n=2, stream=stream)
    if stream:
        text = ["", ""]
        for event in reply.events:
            choice = event["choices"][0]
            for call in choice["delta"].get("tool_calls", []):
                text[choice["index"]] += call["function"]["arguments"]
    else:
        text = [
            each["message"]["tool_calls"][0]["function"]["arguments"]
            for each in reply.json["choices"]
        ]
    assert text == ['{"city": "Paris"}'] * 2


async def test_a_malformed_call_is_content(speaking):
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": \n</tool_call>'
    server = await speaking(text)
    choice = (await server.chat(tools=[WEATHER])).json["choices"][0]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_demanded_call_that_is_cut_short_keeps_its_arguments(speaking, stream):
    server = await speaking(CALL[:60], reason=FinishReason.LENGTH)
    reply = await server.chat(tools=[WEATHER], tool_choice="required", stream=stream)
    if stream:
        deltas = [event["choices"][0] for event in reply.events]
        calls = [call for each in deltas for call in each["delta"].get("tool_calls", [])]
        arguments = "".join(call["function"]["arguments"] for call in calls)
        reason = deltas[-1]["finish_reason"]
    else:
        choice = reply.json["choices"][0]
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        reason = choice["finish_reason"]
    assert (arguments, reason) == ('{"city": "P', "length")


async def test_calls_that_are_not_wanted_are_left_out(speaking):
    server = await speaking(CALL + CALL)
    reply = await server.chat(tools=[WEATHER], parallel_tool_calls=False)
    assert len(reply.json["choices"][0]["message"]["tool_calls"]) == 1


async def test_no_log_probability_is_lost_while_text_is_held_back(speaking):
    server = await speaking("a", *CALL, "b", logprobs=True)
    reply = await server.chat(tools=[WEATHER], stream=True, logprobs=True)
    told = [
        token["token"]
        for event in reply.events
        for token in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(told) == "a" + CALL + "b"


def grammar_of(server):
    grammar = server.generator.requests[-1].sampling.grammar
    return None if grammar is None else json.loads(grammar.source)["format"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [WEATHER]}, None),
        ({"tools": [WEATHER], "tool_choice": "none"}, None),
        ({"tools": [WEATHER], "tool_choice": "required"}, ("tags_with_separator", False)),
        (
            {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
            ("tags_with_separator", True),
        ),
        ({"tools": [WEATHER, STRICT]}, ("triggered_tags", False)),
        (
            {
                "tools": [WEATHER, STRICT],
                "tool_choice": {"type": "function", "function": {"name": "add"}},
            },
            ("tags_with_separator", True),
        ),
    ],
)
async def test_what_is_demanded_becomes_a_grammar(speaking, fields, expected):
    server = await speaking("Hello")
    assert (await server.chat(**fields)).status == 200
    grammar = grammar_of(server)
    if expected is None:
        assert grammar is None
        return
    assert (grammar["type"], grammar["stop_after_first"]) == expected
    if isinstance(fields.get("tool_choice"), dict):
        assert [tag["begin"] for tag in grammar["tags"]] == [
            '<tool_call>\n{"name": "add", "arguments": '
        ]


async def test_tools_beside_a_response_format_admit_either(speaking):
    server = await speaking("Hello")
    form = {"type": "json_object"}
    assert (await server.chat(tools=[WEATHER], response_format=form)).status == 200
    assert [each["type"] for each in grammar_of(server)["elements"]] == [
        "tags_with_separator",
        "json_schema",
    ]


async def test_calls_and_results_reach_the_template(start_server):
    seen = {}
    server = await start_server(tools=FORMATS["qwen"])
    encoder = server.model.require().encoder

    def template(messages, *, tools=None, **_):
        seen.update(messages=messages, tools=tools)
        return "x"

    encoder.apply_chat_template = template
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    broken = {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a'}}
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [call, broken]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
    ]
    reply = await server.post(
        "/v1/chat/completions", {"model": "scripted", "messages": messages, "tools": [STRICT]}
    )
    assert reply.status == 200
    called = seen["messages"][1]["tool_calls"]
    assert [each["function"]["arguments"] for each in called] == ['{"a": 1}', '{"a']
    assert seen["messages"][1]["content"] == ""
    assert seen["messages"][2] == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    assert seen["tools"][0]["function"]["name"] == "add"
    assert "strict" not in seen["tools"][0]["function"]


ASKED = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function"}]}
ASKED["tool_calls"][0]["function"] = {"name": "f", "arguments": "{}"}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "1"}
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([USER, TOLD], "messages.[1].role", "must be a response to a preceding message"),
        ([USER, ASKED, TOLD | {"tool_call_id": "c2"}], "messages.[2].role", "preceding message"),
        ([ASKED, USER], "messages.[1].role", "did not have response messages: c1"),
        ([USER, ASKED], "messages.[1].role", "did not have response messages: c1"),
        ([ASKED, TOLD, USER, TOLD], "messages.[3].role", "preceding message"),
    ],
)
async def test_calls_and_results_must_belong_together(server, messages, param, words):
    reply = await server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, None)
    assert words in reply.error["message"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "array"}, "schema must be a JSON Schema of 'type: \"object\"', got 'type"),
        (
            {"properties": {"b": {"type": "array", "uniqueItems": True}}},
            "In context=('properties', 'b'), 'uniqueItems' is not permitted.",
        ),
        ({"properties": {"b": {"type": "text"}}}, "In context=('properties', 'b', 'type'), 'text'"),
        ({"required": ["z"]}, "In context=(), Extra required key 'z' supplied."),
    ],
)
async def test_a_bad_schema_of_a_function_is_named(speaking, parameters, message):
    server = await speaking("Hello")
    tool = {"type": "function", "function": {"name": "g", "strict": True, "parameters": parameters}}
    reply = await server.chat(tools=[STRICT, tool])
    assert reply.error["param"] == "tools[1].function.parameters"
    assert reply.error["code"] == "invalid_function_parameters"
    assert reply.error["message"].startswith(f"Invalid schema for function 'g': {message}")


async def test_schemas_of_functions_that_are_too_large_together_are_refused(speaking):
    server = await speaking("Hello")
    parameters = {"properties": {"a": {"enum": ["x" * 60_000]}}}
    tools = [
        {"type": "function", "function": {"name": f"f{at}", "parameters": parameters}}
        for at in range(6)
    ]
    assert (await server.chat(tools=tools[:4], tool_choice="required")).status == 200
    assert (await server.chat(tools=tools)).status == 200  # nothing is held to them
    reply = await server.chat(tools=tools, tool_choice="required")
    assert (reply.status, reply.error["param"]) == (400, "tools")
    assert "up to 'f4' (number 5 of 6) they have" in reply.error["message"]
    assert "of which 262144 are allowed" in reply.error["message"]


async def test_choices_that_are_too_large_together_are_refused(server):
    reply = await server.complete(structured_outputs={"choice": ["x" * 40_000, "y" * 30_000]})
    assert (reply.status, reply.error["param"]) == (400, "structured_outputs.choice")
    assert "70000 characters together, of which 65536 are allowed" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_the_engine_cannot_compile_is_the_clients_fault(start_server, stream):
    async def script(request):
        if request.sampling.grammar is not None:
            raise GrammarRejectedError("no token of the model fits the grammar")
        yield TextDelta(0, "", 1, FinishReason.STOP)

    server = await start_server(script=script)
    schema = {"name": "thing", "schema": {"type": "integer", "minimum": 2, "maximum": 1}}
    form = {"type": "json_schema", "json_schema": schema}
    reply = await server.chat(response_format=form, stream=stream)
    assert reply.status == 400
    assert reply.error["param"] == "response_format"
    assert reply.error["message"] == (
        "Invalid schema for response_format 'thing': no token of the model fits the grammar."
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_grammar_leaves_out_is_told_in_a_header(speaking, stream):
    server = await speaking("Hello")
    schema = {"properties": {"é": {"type": "array", "uniqueItems": True}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    told = "properties.?: 'uniqueItems' is not permitted"
    loose = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    for fields, expected in (
        ({"response_format": form}, told),
        ({"tools": [loose], "tool_choice": "required"}, "f.schema: 'not' is not permitted"),
        (
            {"tools": [loose], "response_format": form},
            f"f.schema: 'not' is not permitted; {told}",
        ),
        ({"response_format": {"type": "json_object"}}, None),
    ):
        reply = await server.chat(stream=stream, **fields)
        assert (reply.status, reply.headers.get("Schema-Not-Enforced")) == (200, expected)


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, ""),
        (
            {"structured_outputs": {"json": '{"type": "null", "title": "T"}'}},
            GrammarKind.JSON_SCHEMA,
            '{"type":"null"}',
        ),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "a+"),
        (
            {"structured_outputs": {"choice": ["ab", 'é"']}},
            GrammarKind.EBNF,
            'root ::= "ab" | "\\U000000e9\\U00000022"',
        ),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, GrammarKind.EBNF, 'root ::= "a"'),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_forms_of_answers_become_grammars(server, endpoint, fields, kind, source):
    assert (await getattr(server, endpoint)(**fields)).status == 200
    grammar = server.generator.requests[-1].sampling.grammar
    assert (grammar.kind, grammar.source) == (kind, source)


async def test_schemas_are_read_off_the_event_loop(server, monkeypatch):
    # 128 functions may have 64 KiB each.
    threads = []

    def noted(schema, **options):
        threads.append(threading.current_thread())
        return enforceable(schema, **options)

    monkeypatch.setattr(structured, "enforceable", noted)
    named = {"name": "a", "schema": {"type": "object"}}
    response_format = {"type": "json_schema", "json_schema": named}
    outputs = {"structured_outputs": {"json": {"type": "object"}}}
    assert (await server.chat("Hi", response_format=response_format)).status == 200
    assert (await server.complete("Hi", **outputs)).status == 200
    assert len(threads) == 2
    assert threading.current_thread() not in threads
