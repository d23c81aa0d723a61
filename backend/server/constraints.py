"""From what a client demands of an answer's form to the grammar that decoding is held to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from backend.scheduler.request import Grammar, GrammarKind
from backend.server.json_schema import MOST_ENFORCED_BYTES, SchemaError, enforceable
from backend.server.prompts import off_loop
from backend.server.protocol.errors import ApiError
from backend.server.protocol.generation import (
    MOST_CHARACTERS,
    GenerationFields,
    ResponseFormat,
    StructuredOutputs,
)
from backend.server.protocol.messages import Function
from backend.server.tool_parsers import ToolUse
from backend.server.tool_parsers.streaming_json import CallableFunction


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and whose fault it is if nothing can be generated under it."""

    grammar: Grammar
    subject: str
    param: str

    def refused(self, reason: str) -> ApiError:
        """Return the error of a grammar that cannot be compiled."""
        return ApiError(400, f"Invalid {self.subject}: {reason}.", param=self.param)


def constraint_of(
    asked: GenerationFields,
    response_format: ResponseFormat | None = None,
    tools: ToolUse | None = None,
    *,
    param: str = "response_format",
) -> Constraint | None:
    """Return what the answer must conform to; ``param`` is where a client says its format.

    Raises ApiError.
    """
    wanted = None if response_format is None else _of_response_format(response_format, param)
    constraint = _constraint(_answer_constraint(wanted, asked, param), tools)
    if constraint is not None and asked.min_tokens:
        raise ApiError(
            400,
            "'min_tokens' cannot be set where the form of the answer is: its grammar says when it "
            "is over.",
            param="min_tokens",
            code="invalid_parameter_combination",
        )
    return constraint


async def constraint_off_loop(
    asked: GenerationFields,
    response_format: ResponseFormat | None = None,
    tools: ToolUse | None = None,
    *,
    param: str = "response_format",
) -> Constraint | None:
    """Return ``constraint_of``: the schemas of many functions take seconds. Raises ApiError."""
    demanded = (response_format, tools, asked.structure)
    return await off_loop(
        lambda: constraint_of(asked, response_format, tools, param=param),
        any(each is not None for each in demanded),
    )


def _constraint(answer: Constraint | None, tools: ToolUse | None) -> Constraint | None:
    if tools is None:
        return answer
    if tools.demanded:
        held = _functions_held(tools)
        return _of_tools(tools.form.calls(held, several=tools.several), GrammarKind.STRUCTURE)
    if answer is not None:
        # Either calls, or the answer.
        if answer.grammar.kind not in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA):
            raise ApiError(
                400,
                f"'{answer.param}' cannot be set beside 'tools'.",
                param=answer.param,
                code="invalid_parameter_combination",
            )
        schema = orjson.loads(answer.grammar.source or '{"type": "object"}')
        calls = tools.form.calls(_functions_held(tools), several=tools.several)
        either = [calls, {"type": "json_schema", "json_schema": schema}]
        return Constraint(
            _structure({"type": "or", "elements": either}), answer.subject, answer.param
        )
    if any(function.strict for function in tools.functions):
        held = _functions_held(tools)
        tag = tools.form.text_or_calls(held, several=tools.several)
        return _of_tools(tag, GrammarKind.TEXT_WITH_STRUCTURE)
    return None


def _of_tools(tag: dict[str, Any], kind: GrammarKind) -> Constraint:
    return Constraint(_structure(tag, kind), "schema for functions", "tools")


def _structure(tag: dict[str, Any], kind: GrammarKind = GrammarKind.STRUCTURE) -> Grammar:
    return Grammar(kind, orjson.dumps({"type": "structural_tag", "format": tag}).decode())


def _answer_constraint(
    wanted: Constraint | None, asked: GenerationFields, param: str
) -> Constraint | None:
    other = None if asked.structure is None else _of_structured_outputs(*asked.structure)
    if wanted is not None and other is not None:
        raise ApiError(
            400,
            f"'{param}' and '{other.param}' cannot be set at the same time.",
            param=other.param,
            code="invalid_parameter_combination",
        )
    return wanted or other


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
    try:
        source = orjson.dumps(enforceable(schema, strict=strict)).decode()
    except SchemaError as error:
        raise ApiError(400, f"Invalid {subject}: {error}", param=param) from None
    return Constraint(Grammar(GrammarKind.JSON_SCHEMA, source), subject, param)


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
    if outputs.regex is not None:
        return _of_text(GrammarKind.REGEX, outputs.regex, f"{prefix}regex")
    if outputs.choice is not None:
        return _of_choices(outputs.choice, f"{prefix}choice")
    if outputs.grammar is not None:
        return _of_text(GrammarKind.EBNF, outputs.grammar, f"{prefix}grammar")
    if outputs.json_object:
        return _of_text(GrammarKind.JSON_OBJECT, "", f"{prefix}json_object")
    return None


def _of_text(kind: GrammarKind, source: str, param: str) -> Constraint:
    return Constraint(Grammar(kind, source), f"'{param}'", param)


def _of_choices(choices: Sequence[str], param: str) -> Constraint:
    """Return the grammar of one of ``choices``, each spelled out in bytes that need no escape."""
    size = sum(map(len, choices))
    if size > MOST_CHARACTERS:
        problem = f"{size} characters together, of which {MOST_CHARACTERS} are allowed"
        raise ApiError(400, f"Invalid '{param}': the choices have {problem}.", param=param)
    source = "root ::= " + " | ".join(f'"{_spelled(choice)}"' for choice in choices)
    return _of_text(GrammarKind.EBNF, source, param)


def _spelled(text: str) -> str:
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\U{ord(character):08x}"
        for character in text
    )


def _functions_held(use: ToolUse) -> list[CallableFunction]:
    """Return the functions with what their arguments are held to. Raises ApiError."""
    held: list[CallableFunction] = []
    size = 0
    for function, position in zip(use.functions, use.positions, strict=True):
        schema = _parameters(function, f"tools[{position}].{use.parameters_at}")
        size += len(orjson.dumps(schema))
        if size > MOST_ENFORCED_BYTES:
            # Counted as they come, so that no request makes thousands of large ones.
            number = f"number {len(held) + 1} of {len(use.functions)}"
            raise ApiError(
                400,
                f"Invalid schemas for functions: up to '{function.name}' ({number}) they have "
                f"{size} bytes together, of which {MOST_ENFORCED_BYTES} are allowed.",
                param="tools",
                code="invalid_function_parameters",
            )
        held.append(CallableFunction(function.name, schema))
    return held


def _parameters(function: Function, param: str) -> dict[str, Any]:
    parameters = function.parameters or {"properties": {}, "additionalProperties": False}
    kind = parameters.get("type", "object")
    if kind != "object":
        raise _invalid(
            function,
            param,
            f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.",
        )
    try:
        return enforceable({"type": "object"} | parameters, strict=function.strict or False)
    except SchemaError as error:
        raise _invalid(function, param, str(error)) from None


def _invalid(function: Function, param: str, problem: str) -> ApiError:
    return ApiError(
        400,
        f"Invalid schema for function '{function.name}': {problem}",
        param=param,
        code="invalid_function_parameters",
    )
