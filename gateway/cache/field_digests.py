"""A digest for each field of a request: how two requests differ, without keeping either.

Law: a digest is short and keyed by the server's secret and the scope, so it tells equality within
one scope and nothing else. The list is bounded for any request; fields beyond share one digest.
"""

import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.cache.key import keyed
from gateway.protocol.endpoints.table import SPECS
from policies.decision import Endpoint

Digests = tuple[tuple[str, bytes], ...]

MAX_FIELDS = 40
MAX_ITEMS = 23
"""Messages with a digest each; in a longer conversation those in the middle share one."""
FIRST_ITEMS = 8
LONGEST_NAME = 64
OTHER_FIELDS = "(other fields)"
DIGEST_BYTES = 8


def field_digests(secret: bytes, scope: bytes, endpoint: Endpoint, body: dict[str, Any]) -> Digests:
    """Return (name, digest) of each field that is part of the key, and of each message."""
    key = hmac.digest(secret, b"field digests" + scope, "sha256")
    named = _named(endpoint, keyed(endpoint, body))
    return tuple((name, _digest(key, name, value)) for name, value in named)


def _named(endpoint: Endpoint, kept: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    listed = SPECS[endpoint].turns or ""
    items = kept.get(listed)
    plain = {
        name: value for name, value in kept.items() if name != listed or type(items) is not list
    }
    shown = sorted(name for name in plain if len(name) <= LONGEST_NAME)[:MAX_FIELDS]
    for name in shown:
        yield name, plain.pop(name)
    if plain:
        yield OTHER_FIELDS, plain
    if type(items) is list:
        yield from _items(listed, items)


def _items(name: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    """Name messages by their index from either end, so that equal beginnings and ends match."""
    count = len(items)
    last = MAX_ITEMS - FIRST_ITEMS - 1
    if count <= MAX_ITEMS:
        for index, item in enumerate(items):
            yield f"{name}[{index}]", item
        return
    for index in range(FIRST_ITEMS):
        yield f"{name}[{index}]", items[index]
    yield f"{name}[{FIRST_ITEMS}:-{last}]", items[FIRST_ITEMS:-last]
    for index in range(-last, 0):
        yield f"{name}[{index}]", items[index]


def _digest(key: bytes, name: str, value: Any) -> bytes:
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits
        written = json.dumps(value, sort_keys=True, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    data = name.encode("utf-8", "surrogatepass") + b"\0" + written
    return hmac.digest(key, data, "sha256")[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two requests differ."""

    field: str
    how: str
    """``differs``, ``only asked`` or ``only stored``."""


def differences(asked: Digests, stored: Digests) -> tuple[Difference, ...]:
    """Return what differs, in the order of the request's fields."""
    theirs = dict(stored)
    found = [
        Difference(name, "differs" if name in theirs else "only asked")
        for name, digest in asked
        if theirs.get(name) != digest
    ]
    ours = {name for name, _ in asked}
    found += [Difference(name, "only stored") for name, _ in stored if name not in ours]
    return tuple(found)


def nearest(asked: Digests, entries: Sequence[Digests]) -> int | None:
    """Return the index of the list with the fewest differences; the last of several."""
    best: tuple[int, int] | None = None
    for index, stored in enumerate(entries):
        if stored:
            count = len(differences(asked, stored))
            if best is None or count <= best[0]:
                best = (count, index)
    return None if best is None else best[1]
