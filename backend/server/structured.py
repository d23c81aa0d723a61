"""From the form that a client demands of an answer to the grammar that decoding keeps to."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from backend.grammar.json_schema import MOST_ENFORCED_BYTES, enforceable
from backend.grammar.schema_keywords import Schema, SchemaError
from backend.scheduler.request import Grammar, GrammarKind
from backend.server.prompts import off_loop
from backend.server.protocol.errors import ApiError, invalid
from backend.server.protocol.generation import (
    MOST_CHARACTERS,
    GenerationFields,
    ResponseFormat,
    StructuredOutputs,
)
from backend.server.protocol.messages import Function
from backend.server.tool_parsers import AnswerFormat, ToolUse
from backend.server.tool_parsers.reasoning import ReasoningFormat
from backend.server.tool_parsers.streaming_json import CallableFunction, json_tag

_STRUCTURES = (GrammarKind.STRUCTURE, GrammarKind.TEXT_WITH_STRUCTURE)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and whose fault it is if nothing can be generated under it."""

    grammar: Grammar
    subject: str
    param: str
    left_out: tuple[str, ...] = ()
    """What of a schema is not enforced, and where."""

    def refused(self, reason: str) -> ApiError:
        """Return the error of a grammar that cannot be compiled."""
        return ApiError(400, f"Invalid {self.subject}: {reason}.", param=self.param)

    def behind_reasoning(self, form: AnswerFormat) -> "Constraint":
        """Return it as it holds in a text of ``form``: behind the reasoning, with its markup."""
        grammar = replace(self.grammar, markup=form.markup)
        if form.reasoning is not None:
            before, passing = form.reasoning.before_grammar(
                form.prompt_end, is_answer=grammar.kind not in _STRUCTURES
            )
            if before:
                source = orjson.dumps(before).decode()
                grammar = replace(grammar, before=source, passing=passing)
        return replace(self, grammar=grammar)


async def constraint_of(
    asked: GenerationFields,
    response_format: ResponseFormat | None = None,
    tools: ToolUse | None = None,
    reasoning: ReasoningFormat | None = None,
    *,
    param: str = "response_format",
) -> Constraint | None:
    """Return what the answer must conform to; ``param`` is where a client says its format.

    ``reasoning`` is the model's, which says how an answer beside calls begins.

    It is found in a thread, because the schemas of many functions take seconds. Raises ApiError.
    """

    def find() -> Constraint | None:
        wanted = None if response_format is None else _of_response_format(response_format, param)
        other = None if asked.structure is None else _of_structured_outputs(*asked.structure)
        if wanted is not None and other is not None:
            problem = f"'{param}' and '{other.param}' cannot be set at the same time."
            raise _combination(problem, other.param)
        constraint = wanted or other
        if tools is not None:
            constraint = _of_tools(constraint, tools, reasoning)
        if constraint is not None and asked.min_tokens:
            problem = "'min_tokens' cannot be set where the form of the answer is: its grammar"
            raise _combination(f"{problem} says when it is over.", "min_tokens")
        return constraint

    demanded = (response_format, tools, asked.structure)
    return await off_loop(find, any(each is not None for each in demanded))


def _combination(problem: str, param: str) -> ApiError:
    return invalid(problem, param, "invalid_parameter_combination")


def _of_response_format(form: ResponseFormat, param: str) -> Constraint | None:
    if form.type == "text":
        return None
    if form.type == "json_object" and form.definition:
        return _of_schema(form.definition, False, f"schema for '{param}'", param)
    if form.json_schema is None:
        return Constraint(Grammar(GrammarKind.JSON_OBJECT), f"'{param}'", param)
    named = form.json_schema
    subject = f"schema for response_format '{named.name}'"
    return _of_schema(named.definition, named.strict or False, subject, param)


def _of_schema(schema: Any, strict: bool, subject: str, param: str) -> Constraint:
    left_out: list[str] = []
    try:
        source = orjson.dumps(enforceable(schema, strict=strict, left_out=left_out)).decode()
    except SchemaError as error:
        raise ApiError(400, f"Invalid {subject}: {error}", param=param) from None
    return Constraint(Grammar(GrammarKind.JSON_SCHEMA, source), subject, param, tuple(left_out))


def _of_structured_outputs(prefix: str, outputs: StructuredOutputs) -> Constraint | None:
    if outputs.json_schema is not None:
        param = f"{prefix}json"
        schema = outputs.json_schema
        if isinstance(schema, str):
            try:
                schema = orjson.loads(schema)
            except ValueError:
                raise ApiError(400, f"Invalid '{param}': it is not JSON.", param=param) from None
        return _of_schema(schema, False, f"schema for '{param}'", param)
    choices = outputs.choice
    one_of = None if choices is None else _choices(choices, f"{prefix}choice")
    for name, kind, source in (
        ("regex", GrammarKind.REGEX, outputs.regex),
        ("choice", GrammarKind.EBNF, one_of),
        ("grammar", GrammarKind.EBNF, outputs.grammar),
        ("json_object", GrammarKind.JSON_OBJECT, "" if outputs.json_object else None),
    ):
        if source is not None:
            return Constraint(Grammar(kind, source), f"'{prefix}{name}'", f"{prefix}{name}")
    return None


def _choices(choices: Sequence[str], param: str) -> str:
    """Return the grammar of one of ``choices``, each spelled in characters that need no escape."""
    size = sum(map(len, choices))
    if size > MOST_CHARACTERS:
        problem = f"{size} characters together, of which {MOST_CHARACTERS} are allowed"
        raise ApiError(400, f"Invalid '{param}': the choices have {problem}.", param=param)
    spelled = (re.sub("[^0-9A-Za-z]", lambda c: f"\\U{ord(c[0]):08x}", each) for each in choices)
    return "root ::= " + " | ".join(f'"{each}"' for each in spelled)


def _of_tools(
    answer: Constraint | None, tools: ToolUse, reasoning: ReasoningFormat | None
) -> Constraint | None:
    """Return the constraint of calls, of calls or ``answer``, or of calls within free text."""
    if tools.demanded:
        answer = None  # there is to be none: a call is demanded
    is_free = answer is None and not tools.demanded
    if is_free and not any(function.strict for function in tools.functions):
        return None
    json_kinds = (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)
    if answer is not None and answer.grammar.kind not in json_kinds:
        raise _combination(f"'{answer.param}' cannot be set beside 'tools'.", answer.param)
    form = tools.form.text_or_calls if is_free else tools.form.calls
    kind = GrammarKind.TEXT_WITH_STRUCTURE if is_free else GrammarKind.STRUCTURE
    left_out: list[str] = []
    tag = form(_functions(tools, left_out), several=tools.several)
    subject, param = "schema for functions", "tools"
    if answer is not None:
        left_out += answer.left_out
        schema = orjson.loads(answer.grammar.source or '{"type": "object"}')
        said = json_tag(schema)
        if reasoning is not None and reasoning.answer_begin:
            begin = {"type": "const_string", "value": reasoning.answer_begin}
            said = {"type": "sequence", "elements": [begin, said]}
        tag = {"type": "or", "elements": [tag, said]}
        subject, param = answer.subject, answer.param
    source = orjson.dumps({"type": "structural_tag", "format": tag}).decode()
    return Constraint(Grammar(kind, source), subject, param, tuple(left_out))


def _functions(use: ToolUse, left_out: list[str]) -> list[CallableFunction]:
    """Return the functions with the schemas of their arguments. Raises ApiError."""
    functions: list[CallableFunction] = []
    size = 0
    for function, position in zip(use.functions, use.positions, strict=True):
        schema = _parameters(function, f"tools[{position}].{use.parameters_at}", left_out)
        size += len(orjson.dumps(schema))
        if size > MOST_ENFORCED_BYTES:
            # Counted as they come, so that no request makes thousands of large ones.
            number = f"number {len(functions) + 1} of {len(use.functions)}"
            raise ApiError(
                400,
                f"Invalid schemas for functions: up to '{function.name}' ({number}) they have "
                f"{size} bytes together, of which {MOST_ENFORCED_BYTES} are allowed.",
                param="tools",
                code="invalid_function_parameters",
            )
        functions.append(CallableFunction(function.name, schema))
    return functions


def _parameters(function: Function, param: str, left_out: list[str]) -> Schema:
    parameters = function.parameters or {"properties": {}, "additionalProperties": False}
    kind = parameters.get("type", "object")
    try:
        if kind == "object":
            ignored: list[str] = []
            whole = {"type": "object"} | parameters
            enforced = enforceable(whole, strict=function.strict or False, left_out=ignored)
            left_out += [f"{function.name}.{each}" for each in ignored]
            return enforced
        problem = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    except SchemaError as error:
        problem = str(error)
    problem = f"Invalid schema for function '{function.name}': {problem}"
    raise invalid(problem, param, "invalid_function_parameters")
