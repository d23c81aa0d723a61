"""A prompt's parts in the order in which a model reads them: tools, instructions, turns.

Chat templates differ; this is the order of OpenAI's and Anthropic's own prefix caches. What is no
part of the prompt (a client's own marks for the cache) is left out.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gateway.protocol.endpoint import Endpoint
from policies.decision import MARKS

_TOOLS = ("tools", "functions")
_SPOKEN = frozenset({"text", "input_text", "output_text"})
_EMBEDDED = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]{256,}")


class Part(NamedTuple):
    """A piece of a prompt; ``place`` is where it stands, such as ``messages[0] (system)``."""

    place: str
    text: str


def laid_out(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request's prompt; what is not text is printed as JSON."""
    for name in _TOOLS:
        for index, tool in enumerate(_listed(body.get(name))):
            yield Part(f"{name}[{index}]", _printed(_unmarked(tool)) + "\n")
    match endpoint:
        case Endpoint.CHAT:
            yield from _turns("messages", body.get("messages"))
        case Endpoint.RESPONSES:
            if body.get("instructions"):
                yield Part("instructions", _text(body["instructions"]) + "\n")
            yield from _turns("input", body.get("input"))
        case Endpoint.COMPLETIONS:
            yield Part("prompt", _text(body.get("prompt")))
        case Endpoint.EMBEDDINGS:
            yield Part("input", _text(body.get("input")))


def _turns(field: str, turns: Any) -> Iterator[Part]:
    if isinstance(turns, str):
        yield Part(field, f"<user>{turns}\n")
        return
    for index, turn in enumerate(_listed(turns)):
        if not isinstance(turn, dict):
            yield Part(f"{field}[{index}]", _printed(turn))
            continue
        role = str(turn.get("role") or turn.get("type") or "user")
        rest = {name: turn[name] for name in _unmarked(turn) if name not in ("role", "content")}
        told = _printed(rest) if rest else ""
        yield Part(f"{field}[{index}] ({role})", f"<{role}>{_text(turn.get('content'))}{told}\n")


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
