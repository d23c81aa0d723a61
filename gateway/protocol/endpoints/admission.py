"""May this answer be stored? Only what ended cleanly, in full, and can be rendered again."""

from collections.abc import Callable, Container
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason

CUT_OFF = {"length": Reason.TRUNCATED, "content_filter": Reason.FILTERED}
"""Why an answer is not stored that ended so, where the policy does not allow it."""


def declined_choices(
    body: dict[str, Any],
    result: Any,
    finish_reasons: Container[str],
    *,
    declined_choice: Callable[[dict[str, Any], dict[str, Any]], Reason | None],
    text: Callable[[dict[str, Any]], Any],
    prompts: int = 1,
) -> Reason | None:
    """Return why a list of choices is not stored, or None; ``prompts`` have ``n`` choices each."""
    if not isinstance(result, dict) or not isinstance(result.get("choices"), list):
        return Reason.UNKNOWN_SHAPE
    choices = result["choices"]
    if not choices:
        return Reason.EMPTY
    if len(choices) != (body.get("n") or 1) * prompts:
        return Reason.UNCLEAN
    for place, choice in enumerate(choices):
        if not isinstance(choice, dict) or choice.get("index") != place:
            return Reason.UNKNOWN_SHAPE
        finish = choice.get("finish_reason")
        if not isinstance(finish, str):
            return Reason.FINISH_REASON
        if finish not in finish_reasons:
            return CUT_OFF.get(finish, Reason.FINISH_REASON)
        if (reason := declined_choice(body, choice)) is not None:
            return reason
        # A choice that calls tools has no text.
        if _asks_for_json(body) and (said := text(choice)) and not is_json(said):
            return Reason.INVALID_JSON
    return unprintable(result)


def _asks_for_json(body: dict[str, Any]) -> bool:
    match body.get("response_format"):
        case {"type": "json_object" | "json_schema"}:
            return True
        case _:
            return False


def is_json(text: str) -> bool:
    """Tell whether a text is JSON."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def unprintable(result: Any) -> Reason | None:
    """Return why a result could not be written again, or None."""
    try:
        exact_json.dumps(result)
    except TypeError:  # nested deeper than orjson prints
        return Reason.UNKNOWN_SHAPE
    return None
