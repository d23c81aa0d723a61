"""Every format of tool calls through the same cases, written as its published template writes."""

import json
import random

import pytest
import tokenizers
from grammar_walks import BYTES, Walks, next_tokens

from backend.grammar.json_schema import enforceable
from backend.grammar.matcher import GrammarMatcher, allocate_bitmask
from backend.grammar.worker import GrammarLibrary, Vocabulary
from backend.scheduler.request import Grammar, GrammarKind
from backend.server.tool_parsers import FORMATS
from backend.server.tool_parsers.streaming_json import (
    CallableFunction,
    CallArguments,
    CallStart,
    gather,
    joined,
)
from backend.tokenizer.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "count": {"$ref": "#/$defs/count"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "flag": {"type": "boolean"},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}},
        "list": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {"count": {"type": "integer"}},
}
FUNCTIONS = {"get_weather": SCHEMA, "f-2": SCHEMA}
HARD = {
    "text": "a {\"b\": '}'} </tool_call> </parameter> <arg_key>]\n[TOOL_CALLS] x) \\n é🙂",
    "kind": "b",
    "count": 12345678901,
    "maybe": None,
    "flag": True,
    "place": {"x": -1.5, "y": {"z": ['"', "]", "}</function>"]}},
    "list": ["1", "null", "a, b"],
}
CALLS = [
    ("get_weather", {"text": "Zürich"}),
    ("f-2", HARD),
    ("get_weather", {}),
    ("f-2", {"maybe": "5", "text": "", "list": []}),
]


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def objects(calls, key="arguments", name="name", more=""):
    return [f'{{{more}"{name}": "{f}", "{key}": {dumps(args)}}}' for f, args in calls]


def bare(value):
    return value if isinstance(value, str) else dumps(value)


def parameters(args, form):
    return "".join(form.format(key, bare(value)) for key, value in args.items())


def python(calls):
    return ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"
        for name, args in calls
    )


WIDE = str.maketrans("|_", "\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}")
CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEP = (
    f"<|tool_{words}|>".translate(WIDE)
    for words in ("calls_begin", "calls_end", "call_begin", "call_end", "sep")
)


def qwen_xml(name, args):
    inner = parameters(args, "<parameter={}>\n{}\n</parameter>\n")
    return f"<function={name}>\n{inner}</function>\n"


WRITERS = {
    "qwen": lambda calls: "\n".join(f"<tool_call>\n{c}\n</tool_call>" for c in objects(calls)),
    "qwen_xml": lambda calls: "\n".join(
        f"<tool_call>\n{qwen_xml(*call)}</tool_call>" for call in calls
    ),
    "llama": lambda calls: "; ".join(objects(calls, "parameters")),
    "llama4": lambda calls: f"[{python(calls)}]",
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(objects(calls))}]",
    "mistral_args": lambda calls: "".join(
        f"[TOOL_CALLS]{name}[ARGS]{dumps(args)}" for name, args in calls
    ),
    "glm": lambda calls: "\n".join(
        f"<tool_call>{name}\n"
        + parameters(args, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n")
        + "</tool_call>"
        for name, args in calls
    ),
    "deepseek_v3": lambda calls: (
        CALLS_BEGIN
        + "\n".join(
            f"{CALL_BEGIN}function{SEP}{name}\n```json\n{dumps(args)}\n```{CALL_END}"
            for name, args in calls
        )
        + CALLS_END
    ),
    "deepseek_v31": lambda calls: (
        CALLS_BEGIN
        + "".join(f"{CALL_BEGIN}{name}{SEP}{dumps(args)}{CALL_END}" for name, args in calls)
        + CALLS_END
    ),
    "kimi": lambda calls: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
            f"{dumps(args)}<|tool_call_end|>"
            for number, (name, args) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    ),
    "harmony": lambda calls: "<|call|><|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(args)}"
        for name, args in calls
    ),
    "lfm2": lambda calls: f"<|tool_call_start|>[{python(calls)}]<|tool_call_end|>",
    "minimax": lambda calls: (
        "<minimax:tool_call>\n"
        + "".join(
            f'<invoke name="{name}">\n'
            + parameters(args, '<parameter name="{}">{}</parameter>\n')
            + "</invoke>\n"
            for name, args in calls
        )
        + "</minimax:tool_call>"
    ),
    "seed": lambda calls: "\n".join(
        f"<seed:tool_call>\n{qwen_xml(*call)}</seed:tool_call>" for call in calls
    ),
    "granite": lambda calls: f"<|tool_call|>[{', '.join(objects(calls))}]",
    "phi": lambda calls: "".join(f"<|tool_call|>{c}<|/tool_call|>" for c in objects(calls)),
    "command": lambda calls: (
        "<|START_ACTION|>[\n    "
        + ",\n    ".join(objects(calls, "parameters", "tool_name", '"tool_call_id": "0", '))
        + "\n]<|END_ACTION|>"
    ),
}
HARMONY = "<|start|>assistant to=functions.get_weather"
# What besides plain calls of the same format is read.
VARIANTS = [
    ("qwen_xml", "<function=get_weather>\n<parameter=text>\nZürich\n</parameter>\n</function>"),
    ("qwen_xml", "<tool_call><function=get_weather><parameter=text>Zürich</parameter></function>"),
    (
        "glm",
        "<tool_call>get_weather<arg_key>text</arg_key><arg_value>Zürich</arg_value></tool_call>",
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"text": "Zürich"}, "id": "x"}]',
    ),
    ("mistral_args", '[TOOL_CALLS]get_weather[CALL_ID]aB3[ARGS]{"text": "Zürich"}'),
    ("mistral_args", '[TOOL_CALLS]get_weather{"text": "Zürich"}'),
    ("harmony", ' to=functions.get_weather<|channel|>commentary json<|message|>{"text": "Zürich"}'),
    ("harmony", HARMONY + '<|channel|>commentary<|message|>{"text": "Zürich"}<|call|>'),
    ("lfm2", '<|tool_call_start|>[{"name": "get_weather", "arguments": {"text": "Zürich"}}]'),
    ("lfm2", "<|tool_call_start|>[get_weather(text='Zürich')]<|tool_call_end|>"),
    ("llama4", '[{"name": "get_weather", "parameters": {"text": "Zürich"}}]'),
    ("granite", '<|tool_call|>{"name": "get_weather", "arguments": {"text": "Zürich"}}'),
]


def parsed(form, pieces, *, eager, max_calls=None):
    parser = FORMATS[form](FUNCTIONS, eager=eager, max_calls=max_calls)
    return joined([event for piece in pieces for event in parser.push(piece)] + parser.finish())


def called(events):
    content, calls = gather(events)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.fixture(params=FORMATS)
def form(request):
    return request.param


def test_every_format_has_a_writer():
    assert WRITERS.keys() == FORMATS.keys()


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("calls", [CALLS, *([call] for call in CALLS)])
def test_calls_come_out_as_written_wherever_the_text_is_cut(form, eager, calls):
    text = WRITERS[form](calls)
    whole = parsed(form, [text], eager=eager)
    assert called(whole) == ("", calls)
    assert parsed(form, list(text), eager=eager) == whole
    if len(calls) == 1:
        for at in range(len(text)):
            assert parsed(form, [text[:at], text[at:]], eager=eager) == whole
    if len(calls) > 1:
        first, events = calls[:1], parsed(form, list(text), eager=eager, max_calls=1)
        assert called(events) == ("", first)


@pytest.mark.parametrize("eager", [True, False])
def test_text_may_stand_before_and_behind(form, eager):
    before, after = "Let me see [1] {x} <b>: ", "\n\nDone"
    text = f"{before}{WRITERS[form](CALLS[:2])}{after}"
    content, calls = called(parsed(form, list(text), eager=eager))
    if form in ("llama", "llama4"):  # what begins with text is text
        assert (content, calls) == (text, [])
    else:
        assert content == before.rstrip() + after
        assert calls == CALLS[:2]


def test_a_call_that_is_cut_off_is_a_beginning_of_it(form):
    """With finish_reason ``length``: what was sent of the arguments is never wrong."""
    text = WRITERS[form](CALLS[1:2])
    _, [whole] = gather(parsed(form, [text], eager=True))
    for end in range(1, len(text), 3):
        content, calls = gather(parsed(form, [text[:end]], eager=True))
        for call in calls:
            assert call.name == "f-2"
            assert whole.arguments.startswith(call.arguments)
        assert bool(calls) != (content == text[:end])
        content, calls = gather(parsed(form, [text[:end]], eager=False))
        assert [*calls] == ([] if content else [whole])


# The others' arguments are known only once they are whole.
@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"llama4", "lfm2", "command"}))
def test_arguments_are_sent_as_they_come(form):
    parser = FORMATS[form](FUNCTIONS)
    text = WRITERS[form](CALLS[1:2])
    middle = text.index("🙂")
    events = joined([event for each in text[:middle] for event in parser.push(each)])
    assert events[0] == CallStart(0, "f-2")
    assert isinstance(events[1], CallArguments)
    assert events[1].text.endswith("é")


@pytest.mark.parametrize(("form", "text"), VARIANTS)
def test_variants_of_a_format_are_read(form, text):
    for eager in (True, False):
        events = parsed(form, list(text), eager=eager)
        assert called(events) == ("", CALLS[:1])
        assert parsed(form, [text], eager=eager) == events


def test_what_only_begins_like_calls_stays_text_wherever_it_is_cut(form):
    marks = [*FORMATS[form].markup, "[f(", "{", "}", "get_weather", ">", "]", "(", "x=1)", "text"]
    marks += ['"', "'", "\n", "=", ":0", ", ", *WRITERS[form](CALLS[:1]).partition("Zürich")]
    draw = random.Random(form)
    for _ in range(60):
        text = "".join(draw.choices(marks, k=draw.randrange(1, 12)))
        for eager in (True, False):
            whole = parsed(form, [text], eager=eager)
            assert parsed(form, list(text), eager=eager) == whole, text
            content, calls = gather(whole)
            assert calls or content == text
            for call in calls if not eager else ():
                assert isinstance(json.loads(call.arguments), dict)


def test_what_repeats_the_beginning_of_a_call_is_read_in_time_that_grows_with_it(form):
    """Each beginning is given up at the next; reading the rest for each would take minutes."""
    text = (FORMATS[form].markup or ("[",))[0] * 30_000
    assert called(parsed(form, [text], eager=False)) == (text, [])
    if form == "lfm2":
        text = "<|tool_call_start|>[f(" * 5_000
        assert FORMATS[form](FUNCTIONS).push(text)
        assert called(parsed(form, [text], eager=False)) == (text, [])


@pytest.mark.parametrize("several", [True, False])
def test_a_demanded_call_is_one_that_is_read(form, several):
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["x y", "é"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
            "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["kind", "count", "flags"],
        "additionalProperties": False,
    }
    functions = [CallableFunction(name, enforceable(schema, strict=True)) for name in FUNCTIONS]
    walks = Walks()
    for tag, kind in (
        (FORMATS[form].calls(functions, several=several), GrammarKind.STRUCTURE),
        (
            FORMATS[form].text_or_calls(functions, several=several),
            GrammarKind.TEXT_WITH_STRUCTURE,
        ),
    ):
        source = json.dumps({"type": "structural_tag", "format": tag})
        grammar = Grammar(kind, source, markup=FORMATS[form].markup)
        if kind is GrammarKind.STRUCTURE:
            text = next(filter(None, (walks.text(grammar, seed) for seed in range(9))))
            parser = FORMATS[form](dict.fromkeys(FUNCTIONS, schema), eager=False)
            content, calls = called([*parser.push(text), *parser.finish()])
            assert content == ""
            assert len(calls) == 1 or several
            assert all(call["kind"] in ("x y", "é") for _, call in calls)
        assert 256 in next_tokens(walks.matcher(grammar), list(text.encode()))


def test_special_tokens_of_a_format_are_text_for_its_parser(form):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([*FORMATS[form].markup, "<eos>"])
    tokenizer = Tokenizer(backend, eos_token_ids=frozenset(), template=None)
    text = WRITERS[form](CALLS[:1])
    tokens = tokenizer.encode(text + "<eos>")
    assert len(tokens) < len(text.encode()) or not FORMATS[form].markup or form == "llama"
    decoder = tokenizer.detokenizer(FORMATS[form].markup)
    pieces = [*map(decoder.push, tokens), decoder.finish()]
    assert called(parsed(form, pieces, eager=True)) == ("", CALLS[:1])


def test_a_demanded_call_is_written_with_the_special_tokens_of_its_format():
    tokens = (*BYTES.tokens, b"", b"")
    vocabulary = Vocabulary(tokens, 259, BYTES.end_token_ids, {"[TOOL_CALLS]": 257, "<s>": 258})
    form = FORMATS["mistral_args"]
    functions = [CallableFunction("f", {"type": "object"})]
    for tag, kind, begun in (
        (form.calls(functions, several=False), GrammarKind.STRUCTURE, []),
        (form.text_or_calls(functions, several=True), GrammarKind.TEXT_WITH_STRUCTURE, [*b"Hi "]),
    ):
        source = json.dumps({"type": "structural_tag", "format": tag})
        grammar = Grammar(kind, source, markup=form.markup)
        matcher = GrammarMatcher(GrammarLibrary(vocabulary, 2**26).compile(grammar))
        bitmask = allocate_bitmask(1, 259)
        matcher.accept_tokens(begun)
        matcher.fill_bitmask(bitmask, 0)
        assert [bool(bitmask[0, token // 32] >> token % 32 & 1) for token in (257, 258)] == [
            True,
            False,
        ]
        matcher.accept_tokens([*begun, 257, *b'f[ARGS]{"a": 1}'])
        assert matcher.failure is None
