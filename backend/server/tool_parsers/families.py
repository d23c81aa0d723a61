"""How families of models write calls of functions, and which of them a chat template teaches."""

from collections.abc import Mapping, Sequence

from backend.server.tool_parsers.calls_parser import (
    CallsParser,
    TaggedCallsParser,
    WholeCallsParser,
)
from backend.server.tool_parsers.markup_calls import Xml, header_then_json, python_call
from backend.server.tool_parsers.streaming_json import SPACE

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
_BAR = "\N{FULLWIDTH VERTICAL LINE}"
_GAP = "\N{LOWER ONE EIGHTH BLOCK}"


def _deepseek(words: str) -> str:
    return f"<{_BAR}tool{_GAP}{words.replace(' ', _GAP)}{_BAR}>"


class HermesToolCallParser(TaggedCallsParser):
    """Qwen's and Hermes' calls: ``{"name": …, "arguments": {…}}`` between tags."""

    opening = (OPEN_TAG,)
    closing = (CLOSE_TAG,)
    call = (f'{OPEN_TAG}\n{{"name": "%s", "arguments": ', f"}}\n{CLOSE_TAG}")
    between = "\n"


class LlamaToolCallParser(WholeCallsParser):
    """Llama 3's calls: ``{"name": …, "parameters": {…}}``, set apart by semicolons."""

    markup = (PYTHON_TAG,)
    tag = PYTHON_TAG
    begins = "{"
    arguments_key = "parameters"
    call = ('{"name": "%s", "parameters": ', "}")
    separators = SPACE + ";"
    one_at_a_time = True


class Llama4ToolCallParser(WholeCallsParser):
    """Llama 4's calls: ``[name(key=value), …]``; demanded ones are its JSON in the brackets."""

    tag = ""
    begins = "["
    arguments_key = "parameters"
    call = LlamaToolCallParser.call
    around = ("[", "]")
    between = ", "
    listed = True
    script = python_call
    separators = SPACE + ",]"


class QwenXmlToolCallParser(TaggedCallsParser):
    """Calls of Qwen3-Coder, Qwen3.5 and Nemotron 3: ``<function=…>`` with ``<parameter=…>``."""

    opening = (OPEN_TAG, "<function=")
    closing = (CLOSE_TAG,)
    call = (f"{OPEN_TAG}\n<function=%s>\n", f"\n</function>\n{CLOSE_TAG}")
    between = "\n"
    style = "qwen_xml"
    script = Xml(
        header=r"\s*(?:<function=)?NAME>\s*",
        key="<parameter=",
        value=">",
        value_end="</parameter>",
        end="</function>",
        lines=True,
    ).script()


class SeedToolCallParser(QwenXmlToolCallParser):
    """Calls of Seed-OSS."""

    opening = ("<seed:tool_call>", "<function=")
    closing = ("</seed:tool_call>",)
    call = ("<seed:tool_call>\n<function=%s>\n", "\n</function>\n</seed:tool_call>")


class GlmToolCallParser(TaggedCallsParser):
    """Calls of GLM 4.5 and later: the name, ``<arg_key>`` and ``<arg_value>``."""

    inner = (CLOSE_TAG, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    opening = (OPEN_TAG,)
    call = (f"{OPEN_TAG}%s\n", CLOSE_TAG)
    between = "\n"
    style = "glm_xml"
    script = Xml(
        header=r"\s*NAME\s*",
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        end=CLOSE_TAG,
    ).script()


class MiniMaxToolCallParser(TaggedCallsParser):
    """Calls of MiniMax M2: ``<invoke name=…>`` with ``<parameter name=…>``."""

    opening = ("<minimax:tool_call>", '<invoke name="')
    closing = ("</minimax:tool_call>",)
    around = ("<minimax:tool_call>\n", closing[0])
    call = ('<invoke name="%s">\n', "</invoke>\n")
    style = "minimax_xml"
    script = Xml(
        header=r'\s*(?:<invoke name=")?NAME">\s*',
        key='<parameter name="',
        value='">',
        value_end="</parameter>",
        end="</invoke>",
    ).script()


class MistralToolCallParser(TaggedCallsParser):
    """Mistral's older calls: ``[TOOL_CALLS]`` and a list in JSON."""

    opening = ("[TOOL_CALLS]",)
    listed = True
    around = ("[TOOL_CALLS][", "]")
    call = ('{"name": "%s", "arguments": ', "}")
    between = ", "
    separators = SPACE + "]}"


class MistralArgsToolCallParser(TaggedCallsParser):
    """Mistral's newer calls: ``[TOOL_CALLS]name[ARGS]{…}``."""

    opening = ("[TOOL_CALLS]",)
    inner = ("[ARGS]", "[CALL_ID]")
    call = ("[TOOL_CALLS]%s[ARGS]", "")
    script = header_then_json(r"\s*NAME\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*")


class Lfm2ToolCallParser(TaggedCallsParser):
    """LFM2's calls: ``[name(key=value), …]`` between tags; demanded ones are JSON there."""

    opening = ("<|tool_call_start|>",)
    closing = ("<|tool_call_end|>",)
    listed = True
    script = python_call
    around = (f"{opening[0]}[", f"]{closing[0]}")
    call = MistralToolCallParser.call
    between = ", "
    separators = SPACE + "]}"


class DeepSeekToolCallParser(TaggedCallsParser):
    """DeepSeek V3.1's calls: name, separator and JSON between tags."""

    opening = (_deepseek("calls begin"), _deepseek("call begin"))
    closing = (_deepseek("call end"), _deepseek("calls end"))
    separator = _deepseek("sep")
    inner = (separator,)
    around = (opening[0], closing[1])
    call = (f"{opening[1]}%s{separator}", closing[0])
    separators = SPACE + "}`"
    script = header_then_json(
        rf"\s*(?:{opening[1]})?\s*(?:function{separator})?\s*NAME\s*(?:{separator})?\s*"
        r"(?:```json)?\s*"
    )


class DeepSeek3ToolCallParser(DeepSeekToolCallParser):
    """The calls of DeepSeek V3 and R1, whose JSON stands in a fence."""

    call = (
        f"{_deepseek('call begin')}function{_deepseek('sep')}%s\n```json\n",
        f"\n```{_deepseek('call end')}",
    )
    between = "\n"


class KimiToolCallParser(TaggedCallsParser):
    """Kimi K2's calls: ``functions.name:0`` and JSON between tags."""

    opening = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    closing = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
    inner = ("<|tool_call_argument_begin|>",)
    around = (opening[0], closing[1])
    call = ("<|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>", closing[0])
    script = header_then_json(
        r"\s*(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?NAME(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>\s*"
    )


class HarmonyToolCallParser(TaggedCallsParser):
    """The calls of gpt-oss: messages to ``functions.name``. One ends the answer."""

    opening = (
        *("<|channel|>commentary to=functions", "<|channel|>analysis to=functions"),
        *("<|start|>assistant", " to=functions"),
    )
    closing = ("<|call|>",)
    inner = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
    call = ("<|channel|>commentary to=functions.%s <|constrain|>json<|message|>", "")
    script = header_then_json(
        r"(?:(?:<\|channel\|>)?[a-z ]*to=functions)?\.NAME[a-z ]*"
        r"(?:<\|channel\|>[a-z ]*)?(?:<\|constrain\|>)?[a-z ]*<\|message\|>\s*"
    )
    one_at_a_time = True


class GraniteToolCallParser(TaggedCallsParser):
    """Granite 3's calls: ``<|tool_call|>`` and a list in JSON."""

    opening = ("<|tool_call|>",)
    closing = ("<|/tool_call|>",)
    listed = True
    around = ("<|tool_call|>[", "]")
    call = MistralToolCallParser.call
    between = ", "
    separators = SPACE + "]}"


class PhiToolCallParser(GraniteToolCallParser):
    """The calls of Phi-4-mini: one object of JSON between tags."""

    around = ("", "")
    call = ('<|tool_call|>{"name": "%s", "arguments": ', "}<|/tool_call|>")
    between = ""


class CommandToolCallParser(GraniteToolCallParser):
    """Command's calls: ``<|START_ACTION|>`` and a list in JSON, with ``tool_name``."""

    opening = ("<|START_ACTION|>",)
    closing = ("<|END_ACTION|>",)
    around = ("<|START_ACTION|>[", "]<|END_ACTION|>")
    call = ('{"tool_call_id": "0", "tool_name": "%s", "parameters": ', "}")
    arguments_key = "parameters"


ToolFormat = type[CallsParser]
"""How one family of models calls functions: how to read calls, and how to demand them."""

_FOREIGN = (
    *(
        "<function=",
        "]<]minimax[>[",
        "<function_calls>",
        "<tool_calls>",
        "<TOOLCALL>",
        "<|tool",
        "<|channel|>",
    ),
    *(f"<{_BAR}tool", f"{_BAR}DSML{_BAR}"),
)
"""Markup of calls in formats that no parser here reads; some share a tag with one that is read."""

# A template teaches the first format all of whose texts it has: formats share tags.
_TAUGHT: Sequence[tuple[str, ToolFormat | None, tuple[str, ...]]] = (
    ("deepseek_v3", DeepSeek3ToolCallParser, (DeepSeekToolCallParser.separator, "```json")),
    ("deepseek_v31", DeepSeekToolCallParser, (DeepSeekToolCallParser.separator,)),
    ("harmony", HarmonyToolCallParser, ("<|channel|>", "functions.")),
    ("kimi", KimiToolCallParser, ("<|tool_call_argument_begin|>",)),
    ("mistral_args", MistralArgsToolCallParser, ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", MistralToolCallParser, ("[TOOL_CALLS]",)),
    ("minimax", MiniMaxToolCallParser, ("<minimax:tool_call>", "<invoke")),
    ("seed", SeedToolCallParser, ("<seed:tool_call>", "<parameter=")),
    ("qwen_xml", QwenXmlToolCallParser, ("<function=", "<parameter=")),
    ("glm", GlmToolCallParser, (OPEN_TAG, "<arg_key>")),
    ("command", CommandToolCallParser, ("<|START_ACTION|>", "tool_name")),
    ("lfm2", Lfm2ToolCallParser, ("<|tool_call_start|>",)),
    ("lfm2", Lfm2ToolCallParser, ("<|tool_list_start|>",)),
    ("phi", PhiToolCallParser, ("<|/tool_call|>",)),
    ("granite", GraniteToolCallParser, ("<|tool_call|>",)),
    *(("", None, (tag,)) for tag in _FOREIGN),
    ("qwen", HermesToolCallParser, (OPEN_TAG,)),
    ("llama4", Llama4ToolCallParser, ("[func_name1(",)),
    ("llama", LlamaToolCallParser, (PYTHON_TAG,)),
    # Templates of Llama 3.2's small models ask for JSON alone, without the tag.
    ("llama", LlamaToolCallParser, ('": function name', '"parameters')),
)
FORMATS: Mapping[str, ToolFormat] = {name: form for name, form, _ in _TAUGHT if form is not None}


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template teaches, None if it teaches none that is known."""
    if "tools" not in template:
        return None
    taught = (form for _, form, texts in _TAUGHT if all(text in template for text in texts))
    return next(taught, None)


def without_format(template: str) -> str:
    """Return why ``tools`` are refused where a chat template teaches no format that is known."""
    if "tools" not in template:
        return "the model's chat template knows nothing of tools"
    known = ", ".join(FORMATS)
    return f"the format of this template's calls is not supported; supported: {known}"
