"""May an answer be stored? Only one that ended cleanly, in full, and can be written again.

Here is what several endpoints share. Each endpoint's record judges its own answers by it, and
``CacheWriter.store`` puts all together: this verdict, personal data, the size.
"""

from collections.abc import Callable, Container
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.http.cache_status import Reason

CUT_OFF = {"length": Reason.TRUNCATED, "content_filter": Reason.FILTERED}
"""Why an answer is not stored that ended so, where the policy does not allow it."""


def decline_choices(
    body: dict[str, Any],
    result: Any,
    finish_reasons: Container[str],
    *,
    decline_choice: Callable[[dict[str, Any], dict[str, Any]], Reason | None],
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
        if (reason := decline_choice(body, choice)) is not None:
            return reason
        # A choice that calls tools has no text.
        if (answer := text(choice)) and lacks_json(body.get("response_format"), answer):
            return Reason.INVALID_JSON
    return unprintable(result)


def lacks_json(wanted: Any, text: str) -> bool:
    """Tell whether a response format requires JSON, and the text is not JSON."""
    asks = isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")
    return asks and not is_json(text)


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
