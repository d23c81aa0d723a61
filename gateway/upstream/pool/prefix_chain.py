"""A prompt as a chain of block digests, which tells how far two prompts begin alike.

Laws:
- The order of bytes is that of the rendered prompt: tools, instructions, then the turns. So two
  chains have as many digests in common as their prompts have blocks in common from the start on.
- The root holds the model, the salt and the credentials that are passed on: what an upstream's
  cache may keep apart never looks alike.
- Digests only; no text is kept.
- Only the start of a very long prompt is read: printing megabytes would hold up the loop.

An upstream cuts its blocks by tokens and renders the prompt by its own template. So a common prefix
is only as long as stated here to within a block or two of each.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.headers import CREDENTIALS
from gateway.upstream.request import SALT
from policies.decision import Endpoint


def cut(body: dict[str, Any], fields: Sequence[str], most: int = 2**19) -> dict[str, Any]:
    """Return the body with the first ``most`` bytes of ``fields``, in this order.

    The JSON of the rest begins with the same bytes as the JSON of the whole. What is nested too
    deeply is left as it is.
    """
    cutter = _Cutter(most)
    try:
        return {**body, **{name: cutter.cut(body[name]) for name in fields if name in body}}
    except RecursionError:
        return body


class _Cutter:
    """Counts no more bytes than JSON has, but for what has to be escaped."""

    def __init__(self, most: int) -> None:
        self._left = most

    def cut(self, value: Any) -> Any:
        match value:
            case str():
                value = value[: max(self._left, 0)]
                self._left -= len(value) + 2
                return value
            case [int(), *_]:
                value = value[: max(self._left, 0) // 2 + 1]
                self._left -= 2 * len(value)
                return value
            case list():
                return [self.cut(each) for each in self._while_any(value)]
            case dict():
                return {name: self._named(name, value[name]) for name in self._while_any(value)}
            case _:
                self._left -= 1
                return value

    def _named(self, name: str, value: Any) -> Any:
        self._left -= len(name) + 3
        return self.cut(value)

    def _while_any(self, values: Any) -> Any:
        for value in values:
            if self._left <= 0:
                return
            self._left -= 1
            yield value


BLOCK_BYTES = 512
"""About 128 tokens of English."""

MOST_BLOCKS = 1024
MOST_BYTES = MOST_BLOCKS * BLOCK_BYTES
"""What follows the first half a MiB of a prompt does not tell replicas apart."""

DIGEST_BYTES = 7
"""Python keeps an integer of 56 bits in 32 bytes, one of 64 in 48."""


def _prefix_fields(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the fields of a prompt that a prefix cache may serve, in order."""
    spec = SPECS[endpoint]
    return spec.prompt_fields if spec.generates else ()


@dataclass(frozen=True, slots=True)
class PromptChains:
    """Makes chains of requests; ``shared`` says that no client's credential is passed on."""

    shared: bool

    def of(
        self, endpoint: Endpoint, body: dict[str, Any], headers: Mapping[str, str], size: int
    ) -> tuple[int, ...]:
        """Return the chain of a request as it is sent; ``headers`` are by lower-case name.

        ``size`` is that of the body's JSON: what is of megabytes is cut before it is printed.
        """
        if size > 2 * MOST_BYTES:
            body = cut(body, _prefix_fields(endpoint))
        if self.shared:
            return prefix_blocks(endpoint, body)
        return prefix_blocks(endpoint, body, tuple(headers.get(name, "") for name in CREDENTIALS))


def prefix_blocks(
    endpoint: Endpoint, body: dict[str, Any], apart: tuple[str, ...] = ()
) -> tuple[int, ...]:
    """Return the chain of a request as it is sent; entry i covers the blocks 0 to i.

    Empty for a prompt of less than a block, for one that cannot be printed, and for an endpoint
    whose prompts no prefix cache serves. What differs in ``apart`` has no block in common.
    """
    try:
        text = b"".join(_printed(body[name]) for name in _prefix_fields(endpoint) if body.get(name))
    except (RecursionError, ValueError):
        return ()
    root = json.dumps((body.get("model"), body.get(SALT), apart)).encode()
    return chain_of(text[:MOST_BYTES], root)


def chain_of(text: bytes, root: bytes) -> tuple[int, ...]:
    """Return a digest for each full block of ``text``, each of all bytes up to its end."""
    running = blake2b(root, digest_size=DIGEST_BYTES, person=b"refrain prefix")
    update, digest, number = running.update, running.digest, int.from_bytes
    chain = []
    for end in range(BLOCK_BYTES, len(text) + 1, BLOCK_BYTES):
        update(text[end - BLOCK_BYTES : end])
        chain.append(number(digest(), "big"))
    return tuple(chain)


def _printed(value: Any) -> bytes:
    """Return JSON without its last byte, the closing one: what a longer prompt begins with too."""
    try:
        return orjson.dumps(value)[:-1]
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair
        return json.dumps(value).encode()[:-1]
