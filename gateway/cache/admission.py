"""May this answer be stored? Only what ended cleanly, in full, and can be rendered again."""

from collections.abc import Container
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.embeddings import declined_embedding
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.reasons import Reason
from gateway.protocol.responses import declined_response
from policies.decision import CLEAN_FINISH_REASONS

_CUT_OFF = {"length": Reason.TRUNCATED, "content_filter": Reason.FILTERED}


def declined(
    endpoint: Endpoint,
    body: dict[str, Any],
    result: Any,
    finish_reasons: Container[str] = CLEAN_FINISH_REASONS,
) -> Reason | None:
    """Return why a complete result for a request is not stored, or None when it may be."""
    if endpoint is Endpoint.EMBEDDINGS:
        return declined_embedding(result)
    if endpoint is Endpoint.RESPONSES:
        return declined_response(body, result, finish_reasons)
    return _declined_choices(endpoint, body, result, finish_reasons)


def _declined_choices(
    endpoint: Endpoint, body: dict[str, Any], result: Any, finish_reasons: Container[str]
) -> Reason | None:
    if not isinstance(result, dict) or not isinstance(result.get("choices"), list):
        return Reason.UNKNOWN_SHAPE
    choices = result["choices"]
    if not choices:
        return Reason.EMPTY
    if len(choices) != _expected_choices(endpoint, body):
        return Reason.UNCLEAN
    for place, choice in enumerate(choices):
        if not isinstance(choice, dict) or choice.get("index") != place:
            return Reason.UNKNOWN_SHAPE
        finish = choice.get("finish_reason")
        if not isinstance(finish, str):
            return Reason.FINISH_REASON
        if finish not in finish_reasons:
            return _CUT_OFF.get(finish, Reason.FINISH_REASON)
        chat = endpoint is Endpoint.CHAT
        reason = _declined_chat(body, choice) if chat else _declined_text(choice)
        if reason is not None:
            return reason
        if _asks_for_json(body) and not _is_json(_said(endpoint, choice)):
            return Reason.INVALID_JSON
    return None if _can_be_printed(result) else Reason.UNKNOWN_SHAPE


def _can_be_printed(result: dict[str, Any]) -> bool:
    try:
        exact_json.dumps(result)
    except TypeError:  # nested deeper than orjson prints
        return False
    return True


def _declined_chat(body: dict[str, Any], choice: dict[str, Any]) -> Reason | None:
    message = choice.get("message")
    if not isinstance(message, dict) or message.get("audio") is not None:
        return Reason.UNKNOWN_SHAPE
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return Reason.UNKNOWN_SHAPE
    if message.get("refusal"):
        return Reason.REFUSAL
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return Reason.UNKNOWN_SHAPE
    for call in calls or ():
        reason = _declined_call(body, call)
        if reason is not None:
            return reason
    function = message.get("function_call")
    if function is not None and (reason := _declined_function(body, function)) is not None:
        return reason
    promised = {"tool_calls": calls, "function_call": function}
    if not promised.get(choice["finish_reason"], True):
        return Reason.INVALID_TOOL_CALL
    if content or calls or function is not None:
        return None
    return Reason.EMPTY if "content" in message or "refusal" in message else Reason.UNKNOWN_SHAPE


def _declined_call(body: dict[str, Any], call: Any) -> Reason | None:
    match call:
        case {"type": "custom", "custom": {"name": str(), "input": str()}}:
            return None  # free text, whatever it holds
        case {"type": "function", "function": function}:
            return _declined_function(body, function)
        case _:
            return Reason.INVALID_TOOL_CALL


def _declined_function(body: dict[str, Any], function: Any) -> Reason | None:
    match function:
        case {"name": str(name), "arguments": str(arguments)} if name and _is_json(arguments):
            return None
        case {"name": str(name), "arguments": ""} if name and _needs_no_arguments(body, name):
            return None
        case _:
            return Reason.INVALID_TOOL_CALL


def _needs_no_arguments(body: dict[str, Any], name: str) -> bool:
    """Tell whether the request says so of a function of its own: servers then send none."""
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    for function in (*tools, *(body.get("functions") or ())):
        match function:
            case {"name": str(known), "parameters": {"required": [_, *_]}} if known == name:
                return False
            case {"name": str(known)} if known == name:
                return True
    return False


def _declined_text(choice: dict[str, Any]) -> Reason | None:
    match choice.get("text"):
        case str(text) if text:
            return None
        case str():
            return Reason.EMPTY
        case _:
            return Reason.UNKNOWN_SHAPE


def _said(endpoint: Endpoint, choice: dict[str, Any]) -> str | None:
    """Return the text of a choice, or None where it has none but calls tools instead."""
    text = choice["message"].get("content") if endpoint is Endpoint.CHAT else choice["text"]
    return text or None


def _asks_for_json(body: dict[str, Any]) -> bool:
    match body.get("response_format"):
        case {"type": "json_object" | "json_schema"}:
            return True
        case _:
            return False


def _is_json(text: str | None) -> bool:
    """Tell whether the text, where there is any, is JSON."""
    if text is None:
        return True
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _expected_choices(endpoint: Endpoint, body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    several = (
        endpoint is Endpoint.COMPLETIONS
        and isinstance(prompt, list)
        and not all(isinstance(token, int) for token in prompt)
    )
    return (body.get("n") or 1) * (len(prompt) if several and isinstance(prompt, list) else 1)
