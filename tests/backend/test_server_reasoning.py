"""Reasoning over HTTP: told apart from the answer, whole and streamed, in chat and responses."""

import pytest
from tool_templates import with_template

from backend.app import create_app
from backend.scheduler.request import (
    FinishReason,
    ReasoningSpan,
    TextDelta,
    TextForm,
    TokenLogprobs,
)
from backend.server import tool_parsers as formats
from backend.server.tool_parsers.reasoning import (
    FORMATS,
    TAGS,
    PromptEnd,
    format_of,
    prompt_end,
)
from backend.settings import Settings

pytest_plugins = ["running_backend"]

TOOL = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def saying(*pieces, reason=FinishReason.STOP):
    """Every choice says them; choice 1 says them in capitals."""

    async def script(request):
        for number, piece in enumerate(pieces, start=1):
            for index in range(request.n):
                said = piece.replace("why", "WHY") if index else piece
                told = ()
                if request.sampling.logprobs is not None:
                    offset = sum(map(len, pieces[: number - 1]))
                    told = (TokenLogprobs(ord(piece[0]), -0.5, (), offset),)
                yield TextDelta(index, said, number, None, told)
        for index in range(request.n):
            yield TextDelta(index, "", len(pieces) + 1, reason)

    return script


@pytest.fixture
def thinking(start_server):
    async def start(*pieces, form="qwen3", template="", **options):
        server = await start_server(
            script=saying(*pieces, **options),
            reasoning=FORMATS[form],
            tools=formats.FORMATS["qwen"],
        )
        encoder = server.model.require().encoder
        render = encoder.apply_chat_template
        encoder.apply_chat_template = lambda *given, **more: render(*given, **more) + template
        return server

    return start


def added_up(reply, choices=1):
    """The messages that the deltas of a stream add up to, with their finish reasons."""
    said = [{"reasoning_content": "", "content": ""} for _ in range(choices)]
    for event in reply.events:
        for choice in event["choices"]:
            for name in ("reasoning_content", "content"):
                said[choice["index"]][name] += choice["delta"].get(name) or ""
            if choice["finish_reason"]:
                said[choice["index"]]["reason"] = choice["finish_reason"]
    return said


async def both(server, **fields):
    """What a plain reply and a stream say, which must be the same."""
    choices = fields.get("n", 1)
    plain = (await server.chat(**fields)).json
    said = [
        {
            "reasoning_content": choice["message"].get("reasoning_content") or "",
            "content": choice["message"]["content"] or "",
            "reason": choice["finish_reason"],
        }
        for choice in plain["choices"]
    ]
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await server.chat(**fields, **usage)
    assert added_up(stream, choices) == said
    assert stream.events[-1]["usage"] == plain["usage"]
    return [tuple(each.values()) for each in said]


@pytest.mark.parametrize(
    ("form", "template", "pieces", "expected"),
    [
        ("qwen3", "", ("<think>\nwhy\n</think>\n\nso",), ("why", "so")),
        ("qwen3", "", tuple("<think>\nwhy\n</think>\n\nso"), ("why", "so")),
        ("qwen3", "", ("\n<thi", "nk>", "why</th", "ink", ">so"), ("why", "so")),
        ("qwen3", "<think>\n", ("why\n", "</think>", "so"), ("why", "so")),
        ("qwen3", "<think>\n", ("<think>why", "</think>so"), ("why", "so")),
        ("qwen3", "<think>\n\n</think>\n\n", ("so",), ("", "so")),
        ("qwen3", "", ("so <think>not</think>",), ("", "so <think>not</think>")),
        ("qwen3", "", ("so </think>",), ("", "so </think>")),
        ("deepseek_r1", "<think>\n", ("why", "</think>\n\nso"), ("why", "so")),
        ("deepseek_r1", "", ("why", "</think>\n\nso"), ("why", "so")),
        ("deepseek_r1", "", ("<think>\nwhy", "</think>\n\nso"), ("why", "so")),
        ("deepseek_r1", "</think>", ("so",), ("", "so")),
    ],
)
async def test_reasoning_is_told_apart(thinking, form, template, pieces, expected):
    server = await thinking(*pieces, form=form, template=template)
    assert await both(server) == [(*expected, "stop")]


@pytest.mark.parametrize(
    ("fields", "template", "expected"),
    [
        ({}, "", TextForm(TAGS, ReasoningSpan(*TAGS, begun=False))),
        ({}, "<think>\n", TextForm(TAGS, ReasoningSpan(*TAGS, begun=True))),
        (
            {"tools": [TOOL]},
            "",
            TextForm((*TAGS, "<tool_call>", "</tool_call>"), ReasoningSpan(*TAGS, begun=False)),
        ),
        ({"response_format": {"type": "json_object"}}, "", TextForm()),
    ],
)
async def test_tokens_become_text_as_the_parsers_need_it(thinking, fields, template, expected):
    server = await thinking("{}", template=template)
    assert (await server.chat(**fields)).status == 200
    assert server.generator.requests[-1].text == expected


async def test_a_continued_message_and_a_completion_continue_the_prompts_text(start_server):
    server = await start_server()
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    await server.chat(messages=messages, **options)
    await server.complete(prompt="a")
    await server.chat()
    assert [request.text.continues for request in server.generator.requests] == [True, True, False]


async def test_each_choice_is_read_apart(thinking):
    server = await thinking("<think>", "why", "</think>so why")
    one, two = await both(server, n=2)
    assert one == ("why", "so why", "stop")
    assert two == ("WHY", "so WHY", "stop")


@pytest.mark.parametrize(
    ("pieces", "reasoning"),
    [(("<think>why", " not"), "why not"), (("<think>why</th",), "why</th"), (("<think>\n",), "")],
)
async def test_reasoning_that_never_ends_is_no_answer(thinking, pieces, reasoning):
    server = await thinking(*pieces, reason=FinishReason.LENGTH)
    assert await both(server) == [(reasoning, "", "length")]
    message = (await server.chat()).json["choices"][0]["message"]
    assert message.get("reasoning_content", "") == reasoning
    assert message["content"] is None or not reasoning


async def test_deltas_have_one_of_the_two_each(thinking):
    server = await thinking("<think>wh", "y</think>s", "o")
    deltas = [event["choices"][0]["delta"] for event in (await server.chat(stream=True)).events]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "wh"},
        {"reasoning_content": "y"},
        {"content": "s"},
        {"content": "o"},
        {},
    ]


async def test_calls_are_read_behind_the_reasoning_and_not_within(thinking):
    server = await thinking(f"<think>why {CALL}</think>\n\n", CALL)
    plain = (await server.chat(tools=[TOOL])).json["choices"][0]
    assert plain["message"]["reasoning_content"] == f"why {CALL}"
    assert plain["message"]["content"] is None
    [call] = plain["message"]["tool_calls"]
    assert (call["function"]["arguments"], plain["finish_reason"]) == ('{"a": 1}', "tool_calls")
    events = (await server.chat(tools=[TOOL], stream=True)).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[1] == {"reasoning_content": f"why {CALL}"}
    assert deltas[2]["tool_calls"][0]["function"]["name"] == "f"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"guided_choice": ["{}"]},
    ],
)
async def test_under_a_grammar_all_is_the_answer(thinking, fields):
    server = await thinking("{}", form="deepseek_r1", template="<think>\n")
    assert await both(server, **fields) == [("", "{}", "stop")]


async def test_no_log_probability_is_lost(thinking):
    server = await thinking("<think>", "why", "</th", "ink>", "\n", "so", " it is")
    events = (await server.chat(stream=True, logprobs=True)).events
    told = [event["choices"][0]["logprobs"] for event in events]
    assert [each["token"] for one in told if one for each in one["content"]] == [*"<w<i\ns "]


async def test_completions_are_not_read(thinking):
    server = await thinking("<think>why</think>so")
    assert (await server.complete()).json["choices"][0]["text"] == "<think>why</think>so"


async def test_a_response_has_an_item_of_reasoning(thinking):
    server = await thinking("<think>wh", "y</think>\n", "so")
    logprobs = {"include": ["message.output_text.logprobs"]}
    response = (await server.respond(**logprobs)).json
    reasoning, message = response["output"]
    assert reasoning["id"].startswith("rs_")
    assert (reasoning["type"], reasoning["status"]) == ("reasoning", "completed")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "so"
    assert [each["token"] for each in message["content"][0]["logprobs"]] == ["s"]
    events = (await server.respond(**logprobs, stream=True)).typed_events
    assert [event["type"] for event in events[2:8]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
    ]
    said = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert said == ["wh", "y", "so"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_a_response_that_is_cut_in_its_reasoning(thinking):
    server = await thinking("<think>why", reason=FinishReason.LENGTH)
    response = (await server.respond()).json
    [reasoning] = response["output"]
    assert (response["status"], reasoning["status"]) == ("incomplete", "incomplete")
    assert reasoning["content"][0]["text"] == "why"
    events = (await server.respond(stream=True)).typed_events
    assert events[-1]["response"]["output"][0]["content"] == reasoning["content"]


async def test_reasoning_that_is_sent_back_reaches_the_template(server):
    seen = []
    server.model.require().encoder.apply_chat_template = lambda messages, **_: (
        seen.append(messages) or "x"
    )
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        {"role": "user", "content": "c"},
    ]
    await server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
    assert seen[0][1] == {"role": "assistant", "content": "b", "reasoning_content": "why"}


@pytest.mark.parametrize(
    ("text", "continued", "expected"),
    [
        ("user: hi\nassistant: ", 0, PromptEnd.PLAIN),
        ("user: what is <think>?\nassistant: ", 0, PromptEnd.PLAIN),
        ("assistant: <think>\n", 0, PromptEnd.OPEN),
        ("assistant: <think>\n\n</think>\n\n", 0, PromptEnd.CLOSED),
        ("assistant: <think>\nwell", len("<think>\nwell"), PromptEnd.OPEN),
        ("assistant: <think>\nwell", len("well"), PromptEnd.OPEN),
        ("assistant: <think>\n\nHm", len("Hm"), PromptEnd.OPEN),
        ("assistant: <think>\n\n</think>\n\nParis", len("Paris"), PromptEnd.CLOSED),
        ("assistant: <think>a</think>well", len("<think>a</think>well"), PromptEnd.CLOSED),
        ("user: <think>\nassistant: well, I said", len("well, I said"), PromptEnd.CLOSED),
    ],
)
def test_how_a_prompt_ends(text, continued, expected):
    assert prompt_end(text, continued) is expected


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ '<think>\\n\\n</think>\\n\\n' }}", "qwen3"),
        ("{{ content.split('</think>')[-1] }}", "qwen3"),
        ("{{ '<|assistant|>\\n<think>' }}{{ '</think>' }}", "qwen3"),
        (
            "{{ '<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}></think>' }}",
            "deepseek_r1",
        ),
        ("{{ '<|im_start|>assistant' }}", None),
        ("", None),
    ],
)
def test_the_format_is_known_by_the_template(template, form):
    assert format_of(template) is (form and FORMATS[form])


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"served_model_name": "qwq-deepseek-r1-qwen3"}, None),
        ({"reasoning_parser": "none"}, None),
        ({"reasoning_parser": "deepseek_r1"}, "deepseek_r1"),
        ({}, None),
    ],
)
async def test_the_setting_decides(serve_application, chat_model, settings, form):
    server = await serve_application(
        create_app(Settings(str(chat_model), device="cpu", **settings))
    )
    await server.model.load()
    assert server.model.require().reasoning_format is (form and FORMATS[form])


async def test_a_qwen_template_can_be_told_not_to_think(serve_application, chat_model, tmp_path):
    """The real engine renders the variable: the prompt closes the reasoning before it begins."""
    directory = with_template(chat_model, tmp_path / "qwen3", "qwen")
    server = await serve_application(create_app(Settings(str(directory), device="cpu")))
    await server.model.load()
    counts = []
    for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
        reply = await server.chat(max_tokens=1, chat_template_kwargs=variables)
        counts.append(reply.json["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]
    assert counts[2] - counts[0] == len("<think>\n\n</think>\n\n")
