"""Results of the Responses API: what of them is the answer, and whether it may be stored.

Law: a response repeats parts of its request, some of them neutral: they name the caller, not the
answer. They are taken out before it is stored, and a hit repeats those of the request it answers.
"""

import hashlib
from collections.abc import Container, Mapping
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.reasons import Reason

_UNNAMED: Mapping[str, Any] = {
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""Neutral fields that a response repeats, with what it says where the request had none."""

_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
_CUT_OFF = {"length": Reason.TRUNCATED, "content_filter": Reason.FILTERED}


def unnamed(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result without what names its caller, or None where it names nobody."""
    named = {name for name, nothing in _UNNAMED.items() if result.get(name) not in (None, nothing)}
    if not named:
        return None
    return {name: _UNNAMED[name] if name in named else value for name, value in result.items()}


def named(result: bytes, body: Mapping[str, Any]) -> bytes:
    """Return the stored result as the answer to a request, naming its caller."""
    names = _names(body)
    if not names:
        return result
    response = exact_json.loads(result)
    return exact_json.dumps({name: names.get(name, value) for name, value in response.items()})


def caller_key(key: bytes, body: Mapping[str, Any]) -> bytes:
    """Return a key that only requests share which would get the very same response."""
    names = _names(body)
    if not names:
        return key
    return hashlib.sha256(key + exact_json.dumps(names, sort_keys=True)).digest()


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _UNNAMED if body.get(name) is not None}


def declined_response(
    body: Mapping[str, Any], result: Any, finish_reasons: Container[str]
) -> Reason | None:
    """Return why a response is not stored, or None when it may be."""
    match result:
        case {"object": "response", "output": [*items], "status": str(status)}:
            pass
        case _:
            return Reason.UNKNOWN_SHAPE
    if result.get("error") is not None or status not in ("completed", "incomplete"):
        return Reason.UNCLEAN
    finish = _finish(status, result.get("incomplete_details"), items)
    if finish not in finish_reasons:
        return _CUT_OFF.get(finish, Reason.FINISH_REASON)
    for item in items:
        reason = _declined_item(item, done=status == "completed")
        if reason is not None:
            return reason
    texts = [part["text"] for item in items for part in _parts(item) if "text" in part]
    called = any(item["type"] in ("function_call", "custom_tool_call") for item in items)
    if not called and not any(texts):
        return Reason.EMPTY
    if texts and _asks_for_json(body) and not _is_json("".join(texts)):
        return Reason.INVALID_JSON
    return _unprintable(result)


def _finish(status: str, details: Any, items: list[Any]) -> str:
    """Return the word that chat completions have for how it ended."""
    if status == "incomplete":
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH.get(str(reason), "length")
    calls = any(isinstance(item, dict) and item.get("type") == "function_call" for item in items)
    return "tool_calls" if calls else "stop"


def _parts(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    return item["content"] if item["type"] == "message" else []


def _declined_item(item: Any, *, done: bool) -> Reason | None:
    if isinstance(item, dict) and done and item.get("status") not in (None, "completed"):
        return Reason.UNCLEAN
    match item:
        case {"type": "message", "role": "assistant", "content": [*parts]}:
            return next((why for part in parts if (why := _declined_part(part))), None)
        case {"type": "reasoning", "summary": [*summary], **rest}:
            content = rest.get("content")
            texts = [*summary, *content] if isinstance(content, list) else summary
            known = all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in texts)
            return None if known else Reason.UNKNOWN_SHAPE
        case {"type": "function_call", "name": str(), "call_id": str(), "arguments": str(given)}:
            return None if _is_json(given) else Reason.INVALID_TOOL_CALL
        case {"type": "custom_tool_call", "name": str(), "call_id": str(), "input": str()}:
            return None
        case _:  # what only the upstream's own tools can have made
            return Reason.UNKNOWN_SHAPE


def _declined_part(part: Any) -> Reason | None:
    match part:
        case {"type": "output_text", "text": str()}:
            return None
        case {"type": "refusal", "refusal": str()}:
            return Reason.REFUSAL
        case _:
            return Reason.UNKNOWN_SHAPE


def _asks_for_json(body: Mapping[str, Any]) -> bool:
    match body.get("text"):
        case {"format": {"type": "json_object" | "json_schema"}}:
            return True
        case _:
            return False


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _unprintable(result: Any) -> Reason | None:
    try:
        exact_json.dumps(result)
    except TypeError:  # nested deeper than orjson prints
        return Reason.UNKNOWN_SHAPE
    return None
