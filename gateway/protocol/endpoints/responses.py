"""``/v1/responses``: what of a response is the answer, and whether it may be stored.

Law: a response repeats parts of its request, some of them neutral: they name the caller, not the
answer. They are taken out before it is stored, and a hit repeats those of the request it answers.
"""

import hashlib
from collections.abc import Container, Mapping
from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.choices import CUT_OFF, is_json, unprintable
from gateway.protocol.endpoints.spec import Body, EndpointSpec, Question, Result, Streaming
from gateway.protocol.errors import ClientError
from gateway.protocol.key_fields import (
    ARRAY,
    BOOLEAN,
    GENERATION,
    INTEGER,
    OBJECT,
    STRING,
    TOOLS,
    Fields,
    Type,
    check_fields,
    check_type,
    hosted_tools,
    keyed,
    neutral,
    when_given,
    when_true,
)
from gateway.protocol.responses_stream import StreamedResponse, render_response


def _kept_upstream(items: Any) -> Reason | None:
    """Find input items that stand for something kept upstream, or that bring hosted tools."""
    for item in items if isinstance(items, list) else ():
        match item:
            case {"type": "additional_tools", **rest}:
                if (reason := hosted_tools(rest.get("tools"))) is not None:
                    return reason
            case {"type": "item_reference"}:
                return Reason.CONVERSATION
            case {"type": str()} | {"role": _}:
                pass
            case _:  # a reference may come without its type
                return Reason.CONVERSATION
    return None


_FIELDS: Fields = {
    **GENERATION,
    "store": neutral(BOOLEAN, when_true(Reason.STORE_TRUE), absent=Reason.STORE_TRUE),
    "input": keyed(Type("one of a string or array of objects", (str, list)), _kept_upstream),
    "background": neutral(BOOLEAN, when_true(Reason.BACKGROUND)),
    "context_management": keyed(),
    "conversation": keyed(
        Type("one of a string or object", (str, dict)), when_given(Reason.CONVERSATION)
    ),
    "include": keyed(ARRAY),
    "instructions": keyed(STRING),
    "max_output_tokens": keyed(INTEGER),
    "max_tool_calls": keyed(INTEGER),
    "moderation": keyed(),
    "parallel_tool_calls": keyed(BOOLEAN),
    "previous_response_id": keyed(STRING, when_given(Reason.PREVIOUS_RESPONSE)),
    "prompt": keyed(refusal=when_given(Reason.STORED_PROMPT)),
    "reasoning": keyed(OBJECT),
    "text": keyed(OBJECT),
    "tool_choice": keyed(),
    "tools": TOOLS,
    "top_logprobs": keyed(INTEGER),
    "truncation": keyed(),
}


def _validate(body: Body) -> ClientError | None:
    # A template may name the model.
    odd = check_fields(body, _FIELDS, names_model=body.get("prompt") is None)
    given = body.get("input")
    for place, item in enumerate(given if isinstance(given, list) else ()):
        check_type(f"input[{place}]", item, OBJECT)
    return odd[0] if odd else None


def _find_question(body: Body) -> Question | Reason:
    """Find the input, where it is one text."""
    if body.get("tools") or body.get("functions"):
        return Reason.TOOLS
    text = body.get("input")
    if not isinstance(text, str):
        return Reason.NOT_TEXT
    return Question(text, {field: value for field, value in body.items() if field != "input"})


_UNNAMED: Mapping[str, Any] = {
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""Neutral fields that a response repeats, with what it says where the request had none."""

_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}


def _anonymous(result: Result) -> Result | None:
    named = {name for name, nothing in _UNNAMED.items() if result.get(name) not in (None, nothing)}
    if not named:
        return None
    return {name: _UNNAMED[name] if name in named else value for name, value in result.items()}


def _render(body: Body, _key: bytes, result: bytes) -> bytes:
    names = _names(body)
    if not names:
        return result
    response = exact_json.loads(result)
    return exact_json.dumps({name: names.get(name, value) for name, value in response.items()})


def _caller_key(key: bytes, body: Body) -> bytes:
    names = _names(body)
    if not names:
        return key
    return hashlib.sha256(key + exact_json.dumps(names, sort_keys=True)).digest()


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _UNNAMED if body.get(name) is not None}


def _declined(body: Body, result: Any, finish_reasons: Container[str]) -> Reason | None:
    match result:
        case {"object": "response", "output": [*items], "status": str(status)}:
            pass
        case _:
            return Reason.UNKNOWN_SHAPE
    if result.get("error") is not None or status not in ("completed", "incomplete"):
        return Reason.UNCLEAN
    finish = _finish(status, result.get("incomplete_details"), items)
    if finish not in finish_reasons:
        return CUT_OFF.get(finish, Reason.FINISH_REASON)
    for item in items:
        reason = _declined_item(item, done=status == "completed")
        if reason is not None:
            return reason
    texts = [part["text"] for item in items for part in _parts(item) if "text" in part]
    called = any(item["type"] in ("function_call", "custom_tool_call") for item in items)
    if not called and not any(texts):
        return Reason.EMPTY
    if texts and _asks_for_json(body) and not is_json("".join(texts)):
        return Reason.INVALID_JSON
    return unprintable(result)


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
            return None if is_json(given) else Reason.INVALID_TOOL_CALL
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


def _render_stream(result: Result, *, include_usage: bool) -> bytes:
    del include_usage  # it is part of the response
    return render_response(result)


SPEC = EndpointSpec(
    fields=_FIELDS,
    validate=_validate,
    recognises=lambda body: "input" in body,
    operation="chat",
    prompt_fields=("tools", "instructions", "input"),
    question_field="input",
    text_type="input_text",
    instructions="instructions",
    find_question=_find_question,
    declined=_declined,
    anonymous=_anonymous,
    caller_key=_caller_key,
    render=_render,
    streaming=Streaming(_render_stream, StreamedResponse, usage_option=False),
    keeps_by_id=True,
)
