"""Reasoning over HTTP: told apart from the answer, whole and streamed, in chat and responses."""

import orjson
import pytest
from tool_templates import with_template

from backend.app import create_app
from backend.scheduler.request import (
    FinishReason,
    GrammarKind,
    ReasoningSpan,
    TextDelta,
    TextForm,
    TokenDelta,
    TokenLogprobs,
)
from backend.scheduler.stopping import Choice
from backend.server import tool_parsers as formats
from backend.server.tool_parsers.reasoning import FORMATS, PromptEnd, format_of
from backend.server.tool_parsers.streaming_json import Content, Reasoning, joined
from backend.settings import Settings

pytest_plugins = ["running_backend"]

TOOL = {"type": "function", "function": {"name": "f"}}
TAGS = ("<think>", "</think>")
SPAN = (("<think>",), (("</think>",),))
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
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
        ({}, "", TextForm(TAGS, ReasoningSpan(*SPAN, begun=False))),
        ({}, "<think>\n", TextForm(TAGS, ReasoningSpan(*SPAN, begun=True))),
        (
            {"tools": [TOOL]},
            "",
            TextForm((*TAGS, "<tool_call>", "</tool_call>"), ReasoningSpan(*SPAN, begun=False)),
        ),
        (
            {"response_format": {"type": "json_object"}},
            "",
            TextForm(TAGS, ReasoningSpan(*SPAN, begun=False)),
        ),
        ({"response_format": {"type": "json_object"}}, "<think>\n\n</think>\n\n", TextForm()),
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
    assert message["content"] is None


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
async def test_where_thinking_is_off_a_grammar_holds_at_once(thinking, fields):
    server = await thinking("{}", form="deepseek_r1", template="<think></think>\n")
    assert await both(server, **fields) == [("", "{}", "stop")]
    assert server.generator.requests[-1].sampling.grammar.before == ""


@pytest.mark.parametrize(
    ("form", "template", "fields", "kind", "before", "passing"),
    [
        (
            "qwen3",
            "",
            {"response_format": {"type": "json_object"}},
            GrammarKind.JSON_OBJECT,
            [("optional", "<think>", ["</think>"])],
            "<think></think>\n\n",
        ),
        (
            "deepseek_r1",
            "<think>\n",
            {"guided_regex": "a"},
            GrammarKind.REGEX,
            [("tag", "", ["</think>"]), "regex"],
            "</think>\n\n",
        ),
        (
            "harmony",
            "<|start|>assistant",
            {"guided_regex": "a"},
            GrammarKind.REGEX,
            [("optional", "<|channel|>analysis<|message|>", ["<|end|>"]), "const_string"],
            f"{ANALYSIS}{NEXT}{FINAL}",
        ),
        (
            "qwen3",
            "<think>\n",
            {"tools": [TOOL], "tool_choice": "required"},
            GrammarKind.STRUCTURE,
            [("tag", "", ["</think>"]), "regex"],
            "</think>\n\n",
        ),
    ],
)
async def test_a_grammar_holds_behind_the_reasoning(
    thinking, form, template, fields, *, kind, before, passing
):
    server = await thinking("<think>why</think>{}", form=form, template=template)
    await server.chat(**fields)
    grammar = server.generator.requests[-1].sampling.grammar
    found = []
    for each in orjson.loads(grammar.before):
        tag = each["content"]["elements"][0] if each["type"] == "optional" else each
        found.append((each["type"], tag["begin"], tag["end"]) if "end" in tag else each["type"])
    assert (grammar.kind, found, grammar.passing) == (kind, before, passing)
    assert set(FORMATS[form].markup) <= set(grammar.markup)


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


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_that_is_sent_back_reaches_the_template(server, name):
    seen = []
    server.model.require().encoder.apply_chat_template = lambda messages, **_: (
        seen.append(messages) or "x"
    )
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", name: "why"},
        {"role": "user", "content": "c"},
    ]
    await server.post("/v1/chat/completions", {"model": "scripted", "messages": messages})
    told = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "why")
    assert seen[0][1] == {"role": "assistant", "content": "b", **told}


async def test_reasoning_of_an_earlier_response_reaches_the_template(server):
    seen = []
    server.model.require().encoder.apply_chat_template = lambda messages, **_: (
        seen.extend(messages) or "x"
    )
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}]}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "so"}
    said = {"role": "assistant", "content": "b"}
    given = [{"role": "user", "content": "a"}, thought, call, output, thought, said, thought]
    assert (await server.respond([*given, {"role": "user", "content": "c"}])).status == 200
    thoughts = [each.get("thinking") for each in seen]
    assert thoughts == [None, "why", None, "why", None]


@pytest.mark.parametrize(
    ("effort", "variables", "expected"),
    [
        (None, {}, {}),
        ("high", {}, {"reasoning_effort": "high"}),
        ("low", {"reasoning_effort": "max"}, {"reasoning_effort": "max"}),
        (
            "none",
            {"thinking": 1},
            {"reasoning_effort": "none", "enable_thinking": False, "thinking": 1},
        ),
    ],
)
async def test_the_effort_reaches_the_template(server, effort, variables, expected):
    seen = []
    server.model.require().encoder.apply_chat_template = lambda _, variables, **__: (
        seen.append(dict(variables)) or "x"
    )
    await server.chat(reasoning_effort=effort, chat_template_kwargs=variables)
    reply = await server.respond(reasoning={"effort": effort}, chat_template_kwargs=variables)
    assert seen == [expected, expected]
    assert reply.json["reasoning"]["effort"] == effort


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
    assert FORMATS["qwen3"].prompt_end(text, continued) is expected


THINKS = "{{ '<think>' + content + '</think>' }}"
DEEPSEEK = THINKS + "<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}>"
FORMS = {  # a chat template's text, what it writes last, what the model says; reasoning, answer
    "Qwen3": (THINKS, "", "<think>\nwhy\n</think>\n\nso", "why", "so"),
    "opened": (THINKS, "<think>\n", "why\n</think>\n\nso", "why", "so"),
    "off": (THINKS, "<think>\n\n</think>\n\n", "so", "", "so"),
    "no tag": (THINKS, "", "so < thin", "", "so < thin"),
    "Hunyuan": (
        f"{THINKS}<answer>",
        "",
        "<think>\nwhy\n</think>\n<answer>\nso </answer> it\n</answer>\n",
        "why",
        "so </answer> it",
    ),
    "Hunyuan off": (f"{THINKS}<answer>", "<think></think>", "\n<answer>so</answer>", "", "so"),
    "Granite 3.3": (
        "within <think></think>, then <response></response>",
        "",
        "<think>why</think><response>so</response>",
        "why",
        "so",
    ),
    "Granite 3.2": (
        "after 'Here is my thought process:' and 'Here is my response:'",
        "",
        "Here is my thought process:\n\nwhy\n\nHere's my response: so",
        "why",
        "so",
    ),
    "Seed": ("</seed:think>", "", "<seed:think>\nwhy</seed:think>\nso", "why", "so"),
    "Command": (
        "<|START_THINKING|>{{ t }}<|END_THINKING|>",
        "<|START_THINKING|>",
        "why<|END_THINKING|>so",
        "why",
        "so",
    ),
    "Magistral": ("[THINK]{{ t }}[/THINK]", "", "[THINK]why[/THINK]so", "why", "so"),
    "gpt-oss": (ANALYSIS, "", f"{ANALYSIS}why{NEXT}{FINAL}so", "why", "so"),
    "gpt-oss says JSON": (
        ANALYSIS,
        "",
        f"{ANALYSIS}why{NEXT}<|channel|>final <|constrain|>json<|message|>so",
        "why",
        "so",
    ),
    "gpt-oss twice": (
        ANALYSIS,
        "",
        f"{ANALYSIS}wh{NEXT}{ANALYSIS}y{NEXT}{FINAL}so",
        "wh\ny",
        "so",
    ),
    "gpt-oss at once": (ANALYSIS, "", f"{FINAL}so", "", "so"),
    "gpt-oss opened": (ANALYSIS, ANALYSIS, "why<|end|>", "why", ""),
    "gpt-oss closed": (ANALYSIS, FINAL, "so", "", "so"),
    "gpt-oss plain": (ANALYSIS, "", "so", "", "so"),
    "gpt-oss cut": (ANALYSIS, "", f"{ANALYSIS}why<|end|><|start|>assi", "why", ""),
    "DeepSeek V3.1": (DEEPSEEK, "<think>", "why</think>so", "why", "so"),
    "DeepSeek V3.1 off": (DEEPSEEK, "</think>", "so", "", "so"),
    "DeepSeek R1": (DEEPSEEK, "", "why\n</think>\n\nso", "why", "so"),
}


def through_a_choice(said):
    """A token for each character, as the engine's client would read them."""

    class Characters:
        push = staticmethod(chr)
        finish = str

    async def script(request):
        choice = Choice(0, request.sampling.stop, Characters(), reasoning=request.text.reasoning)
        for place, character in enumerate(said):
            last = place == len(said) - 1
            tokens = TokenDelta(0, (ord(character),), (), FinishReason.LENGTH if last else None)
            if (delta := choice.push(tokens)) is not None:
                yield delta
                if delta.finish_reason is not None:
                    return

    return script


@pytest.mark.parametrize("name", list(FORMS))
async def test_each_format_is_read_by_its_template(start_server, name):
    template, prompt, said, reasoning, answer = FORMS[name]
    form = format_of(template)
    end = form.prompt_end("user: hi\n" + prompt, 0)
    expected = [Reasoning(reasoning)] * bool(reasoning) + [Content(answer)] * bool(answer)
    cuts = [[said[:cut], said[cut:]] for cut in range(len(said))]
    for pieces in (*cuts, list(said)):
        parser = form.parser(end, None)
        events = [event for piece in pieces for event in parser.push(piece)]
        assert joined([*events, *parser.finish()]) == expected, pieces
    server = await start_server(script=through_a_choice(said), reasoning=form)
    server.model.require().encoder.apply_chat_template = lambda *_, **__: "hi\n" + prompt
    assert await both(server, stop=["y", "\n\n"]) == [(reasoning, answer, "length")]
    usage = (await server.chat()).json["usage"]["completion_tokens_details"]
    assert (usage["reasoning_tokens"] > 0) is bool(reasoning or name == "gpt-oss at once")


def test_messages_of_calls_reach_the_parser_of_calls():
    """They are left as they are, wherever the text is cut."""

    class Calls:
        def push(self, text):
            return [Content(text)]

        def finish(self):
            return []

    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    other = " to=functions.g<|channel|>commentary json<|message|>{}"
    ask = "<|channel|>commentary<|message|>let me<|end|>"
    start = "<|start|>assistant"
    said = f"{ANALYSIS}why<|end|>{start}{ask}{start}{call}{start}{other}"
    for cut in range(len(said)):
        parser = FORMATS["harmony"].parser(PromptEnd.PLAIN, Calls())
        events = [*parser.push(said[:cut]), *parser.push(said[cut:]), *parser.finish()]
        assert joined(events) == [Reasoning("why"), Content(f"let me{call}{other}")]
        parser = FORMATS["harmony"].parser(PromptEnd.PLAIN, Calls())
        events = [*parser.push(other[:cut]), *parser.push(other[cut:]), *parser.finish()]
        assert joined(events) == [Content(other)]  # the prompt ended with the role


def test_results_of_tools_in_tags_are_no_answer_in_tags():
    assert (
        format_of(f"{THINKS}{{{{ '<response>' + content + '</response>' }}}}") is FORMATS["qwen3"]
    )


@pytest.mark.parametrize("template", ["{{ '<|im_start|>assistant' }}", ""])
def test_a_template_without_reasoning_has_no_format(template):
    assert format_of(template) is None


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


async def test_a_qwen_model_thinks_before_a_grammar_unless_told_not_to(
    serve_application, chat_model, tmp_path
):
    """The real engine renders the variable: the prompt closes the reasoning before it begins.

    The tags are special tokens, in the place of two bytes that the model does not need.
    """
    directory = with_template(chat_model, tmp_path / "qwen3", "qwen")
    path = directory / "tokenizer.json"
    tokenizer = orjson.loads(path.read_bytes())
    vocabulary, bias = tokenizer["model"]["vocab"], {}
    for byte, tag in (("\u0100", "<think>"), ("\u0101", "</think>")):
        vocabulary[tag] = place = vocabulary.pop(byte)
        bias[str(place)] = 6
        added = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append(added | {"id": place, "content": tag, "special": True})
    path.write_bytes(orjson.dumps(tokenizer))
    server = await serve_application(create_app(Settings(str(directory), device="cpu")))
    await server.model.load()
    counts = []
    for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
        reply = await server.chat(max_tokens=1, chat_template_kwargs=variables)
        counts.append(reply.json["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]
    assert counts[2] - counts[0] == len("[\n\n]\n\n")
    schema = {"name": "colour", "strict": True, "schema": {"enum": ["red", "green"]}}
    fields = {
        "response_format": {"type": "json_schema", "json_schema": schema},
        "logit_bias": bias,
        "temperature": 1,
        "seed": 3,
        "n": 8,
        "max_tokens": 300,
    }
    thoughts = 0
    for choice in await both(server, **fields):
        thoughts += bool(choice[0])
        assert orjson.loads(choice[1]) in ("red", "green")
        assert choice[2] == "stop"
    assert thoughts > 1
    off = {"enable_thinking": False}
    for choice in await both(server, **fields, chat_template_kwargs=off):
        assert (choice[0], orjson.loads(choice[1])) in (("", "red"), ("", "green"))
    used = (await server.chat(**fields)).json["usage"]
    assert 2 * thoughts < used["completion_tokens_details"]["reasoning_tokens"]
    assert used["completion_tokens_details"]["reasoning_tokens"] < used["completion_tokens"]
