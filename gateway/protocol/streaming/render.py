"""From a stored result to a streamed reply in OpenAI's form (the plain reply is the result).

Role first, then the content, then the finish reason, one id and ``created`` throughout, the usage
chunk where it was asked for, ``[DONE]``. Law: the chunks hold all that the result does.
"""

from typing import Any

from gateway.protocol import exact_json
from gateway.protocol.streaming import sse
from gateway.protocol.streaming.assemble import ChoiceForm

_PLAIN_ONLY = frozenset({"object", "choices", "usage"})
_PLACED = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
"""Fields of a choice that have a place of their own; all others come with the finish reason."""


def render_choices(form: ChoiceForm, result: dict[str, Any], *, include_usage: bool) -> bytes:
    """Return the whole event stream of a result."""
    top = {name: value for name, value in result.items() if name not in _PLAIN_ONLY}
    top["object"] = form.chunk
    if include_usage:
        top["usage"] = None
    chunks = [
        {**top, "choices": [each]} for choice in result["choices"] for each in form.pieces(choice)
    ]
    if include_usage and result.get("usage") is not None:
        chunks.append({**top, "choices": [], "usage": result["usage"]})
    events = [sse.encode(exact_json.dumps(chunk)) for chunk in chunks]
    events.append(sse.encode(sse.DONE))
    return b"".join(events)


def piece(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a choice as one chunk has it."""
    return {"index": choice["index"], "logprobs": None, "finish_reason": None, **fields}


def ending(choice: dict[str, Any]) -> dict[str, Any]:
    """Return what the last chunk of a choice has."""
    extras = {name: value for name, value in choice.items() if name not in _PLACED}
    return {**extras, "finish_reason": choice.get("finish_reason")}
