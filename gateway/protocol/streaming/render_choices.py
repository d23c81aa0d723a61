"""Answers that are a list of choices, written as a stream.

The role comes first, then the content, then the finish reason; one id and ``created`` throughout,
the usage chunk if requested, ``[DONE]``. Law: the chunks hold everything that the result holds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.protocol import exact_json
from gateway.protocol.streaming.decode import DONE, encode


class ChoiceForm(NamedTuple):
    """An endpoint's form of choices: the names of a reply and a chunk, and their content."""

    reply: str
    chunk: str
    defaults: Mapping[str, Any]
    """The default content of a choice if no chunk has any."""
    pieces: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]
    """Yields the choice of each chunk by which one is streamed."""


_PLAIN_ONLY = frozenset({"object", "choices", "usage"})
_PLACED = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
"""Fields of a choice that have their own place; all others come with the finish reason."""


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
    return b"".join([*(encode(exact_json.dumps(chunk)) for chunk in chunks), encode(DONE)])


def piece(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a choice as one chunk has it."""
    return {"index": choice["index"], "logprobs": None, "finish_reason": None, **fields}


def last_chunk(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a choice's last chunk."""
    extras = {name: value for name, value in choice.items() if name not in _PLACED}
    return {**extras, "finish_reason": choice.get("finish_reason")}
