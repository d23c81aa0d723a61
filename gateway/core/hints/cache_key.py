"""The ``prompt_cache_key``, by which OpenAI sends requests that begin alike to one machine.

Law: two requests of a rule and a tenant have the same key where they could share anything: where
they begin alike for about as long as a prefix must be to be cached at all. The key is a digest
under the gateway's secret, and tells nothing of the prompt.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from gateway.core.rewrite.texts import is_block
from gateway.core.types import Endpoint

FIELD = "prompt_cache_key"
BEGINNING_BYTES = 3072
"""1,024 tokens of dense text. Too few only bring prompts together that share less."""
DIGEST_BYTES = 16
"""OpenAI takes keys of 64 characters at most."""

_BEFORE = {Endpoint.CHAT: ("tools", "functions"), Endpoint.RESPONSES: ("tools", "instructions")}
_TURNS = {Endpoint.CHAT: "messages", Endpoint.RESPONSES: "input"}


def cache_key(
    endpoint: Endpoint, body: dict[str, Any], rule: str, owner: bytes, keys: int
) -> str | None:
    """Return the key of a request; None where it cannot be read.

    ``owner`` tells tenants apart. A conversation stays with one of its ``keys``.
    """
    running = blake2b(key=owner, digest_size=DIGEST_BYTES, person=b"refrain prompt")
    running.update(orjson.dumps([rule, body.get("model")]))
    left = BEGINNING_BYTES
    try:
        for piece in _pieces(endpoint, body):
            running.update(piece[:left])
            left -= len(piece)
            if left <= 0:
                break
        if keys > 1:
            running.update(bytes([_of_conversation(endpoint, body, keys)]))
    except TypeError:  # an integer of more than 64 bits, or text that is no Unicode
        return None
    return running.hexdigest()


def _pieces(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the prompt in the order in which it is read, without what was moved to its end."""
    for field in _BEFORE[endpoint]:
        value = body.get(field)
        for each in value if isinstance(value, list) else (value,) if value else ():
            yield orjson.dumps(each)
    for turn in _turns(endpoint, body):
        yield orjson.dumps(turn)


def _turns(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Any]:
    turns = body.get(_TURNS[endpoint])
    for turn in turns if isinstance(turns, list) else (turns,):
        if not (isinstance(turn, dict) and is_block(turn)):
            yield turn


def _of_conversation(endpoint: Endpoint, body: dict[str, Any], keys: int) -> int:
    """Return which of several keys is that of a conversation, which its first user turn tells."""
    asked: Any = None
    for turn in _turns(endpoint, body):
        if not isinstance(turn, dict) or turn.get("role") == "user":
            asked = turn.get("content") if isinstance(turn, dict) else turn
            break
    digest = blake2b(orjson.dumps(asked), digest_size=8).digest()
    return int.from_bytes(digest, "big") % keys
