"""A prompt's parts in the order in which a model reads them: tools, instructions, turns.

Chat templates differ; this is the order of OpenAI's and Anthropic's own prefix caches, and where a
template puts the system prompt before the tools, what is in front of what changes only between
these two. What is no part of the prompt (a client's own marks for the cache) is left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from gateway.prompts.texts import BLOCK
from gateway.protocol.endpoint import Endpoint
from policies.decision import MARKS

INSTRUCTING = frozenset({"system", "developer"})
"""Roles whose words are the operator's."""

_TOOLS = ("tools", "functions")
_SPOKEN = frozenset({"text", "input_text", "output_text"})
_EMBEDDED = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]{256,}")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt; ``place`` is where in the body it stands, such as ``messages[0]``."""

    place: str
    role: str
    """``tools``, or whose words these are: ``system``, ``user`` …"""
    text: str
    opening: int = 0
    """Characters of ``text`` that only say whose words these are."""

    @property
    def is_block(self) -> bool:
        """Whether these are values that were moved out of other parts."""
        return self.text.startswith(BLOCK, self.opening)


def laid_out(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request's prompt; what is not text is printed as JSON."""
    for field in _TOOLS:
        for index, tool in enumerate(_listed(body.get(field))):
            yield Part(f"{field}[{index}]", "tools", _printed(_unmarked(tool)) + "\n")
    match endpoint:
        case Endpoint.CHAT:
            yield from _turns("messages", body.get("messages"))
        case Endpoint.RESPONSES:
            if body.get("instructions"):
                yield Part("instructions", "system", _text(body["instructions"]) + "\n")
            yield from _turns("input", body.get("input"))
        case Endpoint.COMPLETIONS:
            yield Part("prompt", "user", _text(body.get("prompt")))
        case Endpoint.EMBEDDINGS:
            yield Part("input", "user", _text(body.get("input")))


def part_at(parts: Sequence[Part], at: int) -> tuple[Part, int]:
    """Return the part in which a character of the prompt stands, and where that part begins."""
    start = 0
    for part in parts:
        if at < start + len(part.text):
            return part, start
        start += len(part.text)
    return parts[-1], start - len(parts[-1].text)


def _turns(field: str, turns: Any) -> Iterator[Part]:
    if isinstance(turns, str):
        yield Part(field, "user", f"<user>{turns}\n", len("<user>"))
        return
    for index, turn in enumerate(_listed(turns)):
        if not isinstance(turn, dict):
            yield Part(f"{field}[{index}]", "user", _printed(turn))
            continue
        role = str(turn.get("role") or turn.get("type") or "user")
        rest = {name: turn[name] for name in _unmarked(turn) if name not in ("role", "content")}
        told = _printed(rest) if rest else ""
        opening = f"<{role}>"
        text = f"{opening}{_text(turn.get('content'))}{told}\n"
        yield Part(f"{field}[{index}]", role, text, len(opening))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list() if value and all(isinstance(each, dict) for each in value):
            return "\n".join(map(_part_text, value))
        case _:
            return _printed(value)


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") in _SPOKEN and isinstance(text, str):
        return text
    return _printed(_unmarked(part))


def _unmarked(value: Any) -> Any:
    """Return an object without marks; those of what it holds are left."""
    if not isinstance(value, dict) or MARKS.isdisjoint(value):
        return value
    return {name: each for name, each in value.items() if name not in MARKS}


def _printed(value: Any) -> str:
    try:
        printed = orjson.dumps(value).decode()
    except TypeError:  # nested deeper than can be printed, or lone surrogates
        return repr(value)
    # An image would count for thousands of times the tokens that a model makes of it.
    return _EMBEDDED.sub(_digest, printed) if ";base64," in printed else printed


def _digest(data: re.Match[str]) -> str:
    return blake2b(data[0].encode(), digest_size=16).hexdigest()
