"""A prompt as a chain of block digests, which tells how far two prompts begin alike.

Laws:
- The bytes have the order of the rendered prompt: tools, instructions, then the turns. So two
  chains have as many digests in common as their prompts have blocks in common from the start on.
- The root holds the model, the salt, the client's scope and the credentials that are passed on.
  What an upstream's cache may keep apart never looks alike. No prompt of another scope changes how
  a prompt is routed, so a client learns from its replies nothing of what others asked.
- Digests only; no text is kept.
- Of a very long prompt only the first turns are printed, and only the beginning of a long text.

An upstream cuts its blocks by tokens and renders the prompt by its own template. So a common prefix
is only as long as stated here to within a block or two of each.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.headers import CREDENTIALS
from gateway.upstream.request import SALT
from policies.decision import Endpoint

BLOCK_BYTES = 512
"""About 128 tokens of English."""

MOST_BLOCKS = 1024
MOST_BYTES = MOST_BLOCKS * BLOCK_BYTES
"""What follows the first half a MiB of a prompt does not tell replicas apart."""

ITEMS_AT_ONCE = 64
"""Turns that are printed together."""

DEEPEST_TEXT = 6
"""Levels below a prompt's field at which its texts are: a turn, a part, an image, its URL."""

DIGEST_BYTES = 7
"""Python keeps an integer of 56 bits in 32 bytes, one of 64 in 48."""


@dataclass(frozen=True, slots=True)
class PromptChains:
    """Makes chains of requests; ``shared`` says that no client's credential is passed on."""

    shared: bool

    def of(
        self,
        endpoint: Endpoint,
        body: dict[str, Any],
        headers: Mapping[str, str],
        size: int = 0,
        *,
        scope: bytes,
    ) -> tuple[int, ...]:
        """Return the chain of a request as it is sent; ``headers`` are by lower-case name.

        ``size`` is the length of its JSON: to print megabytes would hold up the loop. ``scope`` is
        the client's.
        """
        sent = () if self.shared else tuple(headers.get(name, "") for name in CREDENTIALS)
        apart = (scope.hex(), *sent)
        return prefix_blocks(endpoint, body, apart, is_large=size > 2 * MOST_BYTES)


def prefix_blocks(
    endpoint: Endpoint,
    body: dict[str, Any],
    apart: tuple[str, ...] = (),
    *,
    is_large: bool = False,
) -> tuple[int, ...]:
    """Return the chain of a request as it is sent; entry i covers the blocks 0 to i.

    Empty for a prompt of less than a block, for one that cannot be printed, and for an endpoint
    whose prompts no prefix cache serves. What differs in ``apart`` has no block in common. If
    ``is_large`` is set, texts are cut before they are printed; the chain is the same.
    """
    spec = SPECS[endpoint]
    fields = spec.prompt_fields if spec.generates else ()
    try:
        starts = (_print_start(body[name], is_large=is_large) for name in fields if body.get(name))
        text = b"".join(starts)
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


def _print_start(value: Any, *, is_large: bool) -> bytes:
    """Return JSON without its last byte, the closing one: what a longer prompt begins with too."""
    if isinstance(value, list) and len(value) > ITEMS_AT_ONCE:
        size, items = 0, []
        for start in range(0, len(value), ITEMS_AT_ONCE):
            some = value[start : start + ITEMS_AT_ONCE]
            items.append(_json(_cut_texts(some) if is_large else some)[1:-1])
            size += len(items[-1])
            if size > MOST_BYTES:
                break
        return b"[" + b",".join(items)
    return _json(_cut_texts(value) if is_large else value)[:-1]


def _cut_texts(value: Any, levels: int = DEEPEST_TEXT) -> Any:
    """Return a value with no more of each text than is read, where it has few members."""
    if isinstance(value, str):
        return value[:MOST_BYTES]
    if levels and isinstance(value, list) and len(value) <= ITEMS_AT_ONCE:
        return [_cut_texts(each, levels - 1) for each in value]
    if levels and isinstance(value, dict) and len(value) <= ITEMS_AT_ONCE:
        return {name: _cut_texts(each, levels - 1) for name, each in value.items()}
    return value


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair
        return json.dumps(value).encode()
