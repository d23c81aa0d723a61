"""What a response says of its request, defaults filled in. Pure."""

from typing import Any

import orjson

from backend.scheduler.request import SamplingParams
from backend.server.protocol.errors import ApiError
from backend.server.protocol.responses import (
    FunctionTool,
    NamedFunction,
    ResponsesRequest,
    TextFormat,
)


def repeated(
    asked: ResponsesRequest, sampling: SamplingParams, response_id: str, now: int
) -> dict[str, Any]:
    """Return the fields of a response that do not depend on the answer.

    ``sampling`` is what the engine is told, the model's own advice included. Who asks is repeated
    as null too: a cache fills in there who asks for an answer that it has kept.
    """
    return {
        "id": response_id,
        "object": "response",
        "created_at": now,
        "background": False,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "model": asked.model,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {
            "format": _format(None if asked.text is None else asked.text.format),
            "verbosity": "medium",
        },
        "tool_choice": _choice(asked),
        "tools": [_tool(tool) for tool in asked.tools or ()],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": asked.user,
        "metadata": asked.metadata or {},
    }


def check_printable(told: dict[str, Any]) -> None:
    """Raise ApiError (400) where a client's schema is nested deeper than can be repeated."""
    try:
        orjson.dumps({"response": told})
    except orjson.JSONEncodeError:
        raise ApiError(400, "The request body is nested too deeply.") from None


def _choice(asked: ResponsesRequest) -> Any:
    chosen = asked.tool_choice
    if isinstance(chosen, NamedFunction):
        return {"type": "function", "name": chosen.name}
    return chosen or "auto"


def _format(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    if wanted.type != "json_schema":
        return {"type": wanted.type} | ({"schema": wanted.definition} if wanted.definition else {})
    described = {} if wanted.description is None else {"description": wanted.description}
    return {
        "type": "json_schema",
        "name": wanted.name,
        **described,
        "schema": wanted.definition,
        "strict": wanted.strict or False,
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict or False,
    }
