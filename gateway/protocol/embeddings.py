"""A batch of embeddings, item by item: what is asked, what is stored of it, what is put together.

Law: each item is an entry of its own, the same whether it was asked for alone or among others.
Usage is never made up. An upstream counts a call, not its items; so each item stored of a batch
carries the call's usage, which is told again only where all items of that call are.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.reasons import Reason

Item = str | list[int]

CALL = "refrain_call"
"""Member of a stored result that says which call it is a part of; clients never see it."""


def items_of(body: Mapping[str, Any]) -> list[Item]:
    """Return what is to be embedded, one by one; ``body`` is valid."""
    given = body["input"]
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


def item_body(body: Mapping[str, Any], item: Item) -> dict[str, Any]:
    """Return the request that asks for one item only."""
    return {**body, "input": item}


def batch_body(body: Mapping[str, Any], items: Sequence[Item]) -> bytes:
    """Return the request that asks for these items only."""
    return exact_json.dumps({**body, "input": list(items)})


def vectors_of(reply: Any, count: int) -> list[Any] | None:
    """Return the vectors of a reply in the order asked, or None where it is not understood."""
    match reply:
        case {"object": "list", "data": [*data], "model": str()} if len(data) == count:
            pass
        case _:
            return None
    vectors: list[Any] = [None] * count
    for one in data:
        match one:
            case {
                "object": "embedding",
                "index": int(place),
                "embedding": [_, *_] | str() as vector,
            }:
                if not 0 <= place < count or vectors[place] is not None:
                    return None
                vectors[place] = vector
            case _:
                return None
    return vectors


def declined_embedding(result: Any) -> Reason | None:
    """Return why the result for one item is not stored, or None when it may be."""
    vectors = vectors_of(result, 1)
    if vectors is None:
        return Reason.UNKNOWN_SHAPE
    [vector] = vectors
    if isinstance(vector, str):
        return None if vector else Reason.EMPTY
    numbers = all(type(number) in (int, float) for number in vector)
    return None if numbers else Reason.UNKNOWN_SHAPE


def stored_items(
    reply: Mapping[str, Any], vectors: Sequence[Any], keys: Sequence[bytes]
) -> list[dict[str, Any]]:
    """Return the results to store for the items of one call; ``keys`` are theirs."""
    distinct = sorted(set(keys))
    call = {
        "id": hashlib.sha256(b"".join(distinct)).hexdigest()[:16],
        "items": len(distinct),
        "usage": reply.get("usage"),
    }
    return [
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": vector}],
            "model": reply["model"],
            "usage": _nothing_counted(),
            CALL: {**call, "item": distinct.index(key)},
        }
        for vector, key in zip(vectors, keys, strict=True)
    ]


def put_together(
    results: Sequence[Mapping[str, Any]], keys: Sequence[bytes], usage: Any = None
) -> dict[str, Any]:
    """Return one reply of stored results for an item each, in order; ``keys`` are theirs.

    ``usage`` is what the upstream counted for this request. Where none of it was forwarded, it is
    what it counted when it made all this, as far as that is known.
    """
    data = [{**result["data"][0], "index": place} for place, result in enumerate(results)]
    return {
        "object": "list",
        "data": data,
        "model": results[0]["model"],
        "usage": _counted(results, keys) if usage is None else usage,
    }


def without_call(key: bytes, result: bytes) -> bytes:
    """Return the plain reply that the result stored under a key stands for."""
    if CALL.encode() not in result:
        return result
    return orjson.dumps(put_together([orjson.loads(result)], [key]))


def _nothing_counted() -> dict[str, int]:
    return {"prompt_tokens": 0, "total_tokens": 0}


def _counted(results: Sequence[Mapping[str, Any]], keys: Sequence[bytes]) -> dict[str, Any]:
    """Add up the usage of the calls whose items are all here."""
    calls: dict[Any, tuple[int, Any, set[int]]] = {}
    for result, key in zip(results, keys, strict=True):
        alone = {"id": key, "items": 1, "item": 0, "usage": result.get("usage")}
        call = result.get(CALL, alone)
        calls.setdefault(call["id"], (call["items"], call["usage"], set()))[2].add(call["item"])
    known = [
        usage
        for items, usage, found in calls.values()
        if len(found) == items and isinstance(usage, dict)
    ]
    if len(known) == 1:
        return dict(known[0])
    total = _nothing_counted()
    for usage in known:
        for name in total:
            total[name] += usage.get(name) or 0
    return total
