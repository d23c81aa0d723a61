"""A request to /v1/messages as a request for chat completions."""

import pytest

from gateway.protocol.anthropic.request import UntranslatableError, to_chat


def chat(*messages, **fields):
    body = {"model": "m", "max_tokens": 5, "messages": list(messages), **fields}
    return to_chat(body)


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def test_a_plain_question_stays_a_plain_question():
    assert chat(
        {"role": "user", "content": "Hi"}, temperature=0, top_k=3, stop_sequences=["."]
    ) == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0,
        "top_k": 3,
        "messages": [{"role": "user", "content": "Hi"}],
        "stop": ["."],
    }


@pytest.mark.parametrize("model", ["gpt-5-mini", "o3", "openai/o4-mini"])
def test_a_reasoning_model_gets_the_field_that_it_takes(model):
    body = {"model": model, "max_tokens": 5, "messages": [user(text("Hi"))]}
    sent = to_chat(body)
    assert sent["max_completion_tokens"] == 5
    assert "max_tokens" not in sent


@pytest.mark.parametrize(
    ("system", "sent"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief.", cache_control={"x": 1}), text("Be kind.")], "Be brief.\n\nBe kind."),
        ([text("x-anthropic-billing-header: cch=1"), text("Be kind.")], "Be kind."),
    ],
)
def test_the_system_prompt_is_the_first_message(system, sent):
    assert chat(user(text("Hi")), system=system)["messages"] == [
        {"role": "system", "content": sent},
        {"role": "user", "content": "Hi"},
    ]


def turn(role, content):
    return {"role": role, "content": content}


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "a dog"}


@pytest.mark.parametrize(
    ("turns", "sent"),
    [
        ([turn("system", "S"), user(text("U"))], [("system", "P\n\nS"), ("user", "U")]),
        ([user(text("U")), turn("system", "S")], [("system", "P"), ("user", "U\n\nS")]),
        (
            [user(text("U")), assistant(text("A")), turn("system", "S"), user(text("V"))],
            [("system", "P"), ("user", "U"), ("assistant", "A"), ("user", "S\n\nV")],
        ),
        (
            [assistant(CALL), turn("system", "S"), user(RESULT, text("V"))],
            [("system", "P"), ("assistant", None), ("tool", "a dog"), ("user", "S\n\nV")],
        ),
        (
            [assistant(CALL), user(RESULT), turn("system", "S"), turn("system", "T")],
            [("system", "P"), ("assistant", None), ("tool", "a dog"), ("user", "S\n\nT")],
        ),
        (
            [assistant(text("A")), turn("system", "S"), assistant(text("B")), user(text("U"))],
            [
                *(("system", "P"), ("assistant", "A"), ("user", "S")),
                *(("assistant", "B"), ("user", "U")),
            ],
        ),
        (
            [user(text("U"), IMAGE), turn("system", "S")],
            [
                ("system", "P"),
                (
                    "user",
                    [
                        {"type": "text", "text": "U"},
                        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                        {"type": "text", "text": "S"},
                    ],
                ),
            ],
        ),
    ],
)
def test_a_system_turn_in_mid_conversation_is_folded_into_a_neighbour(turns, sent):
    messages = chat(*turns, system="P")["messages"]
    assert [(each["role"], each["content"]) for each in messages] == sent


def test_a_system_turn_alone_is_the_system_message():
    messages = chat(turn("system", "S"), user(text("U")))["messages"]
    assert messages == [turn("system", "S"), turn("user", "U")]


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "max"}}, "high"),
        ({"output_config": {"effort": "odd"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8_000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "high"),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 31_999},
                "output_config": {"effort": "medium"},
            },
            "medium",
        ),
        ({"thinking": {"type": "disabled"}}, None),
        ({"output_config": {"effort": "low"}, "reasoning_effort": "minimal"}, "minimal"),
    ],
)
def test_effort_and_a_budget_of_thinking_are_a_reasoning_effort(fields, effort):
    assert chat(user(text("Hi")), **fields).get("reasoning_effort") == effort


def test_a_last_turn_of_the_assistant_is_continued():
    sent = chat(user(text("Hi")), assistant(text("{")))
    assert sent["messages"][-1] == turn("assistant", "{")
    assert sent["continue_final_message"] is True
    assert sent["add_generation_prompt"] is False


@pytest.mark.parametrize("last", [assistant(CALL), user(text("Hi")), user(RESULT)])
def test_no_other_last_turn_is_continued(last):
    assert "continue_final_message" not in chat(user(text("Hi")), last)


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AAA"}, "data:image/png;base64,AAA"),
        ({"type": "url", "url": "https://example.org/a.png"}, "https://example.org/a.png"),
    ],
)
def test_an_image_is_a_part(source, url):
    [turn] = chat(user(text("What is it?"), {"type": "image", "source": source}))["messages"]
    assert turn["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}},
            {"type": "text", "text": "T\nD"},
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [text("D"), text("E")]}},
            {"type": "text", "text": "D\nE"},
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "A"},
            },
            {
                "type": "file",
                "file": {
                    "filename": "document.pdf",
                    "file_data": "data:application/pdf;base64,A",
                },
            },
        ),
        (
            {"type": "search_result", "title": "T", "source": "S", "content": [text("D")]},
            {"type": "text", "text": "T\nS\nD"},
        ),
    ],
)
def test_a_document_is_a_part(block, part):
    [turn] = chat(user(block, text("And?")))["messages"]
    assert turn["content"][0] == part


def test_calls_and_results_follow_each_other():
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "é"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a dog"}
    turns = chat(
        assistant({"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("I look."), call),
        user(result, text("And now?")),
    )["messages"]
    function = {"name": "look", "arguments": '{"at":"é"}'}
    assert turns == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a dog"},
        {"role": "user", "content": "And now?"},
    ]


def test_a_call_without_text_has_no_content():
    [turn] = chat(assistant({"type": "tool_use", "id": "t", "name": "f", "input": {}}))["messages"]
    assert turn["content"] is None


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        ({}, ""),
        ({"content": "it broke", "is_error": True}, "Error:\nit broke"),
        ({"content": [text("a"), text("b")]}, "a\nb"),
    ],
)
def test_a_result_is_one_text(more, sent):
    result = {"type": "tool_result", "tool_use_id": "t", **more}
    assert chat(user(result))["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": sent}
    ]


def test_an_image_in_a_result_comes_in_the_next_message():
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("here"), image]}
    tool, turn = chat(user(result))["messages"]
    assert tool["content"].startswith("here\n")
    assert [part["type"] for part in turn["content"]] == ["text", "image_url"]


def test_tools_become_functions():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    tool = {"name": "f", "description": "d", "input_schema": schema, "cache_control": {"x": 1}}
    sent = chat(user(text("Hi")), tools=[tool, {**tool, "type": "custom", "strict": True}])
    function = {"name": "f", "description": "d", "parameters": schema}
    assert sent["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": {**function, "strict": True}},
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_the_choice_of_tools(choice, sent):
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    body = chat(user(text("Hi")), tools=tools, tool_choice=choice)
    assert {name: body[name] for name in sent} == sent


def test_a_schema_for_the_answer_is_a_response_format():
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    sent = chat(user(text("Hi")), output_config=form)["response_format"]
    assert sent["json_schema"]["schema"] == {"type": "object"}


def test_what_only_anthropic_has_is_left_out_and_what_other_servers_have_stays():
    sent = chat(
        user(text("Hi")),
        metadata={"user_id": "u"},
        thinking={"type": "adaptive"},
        context_management={"edits": []},
        cache_salt="s",
        seed=7,
    )
    assert sent.keys() == {"model", "max_tokens", "messages", "cache_salt", "seed"}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"),
        ({"messages": [user({"type": "container_upload"})]}, "messages[0].content[0]"),
        ({"messages": [user({"type": "image", "source": {}})]}, "messages[0].content[0]"),
        ({"messages": [assistant({"type": "server_tool_use"})]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
    ],
)
def test_what_has_no_counterpart_is_named(fields, place):
    with pytest.raises(UntranslatableError) as raised:
        chat(user(text("Hi")), **fields) if "messages" not in fields else to_chat(
            {"model": "m", **fields}
        )
    assert raised.value.param == place
    assert place in str(raised.value)
