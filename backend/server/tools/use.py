"""What tools a request allows, and which of them it demands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from backend.server.errors import ApiError
from backend.server.json_schema import MOST_ENFORCED_BYTES, SchemaError, enforceable
from backend.server.tools.events import ToolCallParser
from backend.server.tools.fields import Function, NamedChoice, Tool, ToolChoice
from backend.server.tools.formats import CallableFunction, ToolFormat


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``functions`` may be called, as the model's ``form`` has it; ``demanded``: one must be.

    ``several``: more than one call in an answer is wanted.
    """

    form: ToolFormat
    functions: tuple[Function, ...]
    positions: tuple[int, ...]
    """Of the functions among the tools that were sent."""
    demanded: bool
    several: bool
    parameters_at: str
    """Where in a tool a client says the schema of its arguments."""

    def parser(self, *, eager: bool) -> ToolCallParser:
        """Return fresh state for one choice."""
        names = [function.name for function in self.functions]
        return self.form.parser(names, most_calls=None if self.several else 1, eager=eager)


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    parallel: bool | None,
    form: ToolFormat | None,
    *,
    parameters_at: str = "function.parameters",
) -> ToolUse | None:
    """Return what is allowed, None for no tools at all. Raises ApiError."""
    if not tools or choice == "none":
        return None
    if form is None:
        raise ApiError(
            400,
            "Unsupported parameter: 'tools' is not supported with this model, whose chat template "
            "knows nothing of tools; leave it out.",
            param="tools",
            code="unsupported_parameter",
        )
    functions = tuple(tool.function for tool in tools)
    positions = tuple(range(len(functions)))
    if isinstance(choice, NamedChoice):
        named = [at for at in positions if functions[at].name == choice.function.name]
        positions = (named[0],)
        functions = (functions[named[0]],)
    demanded = isinstance(choice, NamedChoice) or choice == "required"
    several = parallel is not False and not isinstance(choice, NamedChoice)
    return ToolUse(form, functions, positions, demanded, several, parameters_at)


def functions_held(use: ToolUse) -> list[CallableFunction]:
    """Return the functions with what their arguments are held to. Raises ApiError."""
    held: list[CallableFunction] = []
    size = 0
    for function, position in zip(use.functions, use.positions, strict=True):
        schema = _schema(function, f"tools[{position}].{use.parameters_at}")
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


def _schema(function: Function, param: str) -> dict[str, Any]:
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
