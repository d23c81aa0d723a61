"""Fields of vLLM, SGLang and llama.cpp over HTTP: honoured, refused by name, or without effect."""

import json

import pytest

from backend.scheduler.request import FinishReason, GrammarKind, TextDelta
from backend.server.chat import ChatRequest
from backend.server.completions import CompletionRequest
from backend.server.protocol import HARMLESS, REFUSED
from backend.server.protocol.responses import ResponsesRequest
from backend.server.tool_parsers import FORMATS

pytest_plugins = ["running_backend"]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ASK = ("chat", "complete", "respond")
SCHEMAS = (ChatRequest, CompletionRequest, ResponsesRequest)


def prompt_of(server):
    return "".join(map(chr, server.generator.requests[-1].prompt_tokens))


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("allow", [False, True])
async def test_an_unknown_field_is_refused_by_name_unless_it_is_allowed(start_server, ask, allow):
    server = await start_server(limits={"allow_unknown_fields": allow})
    reply = await getattr(server, ask)(something_new={"nested": [1]})
    if allow:
        assert reply.status == 200
        return
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == ("something_new", "unknown_parameter")
    assert "'something_new'" in reply.error["message"]
    assert "--allow-unknown-fields" in reply.error["message"]


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (ask, name)
        for ask, schema in zip(ASK, SCHEMAS, strict=True)
        for name in sorted(REFUSED.keys() - schema.model_fields.keys())
    ],
)
async def test_what_would_change_the_answer_is_refused_even_where_unknown_fields_are_allowed(
    start_server, ask, name
):
    server = await start_server(limits={"allow_unknown_fields": True})
    for neutral in (None, *REFUSED[name]):
        assert (await getattr(server, ask)(**{name: neutral})).status == 200
    reply = await getattr(server, ask)(**{name: {"another": ["value"]}})
    assert reply.status == 400
    assert reply.error["param"] == name


@pytest.mark.parametrize("ask", ASK)
async def test_what_changes_no_answer_is_taken(server, ask):
    """Those that a response repeats have OpenAI's types there."""
    typed = {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "store": True}
    typed |= {"prompt_cache_key": "k"}
    fields = {name: ["any", {"value": 1}] for name in HARMLESS} | typed
    assert (await getattr(server, ask)(**fields)).status == 200
    assert (await getattr(server, ask)(**dict.fromkeys(HARMLESS | {"new"}))).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True, "stream_options": {"new": 1}}, "stream_options.new"),
        ({"structured_outputs": {"regex": "a", "new": 1}}, "structured_outputs.new"),
    ],
)
async def test_unknown_fields_of_options_are_refused_too(server, fields, param):
    reply = await server.chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    fields[param.split(".")[0]]["new"] = None
    assert (await server.chat(**fields)).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize"])
async def test_other_endpoints_refuse_unknown_fields(server, path):
    reply = await server.post(path, {"model": "scripted", "new": 1})
    assert (reply.status, reply.error["param"]) == (400, "new")


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, None),
        ({"guided_json": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, None),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["a", "b"]}, GrammarKind.EBNF, 'root ::= "a" | "b"'),
        ({"guided_grammar": 'root ::= "x"'}, GrammarKind.EBNF, 'root ::= "x"'),
    ],
)
async def test_guided_decoding_is_what_structured_outputs_are(server, ask, fields, kind, source):
    [(name, value)] = fields.items()
    for asked in (fields, {"structured_outputs": {name.removeprefix("guided_"): value}}):
        assert (await getattr(server, ask)(**asked)).status == 200
    one, other = (request.sampling.grammar for request in server.generator.requests)
    assert one == other
    assert one.kind is kind
    assert source in (None, one.source)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 1}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
async def test_guided_decoding_that_is_refused(server, fields, param):
    reply = await server.chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert f"'{param}'" in reply.error["message"]


@pytest.mark.parametrize(
    ("ask", "around"),
    [
        ("chat", lambda form: {"response_format": form}),
        ("respond", lambda form: {"text": {"format": form}}),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
async def test_a_schema_beside_json_object_is_held_to_and_no_other_field_is_dropped(
    start_server, ask, around, allow
):
    server = await start_server(limits={"allow_unknown_fields": allow})
    form = {"type": "json_object", "schema": SCHEMA}
    assert (await getattr(server, ask)(**around(form))).status == 200
    grammar = server.generator.requests[-1].sampling.grammar
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(grammar.source)["properties"] == SCHEMA["properties"]
    [place] = [name + ".format" * (name == "text") for name in around({})]
    for wrong in ({"type": "text", "schema": {}}, {"type": "text", "grammar": "a"}):
        reply = await getattr(server, ask)(**around(wrong))
        assert (reply.status, reply.error["param"]) == (400, f"{place}.{list(wrong)[1]}")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"add_special_tokens": False, "stop": []}),
        ("completions", {"add_special_tokens": True, "stop": [], "reasoning_effort": "none"}),
        ("responses", {"add_special_tokens": False}),
        ("embeddings", {"add_special_tokens": True, "truncate_prompt_tokens": -1}),
    ],
)
async def test_what_this_server_does_anyway_may_be_said(server, path, fields):
    asked = {"messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a"}
    name = {"chat/completions": "messages", "completions": "prompt"}.get(path, "input")
    body = {"model": "scripted", name: asked[name]}
    reply = await server.post(f"/v1/{path}", body | fields)
    if path == "embeddings":  # this model embeds nothing: the fields are not what is wrong
        assert (reply.status, reply.error["param"]) == (404, "model")
    else:
        assert reply.status == 200
    opposite = {"add_special_tokens": not fields["add_special_tokens"]}
    reply = await server.post(f"/v1/{path}", body | opposite)
    if path == "completions":
        assert reply.status == 200
    else:
        assert (reply.status, reply.error["param"]) == (400, "add_special_tokens")


@pytest.mark.parametrize("guided", [{"guided_choice": ["yes", "no"]}, {"guided_regex": "yes|no"}])
async def test_the_real_engine_holds_to_a_guided_choice(real_server, guided):
    choices = (await real_server.chat(n=4, max_tokens=20, **guided)).json["choices"]
    assert {choice["message"]["content"] for choice in choices} <= {"yes", "no"}


@pytest.mark.parametrize(
    ("number", "max_tokens", "kept"),
    [(5, 3, 5), (1, None, 1), (500, 3, 98), (-1, 30, 70), (-1, None, 99), (None, 3, None)],
)
@pytest.mark.parametrize("ask", ["chat", "complete"])
async def test_a_prompt_is_cut_to_its_last_tokens(server, ask, number, max_tokens, kept):
    """The context has 100 tokens; what is kept and does not fit is refused as before."""
    letters = "".join(chr(200 + at) for at in range(98 if number == 500 else 150))
    letters = letters[6:] if ask == "chat" and number == 500 else letters
    reply = await getattr(server, ask)(
        letters, truncate_prompt_tokens=number, **({"max_tokens": max_tokens} if max_tokens else {})
    )
    if kept is None:
        assert reply.error["code"] == "context_length_exceeded"
        return
    assert reply.status == 200
    kept = 84 if ask == "complete" and (number, max_tokens) == (-1, None) else kept
    whole = letters if ask == "complete" else "user:" + letters
    assert prompt_of(server) == whole[-kept:]
    assert reply.json["usage"]["prompt_tokens"] == len(whole[-kept:])


async def test_an_echo_of_a_cut_prompt_is_what_the_model_read(server):
    reply = await server.complete(["abcd", "efg"], truncate_prompt_tokens=2, echo=True)
    assert [each["text"] for each in reply.json["choices"]] == ["cdHello world", "fgHello world"]


@pytest.mark.parametrize("number", [0, -2, "5", 2.5])
async def test_a_number_of_prompt_tokens_that_is_none(server, number):
    reply = await server.chat(truncate_prompt_tokens=number)
    assert (reply.status, reply.error["param"]) == (400, "truncate_prompt_tokens")


def told_to_template(server):
    """What the template is given from now on."""
    told = []

    def template(messages, **options):
        told.append(options)
        return "x"

    server.model.require().encoder.apply_chat_template = template
    return told


@pytest.mark.parametrize("ask", ["chat", "respond", "tokenize"])
async def test_variables_reach_the_chat_template(server, ask):
    told = told_to_template(server)
    variables = {"enable_thinking": False, "nested": {"a": [1]}}
    if ask == "tokenize":
        fields = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": variables}
        assert (await server.post("/tokenize", fields)).json["count"] == 1
    else:
        assert (await getattr(server, ask)(chat_template_kwargs=variables)).status == 200
    assert told[0]["variables"] == variables


@pytest.mark.parametrize(
    ("fields", "adds", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False, "add_generation_prompt": True}, True, False),
    ],
)
async def test_where_the_rendered_conversation_ends(server, fields, adds, continues):
    told = told_to_template(server)
    assert (await server.chat(**fields)).status == 200
    assert told[0]["add_generation_prompt"] is adds
    assert told[0]["continue_final_message"] is continues


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
    ],
)
async def test_words_to_the_template_that_are_refused(server, fields, param):
    reply = await server.chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_message_that_ends_in_calls_cannot_be_continued(start_server):
    server = await start_server(tools=FORMATS["qwen"])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
    ]
    body = {"model": "scripted", "messages": messages, "continue_final_message": True}
    assert (await server.post("/v1/chat/completions", body)).status == 200
    messages.pop()
    assert (await server.post("/v1/chat/completions", body)).status == 400


@pytest.mark.parametrize("ask", ["chat", "complete"])
async def test_usage_comes_with_every_chunk_where_it_is_asked_for(start_server, ask):
    async def script(request):
        yield TextDelta(0, "a", 1)
        yield TextDelta(0, "b", 2)
        yield TextDelta(0, "", 3, FinishReason.LENGTH)

    server = await start_server(script=script)
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await getattr(server, ask)(stream=True, stream_options=options)).events
    *chunks, last = [event["usage"] for event in events]
    counts = [usage["completion_tokens"] for usage in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 3)
    assert last == chunks[-1]
    assert all(usage["prompt_tokens"] == chunks[0]["prompt_tokens"] for usage in chunks)


async def test_usage_of_every_chunk_needs_usage(server):
    reply = await server.chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert reply.status == 400
    assert reply.error["param"] == "stream_options.continuous_usage_stats"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("name", ["seed", "max_tokens"])
async def test_integers_beyond_64_bits_are_called_integers(server, name, number):
    body = b'{"model":"scripted","messages":[{"role":"user","content":"a"}],"%s":%d}'
    reply = await server.request("POST", "/v1/chat/completions", body % (name.encode(), number))
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == (
        name,
        "integer_above_max_value" if number > 0 else "integer_below_min_value",
    )
    assert "decimal" not in reply.error["message"]


async def test_a_long_name_is_not_repeated_whole(server):
    reply = await server.chat(**{"x" * 100_000: 1})
    assert reply.status == 400
    assert len(reply.raw) < 1_000
