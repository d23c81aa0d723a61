"""May this answer be stored? Only what ended cleanly, in full, and can be rendered again."""

from typing import Any

import orjson

from gateway.core.types import Endpoint, Reason


def declined(endpoint: Endpoint, body: dict[str, Any], result: Any) -> Reason | None:
    """Return why a complete result for a request is not stored, or None when it may be."""
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
        if choice.get("finish_reason") != "stop":
            return Reason.FINISH_REASON
        reason = _declined_chat(choice) if endpoint is Endpoint.CHAT else _declined_text(choice)
        if reason is not None:
            return reason
    return None if _can_be_printed(result) else Reason.UNKNOWN_SHAPE


def _can_be_printed(result: dict[str, Any]) -> bool:
    try:
        orjson.dumps(result)
    except TypeError:  # nested deeper than orjson prints
        return False
    return True


def _declined_chat(choice: dict[str, Any]) -> Reason | None:
    match choice.get("message"):
        case {"content": str(content)} if content:
            return None
        case {"content": str() | None} | {"refusal": _}:
            return Reason.EMPTY
        case _:
            return Reason.UNKNOWN_SHAPE


def _declined_text(choice: dict[str, Any]) -> Reason | None:
    match choice.get("text"):
        case str(text) if text:
            return None
        case str():
            return Reason.EMPTY
        case _:
            return Reason.UNKNOWN_SHAPE


def _expected_choices(endpoint: Endpoint, body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    several = (
        endpoint is Endpoint.COMPLETIONS
        and isinstance(prompt, list)
        and not all(isinstance(token, int) for token in prompt)
    )
    return (body.get("n") or 1) * (len(prompt) if several and isinstance(prompt, list) else 1)
