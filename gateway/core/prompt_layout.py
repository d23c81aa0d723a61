"""A prompt's parts in the order in which a model reads them: tools, instructions, turns.

Chat templates differ; this is the order of OpenAI's and Anthropic's own prefix caches, and where a
template puts the system prompt before the tools, what is in front of what changes only between
these two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.types import Endpoint

_TOOLS = ("tools", "functions")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt; ``place`` is where in the body it stands, such as ``messages[0]``."""

    place: str
    role: str
    """``tools``, or whose words these are: ``system``, ``user`` …"""
    text: str


def laid_out(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request's prompt; what is not text is printed as JSON."""
    for field in _TOOLS:
        for index, tool in enumerate(_listed(body.get(field))):
            yield Part(f"{field}[{index}]", "tools", _printed(tool) + "\n")
    match endpoint:
        case Endpoint.CHAT:
            yield from _turns("messages", body.get("messages"))
        case Endpoint.RESPONSES:
            if body.get("instructions"):
                yield Part("instructions", "system", _text(body["instructions"]))
            yield from _turns("input", body.get("input"))
        case Endpoint.COMPLETIONS:
            yield Part("prompt", "user", _text(body.get("prompt")))
        case Endpoint.EMBEDDINGS:
            yield Part("input", "user", _text(body.get("input")))


def _turns(field: str, turns: Any) -> Iterator[Part]:
    if isinstance(turns, str):
        yield Part(field, "user", turns)
        return
    for index, turn in enumerate(_listed(turns)):
        if not isinstance(turn, dict):
            yield Part(f"{field}[{index}]", "user", _printed(turn))
            continue
        role = str(turn.get("role") or turn.get("type") or "user")
        rest = {name: turn[name] for name in turn if name not in ("role", "content")}
        told = _printed(rest) if rest else ""
        yield Part(f"{field}[{index}]", role, f"<{role}>{_text(turn.get('content'))}{told}\n")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case [{"type": "text" | "input_text" | "output_text", "text": str(text), **rest}] if not (
            rest
        ):
            return text
        case _:
            return _printed(value)


def _printed(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested deeper than can be printed, or lone surrogates
        return repr(value)
