"""Constrained decoding in the real engine: valid under the schema, whatever the weights are."""

import asyncio
import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from grammar_walks import BYTES, END, HeldWorker, LocalWorker, Walks, next_tokens

from backend.engine import core as engine_core
from backend.engine.loading import load_engine
from backend.grammar.compiler import CompilerLimits, GrammarCompiler
from backend.grammar.json_schema import enforceable
from backend.grammar.matcher import GrammarMatcher
from backend.grammar.worker import GrammarLibrary, Vocabulary
from backend.ports import EngineError, GrammarRejectedError, OverloadedError
from backend.scheduler.request import (
    MOST_SPACES,
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
)
from backend.server.tool_parsers import FORMATS
from backend.server.tool_parsers.reasoning import FORMATS as FORMATS_OF_REASONING
from backend.server.tool_parsers.reasoning import PromptEnd, ReasoningFormat
from backend.server.tool_parsers.streaming_json import CallableFunction, json_tag

pytest_plugins = ["running_backend"]

PROMPT = tuple(b"Answer in JSON: ")
SCHEMAS = {
    "nested": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "at": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "integer"}},
                "required": ["x", "y"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "at"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["red", "green", 3, None, {"deep": [1, "é"]}]},
    "array": {
        "type": "array",
        "items": {"type": "integer", "minimum": -20, "maximum": 300},
        "minItems": 2,
        "maxItems": 6,
    },
    "number": {"type": "number", "minimum": 0, "maximum": 1},
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "leaf": {"type": "boolean"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["leaf", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": "c"}},
        "additionalProperties": False,
    },
}


def schema_grammar(name):
    source = json.dumps(enforceable(SCHEMAS[name], strict=True))
    return Grammar(GrammarKind.JSON_SCHEMA, source)


def request(grammar, *, n=1, **sampling):
    sampling = {"temperature": 1.0, "max_tokens": 400, "seed": 7} | sampling
    return GenerationRequest("r", PROMPT, SamplingParams(grammar=grammar, **sampling), n)


async def collect(engine, wanted):
    texts, reasons = defaultdict(str), {}
    async for delta in engine.generate(wanted):
        texts[delta.index] += delta.text
        reasons[delta.index] = delta.finish_reason
    return [(texts[index], reasons[index]) for index in sorted(reasons)]


@pytest.fixture(scope="module")
def engine(chat_model):
    engine, _ = load_engine(str(chat_model), device="cpu", max_num_seqs=16)
    engine.start()
    yield engine
    engine.stop()
    engine._core.scheduler.check_integrity()


async def test_schemas_hold_in_a_batch_with_neighbours_that_have_none(engine):
    free = [
        GenerationRequest("f", PROMPT, SamplingParams(seed=seed, max_tokens=40, ignore_eos=True))
        for seed in range(3)
    ]
    alone = [await collect(engine, each) for each in free]
    wanted = [request(schema_grammar(name), n=3, seed=1) for name in SCHEMAS]
    replies = await asyncio.gather(*(collect(engine, each) for each in [*wanted, *free]))
    assert replies[len(wanted) :] == alone
    for name, choices in zip(SCHEMAS, replies, strict=False):
        for text, reason in choices:
            assert reason is FinishReason.STOP, (name, text)
            jsonschema.validate(json.loads(text), SCHEMAS[name])
        assert name in ("enum", "number", "optional") or len(set(choices)) > 1


@pytest.mark.parametrize("form", ["qwen", "llama", "qwen_xml", "deepseek_v3"])
@pytest.mark.parametrize("beside_an_answer", [True, False])
async def test_a_model_that_likes_line_ends_ends_its_call(engine, form, beside_an_answer):
    functions = [CallableFunction("f", enforceable(SCHEMAS["nested"], strict=True))]
    tag = FORMATS[form].calls(functions, several=False)
    if beside_an_answer:
        tag = {"type": "or", "elements": [tag, json_tag(SCHEMAS["nested"])]}
    source = json.dumps({"type": "structural_tag", "format": tag})
    bias = tuple((byte, 100.0) for byte in b"\n\r ")
    wanted = request(Grammar(GrammarKind.STRUCTURE, source), n=2, logit_bias=bias, max_tokens=900)
    for text, reason in await collect(engine, wanted):
        assert reason is FinishReason.STOP, text
        assert re.search(rf"[ \r\n]{{{MOST_SPACES + 3}}}", text) is None


@pytest.mark.parametrize("temperature", [0.0, 2.0])
async def test_any_json_object(engine, temperature):
    wanted = request(Grammar(GrammarKind.JSON_OBJECT), temperature=temperature, max_tokens=150)
    [(text, reason)] = await collect(engine, wanted)
    assert text.startswith("{")
    if reason is FinishReason.STOP:
        assert isinstance(json.loads(text), dict)


async def test_an_answer_that_has_no_room_ends_with_length(engine):
    [(text, reason)] = await collect(engine, request(schema_grammar("nested"), max_tokens=5))
    assert reason is FinishReason.LENGTH
    assert len(text) == 5


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar(GrammarKind.REGEX, "(cat|dog){2}"), {"catcat", "catdog", "dogcat", "dogdog"}),
        (Grammar(GrammarKind.EBNF, 'root ::= "yes" | "no"'), {"yes", "no"}),
    ],
)
async def test_regular_expressions_and_grammars(engine, grammar, expected):
    choices = await collect(engine, request(grammar, n=8, ignore_eos=True))
    assert {reason for _, reason in choices} == {FinishReason.STOP}
    assert {text for text, _ in choices} <= expected


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar(GrammarKind.REGEX, "[a-"), "Regex parsing error"),
        (Grammar(GrammarKind.EBNF, "root ::= missing"), "not defined"),
        (Grammar(GrammarKind.EBNF, "root ::= root"), "no token of the model fits"),
        (
            Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": 2, "maximum": 1}'),
            "min",
        ),
    ],
)
async def test_what_cannot_be_compiled_is_rejected_and_nothing_else(engine, grammar, why):
    good, bad = await asyncio.gather(
        collect(engine, request(schema_grammar("enum"))),
        collect(engine, request(grammar)),
        return_exceptions=True,
    )
    assert isinstance(bad, GrammarRejectedError)
    assert why in str(bad)
    assert good[0][1] is FinishReason.STOP


async def test_a_process_of_its_own_wakes_up_when_a_grammar_is_ready(real_server):
    schema = {"name": "colour", "strict": True, "schema": {"enum": ["red", "green"]}}
    form = {"type": "json_schema", "json_schema": schema}
    replies = await asyncio.gather(*(real_server.chat(response_format=form, n=2) for _ in range(3)))
    for reply in replies:
        for choice in reply.json["choices"]:
            assert json.loads(choice["message"]["content"]) in ("red", "green")
            assert choice["finish_reason"] == "stop"
    form["json_schema"]["schema"] = {"type": "string", "pattern": "(a"}
    refused = await real_server.chat(response_format=form)
    assert (refused.status, refused.error["param"]) == (400, "response_format")


async def test_the_bundled_model_answers_in_json():
    directory = Path(__file__).parents[2] / "backend" / "demo" / "model"
    engine, tokenizer = load_engine(str(directory), device="cpu", max_num_seqs=2)
    engine.start()
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
        prompt = tuple(tokenizer.encode(text))
        sampling = SamplingParams(grammar=schema_grammar("array"), seed=1, max_tokens=200)
        [(said, reason)] = await collect(engine, GenerationRequest("r", prompt, sampling))
        assert reason is FinishReason.STOP
        jsonschema.validate(json.loads(said), SCHEMAS["array"])
    finally:
        engine.stop()


def test_a_vocabulary_of_sentencepiece_spells_what_its_decoder_writes():
    import tokenizers

    from backend.tokenizer.tokenizer import Tokenizer

    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581the", "{", "}", '"', "a", ":", "\u25811", "true", "é"]
    raw = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True
        )
    )
    raw.add_special_tokens(["</s>"])
    tokenizer = Tokenizer(raw, eos_token_ids=frozenset({1}), template=None)
    spelled = tuple(tokenizer.visible_bytes(token) for token in range(len(pieces)))
    assert spelled[1] == b""
    assert spelled[2:258] == tuple(bytes([byte]) for byte in range(256))
    assert [spelled[pieces.index(piece)] for piece in ("\u2581the", "\u25811", "é")] == [
        b" the",
        b" 1",
        "é".encode(),
    ]
    source = '{"type":"object","properties":{"a":{"const":1}},"required":["a"]}'
    library = GrammarLibrary(Vocabulary(spelled, len(pieces), frozenset({1})), 2**26)
    matcher = GrammarMatcher(library.compile(Grammar(GrammarKind.JSON_SCHEMA, source)))
    matcher.accept_tokens(
        [pieces.index(piece) for piece in ("{", '"', "a", '"', ":", "\u25811", "}", "</s>")]
    )
    assert matcher.failure is None


# A model whose reasoning is what stands between a question mark and an exclamation mark.
MARKS = ReasoningFormat(("?",), ("!",))


def behind_reasoning(grammar, end):
    before, passing = MARKS.before_grammar(end, is_answer=True)
    return replace(grammar, before=json.dumps(before), passing=passing)


@pytest.mark.parametrize("end", [PromptEnd.OPEN, PromptEnd.PLAIN])
@pytest.mark.parametrize(
    "grammar",
    [
        *map(schema_grammar, ("nested", "enum")),
        Grammar(GrammarKind.REGEX, "(cat|dog)[!-~]{2}"),
        Grammar(GrammarKind.EBNF, 'root ::= "yes" | "no"'),
        Grammar(GrammarKind.STRUCTURE, '{"format": {"type": "const_string", "value": "so"}}'),
    ],
)
async def test_a_grammar_holds_behind_the_reasoning_and_not_within(engine, grammar, end):
    # The tokenizer's first tokens are the printable characters, from the exclamation mark on.
    bias = ((0, 4.0), (ord("?") - ord("!"), 4.0))
    wanted = request(behind_reasoning(grammar, end), n=6, seed=2, logit_bias=bias)
    thoughts = set()
    for text, reason in await collect(engine, wanted):
        assert reason is FinishReason.STOP
        thought = end is PromptEnd.OPEN or text.startswith("?")
        reasoning, answer = text.split("!", 1) if thought else ("", text)
        thoughts.add(reasoning)
        assert fits(grammar, answer.lstrip("\n"))
    assert len(thoughts) > 1
    [(text, reason)] = await collect(engine, request(wanted.sampling.grammar, max_tokens=1))
    assert (len(text), reason) == (1, FinishReason.LENGTH)


def fits(grammar, answer):
    """Whether the grammar alone admits the whole text."""
    matcher = Walks().matcher(grammar)
    return END in next_tokens(matcher, list(answer.encode()))


async def test_what_cannot_be_an_answer_is_refused_though_reasoning_precedes_it(engine):
    for end in (PromptEnd.OPEN, PromptEnd.PLAIN):
        grammar = behind_reasoning(Grammar(GrammarKind.EBNF, "root ::= root"), end)
        with pytest.raises(GrammarRejectedError, match="no token of the model fits"):
            await collect(engine, request(grammar))


@pytest.mark.parametrize("name", list(FORMATS_OF_REASONING))
def test_each_format_of_reasoning_precedes_a_grammar(name):
    form, walks = FORMATS_OF_REASONING[name], Walks()
    closing = form.closing[-1]
    for end in (PromptEnd.OPEN, PromptEnd.PLAIN):
        before, passing = form.before_grammar(end, is_answer=True)
        grammar = Grammar(GrammarKind.REGEX, "ok", (), json.dumps(before), passing)
        thought = passing.replace(form.closing[0], f"why\t{closing}", 1)
        may_be_absent = end is PromptEnd.PLAIN and not form.always
        for said in (thought, form.answer_begin) if may_be_absent else (thought,):
            tokens = list(f"{said}ok".encode())
            matcher = walks.matcher(grammar)
            assert next_tokens(matcher, tokens[:-1]) == [ord("k")]
            assert next_tokens(matcher, tokens) == [END]


def test_reasoning_has_tabs_and_special_tokens_where_json_has_none():
    special = {"<think>": 257, "</think>": 258, "<other>": 259}
    tokens = (*BYTES.tokens[:256], *[b""] * 4)
    library = GrammarLibrary(Vocabulary(tokens, 260, frozenset({END}), special), 2**26)
    form = FORMATS_OF_REASONING["qwen3"]
    before, passing = form.before_grammar(PromptEnd.PLAIN, is_answer=True)
    schema = '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}}'
    markup = (*form.markup, "<unknown>")
    grammar = Grammar(GrammarKind.JSON_SCHEMA, schema, markup, json.dumps(before), passing)
    compiled = library.restore(grammar, library.compile(grammar).grammar.serialize_json())
    matcher = GrammarMatcher(compiled)
    begin = set(next_tokens(matcher, [], 260))
    assert 257 in begin
    assert not {END, 258, 259, 9} & begin
    within = set(next_tokens(matcher, [257], 260))
    assert set(range(256)) | {257, 258} == within
    told = [257, *b"why\t\0\xff", 258, *b'\n\n{"a": "']
    inside = set(next_tokens(matcher, told, 260))
    assert not (set(range(0x20)) | {END, 257, 258, 259}) & inside
    assert {*b'a"'} <= inside
    assert END in next_tokens(matcher, [*told, *b'b"}'], 260)


async def test_preemption_and_overlap_change_nothing(chat_model):
    wanted = [
        request(schema_grammar(name), seed=seed, max_tokens=60)
        for name in ("array", "recursive")
        for seed in (1, 2, 3)
    ]
    reasoned = behind_reasoning(schema_grammar("array"), PromptEnd.OPEN)
    wanted += [
        request(reasoned, seed=seed, max_tokens=60, logit_bias=((ord("!"), 6.0),))
        for seed in (1, 2)
    ]
    small = 14 * 16 * 2 * 16 * 4 * 2
    texts = []
    for options in ({}, {"kv_bytes": small}, {"kv_bytes": small, "overlap": True}):
        engine, _ = load_engine(str(chat_model), device="cpu", max_num_seqs=16, **options)
        engine._core.grammars = GrammarCompiler(lambda: BYTES, worker=LocalWorker())
        engine.start()
        try:
            texts.append(await asyncio.gather(*(collect(engine, each) for each in wanted)))
            assert (engine.stats().preemptions > 0) == bool(options)
        finally:
            engine.stop()
    assert texts[0] == texts[1] == texts[2]
    # Their grammars read a token's number as its byte, and the tokenizer has other numbers.
    mark, line_end, bracket = (chr(ord("!") + ord(each)) for each in "!\n[")
    for [(text, _)] in texts[0][-2:]:
        assert text.partition(mark)[2].lstrip(line_end).startswith(bracket)


async def test_a_matcher_that_fails_ends_its_own_request_only(engine, monkeypatch):
    fill, calls = GrammarMatcher.fill_bitmask, []

    def failing(self, bitmask, row):
        calls.append(row)
        fill(self, bitmask, row)
        if len(calls) > 2 and self is not None:
            self.failure = "it is broken"

    prompt = PROMPT * 4
    neighbour = GenerationRequest("f", prompt, SamplingParams(seed=1, max_tokens=30))
    grammar = schema_grammar("nested")
    await collect(engine, request(grammar, max_tokens=1))
    monkeypatch.setattr(GrammarMatcher, "fill_bitmask", failing)
    broken, whole = await asyncio.gather(
        collect(engine, replace(request(grammar), prompt_tokens=prompt)),
        collect(engine, neighbour),
        return_exceptions=True,
    )
    assert isinstance(broken, EngineError)
    assert "it is broken" in str(broken)
    assert whole[0][1] is not None
    # What it computed is as good as anybody's.
    before = engine.stats().prefix_hits
    assert await collect(engine, neighbour) == whole
    assert engine.stats().prefix_hits - before == (len(prompt) - 1) // 16 * 16
    assert not engine._core.scheduler.pool.take_to_erase()


async def test_others_go_on_while_a_grammar_is_compiled_and_who_leaves_is_forgotten(
    engine, monkeypatch
):
    worker = HeldWorker()
    before = engine._core.grammars
    engine._core.grammars = GrammarCompiler(lambda: BYTES, worker=worker)
    engine._core.grammars.wake = before.wake
    try:
        waiting = asyncio.create_task(collect(engine, request(schema_grammar("enum"))))
        leaving = asyncio.create_task(collect(engine, request(schema_grammar("array"))))
        free = GenerationRequest("f", PROMPT, SamplingParams(seed=1, max_tokens=30))
        for _ in range(3):
            await collect(engine, free)
        assert worker.begun() == schema_grammar("enum")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert not waiting.done()
        await collect(engine, free)
        assert len(engine._core._compiling) == 1
        monkeypatch.setattr(engine_core, "_MOST_COMPILING", 1)
        with pytest.raises(OverloadedError, match="wait for their grammars"):
            await collect(engine, request(schema_grammar("number")))
        worker.answer()
        assert (await waiting)[0][1] is FinishReason.STOP
        assert worker.idle
    finally:
        engine._core.grammars = before


async def test_an_idle_engine_refuses_a_grammar_when_its_wait_is_over(engine):
    worker = HeldWorker()
    before = engine._core.grammars
    limits = CompilerLimits(wait_seconds=0.5)
    engine._core.grammars = GrammarCompiler(lambda: BYTES, limits, worker)
    engine._core.grammars.wake = before.wake
    try:
        first = asyncio.create_task(collect(engine, request(schema_grammar("enum"))))
        assert await asyncio.to_thread(worker.begun) == schema_grammar("enum")
        with pytest.raises(OverloadedError, match="other grammars were being compiled for"):
            await collect(engine, request(schema_grammar("array")))
        assert not first.done()
        worker.answer()
        assert (await first)[0][1] is FinishReason.STOP
    finally:
        engine._core.grammars = before


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.JSON_OBJECT),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": {}}}'),
    ],
)
def test_spaces_between_the_parts_of_json_come_to_an_end(grammar):
    """A weak model would add some for ever, and never an answer."""
    matcher = Walks().matcher(grammar)
    tokens = [ord("{")]
    while ord(" ") in (allowed := next_tokens(matcher, tokens)):
        tokens.append(ord(" "))
        assert len(tokens) < 50
    assert len(tokens) > 10
    assert ord('"') in allowed


@pytest.mark.parametrize(
    "pattern", [".", "[^x]", r"\W", r"\D", r"\S", "[^é]", r"[\u0080-\U0010ffff]"]
)
@pytest.mark.parametrize("kind", [GrammarKind.JSON_SCHEMA, GrammarKind.REGEX])
def test_a_pattern_admits_no_bytes_that_are_no_characters(pattern, kind):
    """Each token is a byte: no vocabulary lets more through."""
    source, before = f"^{pattern}{{3}}$", b""
    if kind is GrammarKind.JSON_SCHEMA:
        source, before = json.dumps({"type": "string", "pattern": source}), b'"'
    walks = Walks()
    for lead in (0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4):
        matcher = walks.matcher(Grammar(kind, source))
        for second in next_tokens(matcher, [*before, lead]):
            rest = b"\x80" * (lead >= 0xE0) + b"\x80" * (lead >= 0xF0)
            assert len((bytes([lead, second]) + rest).decode()) == 1


def test_a_token_within_which_a_character_breaks_off_is_never_used():
    pieces = (
        b"\xe0\xa0",
        b"\xe0\x80",
        b"\xed\xa0\x80",
        b"\xed",
        b"\xa0\x80",
        b"\x9f\xbf",
        b"a",
        b"",
    )
    library = GrammarLibrary(Vocabulary(pieces, 40, frozenset({7})), 2**26)
    matcher = GrammarMatcher(library.compile(Grammar(GrammarKind.REGEX, ".*")))
    assert next_tokens(matcher, [], 40) == [0, 3, 6, 7]
    assert next_tokens(matcher, [3], 40) == [5]
    assert next_tokens(matcher, [3, 5], 40) == [0, 3, 6, 7]
