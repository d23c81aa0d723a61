"""Templates in Qwen's and Llama's manner: rendered as transformers does, and read back."""

import json

import pytest
from tool_templates import TEMPLATES, with_template
from transformers import PreTrainedTokenizerFast

from backend.app import _tool_format
from backend.server.prompts import _for_template
from backend.server.protocol.messages import AssistantMessage
from backend.server.tool_parsers import FORMATS, format_of, without_format
from backend.server.tool_parsers.streaming_json import Call, gather
from backend.settings import TOOL_CALL_PARSERS, Settings
from backend.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from backend.tokenizer.tokenizer import Tokenizer

pytest_plugins = ["running_backend"]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter <b>& Größe</b>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
WIDE = str.maketrans("|_", "\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}")
ARGUMENTS = {"city": "Zürich \"<b>\" 'x'", "days": [1, 2]}


def call(name="get_weather", arguments=ARGUMENTS):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [call()]},
    {"role": "tool", "content": "sunny\n", "tool_call_id": "c"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module", params=TEMPLATES)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def directory(chat_model, tmp_path_factory, form):
    return with_template(chat_model, tmp_path_factory.mktemp("templates") / form, form)


@pytest.fixture
def peer(directory, form):
    return PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        bos_token="<|end|>",
        eos_token="<|end|>",
        chat_template=TEMPLATES[form],
    )


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("length", [2, 4, 6])
def test_conversations_render_as_transformers_renders_them(directory, peer, tools, length):
    options = {"add_generation_prompt": length != 4, "tools": tools}
    messages = CONVERSATION[:length]
    assert Tokenizer.load(directory).apply_chat_template(messages, **options) == (
        peer.apply_chat_template(messages, tokenize=False, **options)
    )


def test_what_the_template_writes_of_a_call_is_read_back(directory, form):
    tokenizer = Tokenizer.load(directory)
    before, after = (
        tokenizer.apply_chat_template(messages, add_generation_prompt=asks, tools=TOOLS)
        for messages, asks in ((CONVERSATION[:2], True), (CONVERSATION[:3], False))
    )
    written = after.removeprefix(before)
    assert written != after
    written = written.removesuffix("<|im_end|>\n").removesuffix("<|eot_id|>")
    parser = FORMATS[form]({"get_weather": {}}, max_calls=None, eager=False)
    content, [found] = gather([*parser.push(written), *parser.finish()])
    assert content == ""
    assert found.name == "get_weather"
    assert found == Call("get_weather", written[written.index('{"city"') : written.rindex("}")])


def test_the_format_is_known_by_the_template(directory, form, chat_model):
    assert format_of(Tokenizer.load(directory).tool_template) is FORMATS[form]
    assert format_of(Tokenizer.load(chat_model).tool_template) is None


def test_a_template_may_refuse_several_calls(directory, form):
    tokenizer = Tokenizer.load(directory)
    several = [*CONVERSATION[:2], CONVERSATION[2] | {"tool_calls": [call(), call()]}]
    if form == "llama":
        with pytest.raises(ChatTemplateError, match="one call at a time"):
            tokenizer.apply_chat_template(several, tools=TOOLS)
    else:
        assert tokenizer.apply_chat_template(several, tools=TOOLS).count("Zürich") == 2


@pytest.mark.parametrize("variables", [{"enable_thinking": False}, {"date_string": "today"}])
def test_variables_are_told_to_the_template_as_transformers_tells_them(directory, peer, variables):
    expected = peer.apply_chat_template(
        CONVERSATION, tokenize=False, add_generation_prompt=True, **variables
    )
    assert Tokenizer.load(directory).apply_chat_template(
        CONVERSATION, add_generation_prompt=True, variables=variables
    ) == (expected)
    assert (
        expected
        != peer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
        or next(iter(variables)) not in peer.chat_template
    )


@pytest.mark.parametrize("last", ["Sunny", "Sunny, and ", "", "\n\nSunny\n"])
def test_a_last_message_is_left_open_as_transformers_leaves_it(directory, peer, last):
    messages = [*CONVERSATION[:2], {"role": "assistant", "content": last}]
    text = Tokenizer.load(directory).apply_chat_template(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == peer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert text.rstrip().endswith(last.strip())


# What published templates say of calls, in short.
TAUGHT = {
    "qwen": r"<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>",
    "qwen_xml": "<tool_call>\n<function={{ name }}>\n<parameter=a>\nvalue\n</parameter>",
    "llama": '{"name": function name, "parameters": dictionary}.',
    "llama4": "[func_name1(params_name1=params_value1, params_name2=params_value2...)]",
    "mistral": "{{- '[TOOL_CALLS][' }}{{ tool_call.function|tojson }}",
    "mistral_args": "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
    "deepseek_v3": "'<|tool_sep|>' + tool['function']['name'] + '\\n' + '```json'".translate(WIDE),
    "deepseek_v31": "tool.name + '<|tool_sep|>' + tool.arguments".translate(WIDE),
    "kimi": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}",
    "harmony": "<|start|>assistant to=functions.{{ name }}<|channel|>commentary json<|message|>",
    "lfm2": "List of tools: <|tool_list_start|>[",
    "minimax": '<minimax:tool_call>\n<invoke name="tool-name-1">\n<parameter name="a">',
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>",
    "granite": "write <|tool_call|> followed by a JSON list",
    "phi": '<|tool_call|>{"name": "foo", "arguments": {"a": 1}}<|/tool_call|>',
    "command": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]',
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_what_its_template_says(name):
    assert format_of(f"{{% if tools %}}{TAUGHT[name]}") is FORMATS[name]


@pytest.mark.parametrize(
    "template",
    [
        '{% if tools %}{"name": "f", "parameters": {}}<|python_tag|><function=f>',
        "{% if tools %}<|tool_call>call:f{a:1}<tool_call|>",
        "{% if tools %}<function_calls>f(a=1)</function_calls>",
        "{% if tools %}Call them.",
        """{% if tools %}'{"name": "' ~ name ~ '", "arguments": '{{ tool["parameters"] }}""",
        "{% if tools %}]<]minimax[>[<tool_call>",
        '{% if tools %}"name" "parameters" <|DSML|function_calls>'.translate(WIDE),
        '{% if tools %}<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>',
    ],
)
def test_a_format_that_nobody_reads_is_not_taken_for_one_that_shares_a_tag(template):
    assert format_of(template) is None
    why = "the format of this template's calls is not supported; supported: deepseek_v3, "
    assert without_format(template).startswith(why)


ITEMS = "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}"
NINE = "{% if call.id|length != 9 %}{{ raise_exception('nine!') }}{% endif %}{{ call.id }}="


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ITEMS, "city=Ulm"),
        ("{{ call.function.arguments|tojson }}", '{"city": "Ulm"}'),
        ("{{ '' + call.function.arguments }}", '{"city":"Ulm"}'),
        ("{{ call.function.arguments }}", '{"city":"Ulm"}'),
        (NINE + ITEMS, "74196fe72=city=Ulm"),
        (NINE + "{{ '' + call.function.arguments }}", '74196fe72={"city":"Ulm"}'),
        ("{{ raise_exception('never') }}", None),
    ],
)
def test_calls_of_the_history_are_written_as_the_template_reads_them(written, expected):
    source = "{% for m in messages %}{% for call in m.tool_calls %}WRITTEN{% endfor %}{% endfor %}"
    template = ChatTemplate({"default": source.replace("WRITTEN", written)}, {})
    message = AssistantMessage(
        role="assistant",
        tool_calls=[
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "f", "arguments": '{"city":"Ulm"}'},
            }
        ],
    )
    options = {"continue_final_message": False, "tools": None, "variables": {}}

    def render():
        return template.render([_for_template(message)], add_generation_prompt=True, **options)

    if expected is None:
        with pytest.raises(ChatTemplateError, match="never"):
            render()
    else:
        assert render() == expected


def test_every_format_may_be_chosen():
    assert set(TOOL_CALL_PARSERS) == FORMATS.keys()


def test_a_template_without_tools_is_told_from_one_of_another_format():
    assert without_format("{{ messages }}") == "the model's chat template knows nothing of tools"


def test_a_template_of_another_format_is_told_at_the_start(chat_model, tmp_path, caplog):
    directory = with_template(chat_model, tmp_path / "other", "qwen")
    template = directory / "chat_template.jinja"
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template.write_text(config["chat_template"] + "{#<function=#}")
    caplog.set_level("INFO")
    refused = _tool_format(Settings(str(directory)), Tokenizer.load(directory))
    assert refused == without_format(template.read_text())
    assert f"requests with tools are refused: {refused}" in caplog.messages
