"""``/v1/embeddings``, item by item: the items, their entries, and the combined reply.

Law: each item is a separate entry, the same whether it was requested alone or in a batch.
Usage is never made up. An upstream counts a call, not its items; so each item stored of a batch
carries the call's usage, which a reply repeats only if it has all items of that call.
"""

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.endpoints.key_fields import (
    INTEGER,
    STRING,
    USER,
    Fields,
    Type,
    keyed,
    neutral,
)
from gateway.protocol.endpoints.spec import (
    Body,
    EndpointSpec,
    Result,
    empty_array,
    missing,
    require,
)
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason

_FIELDS: Fields = {
    **keyed(STRING, "model", "encoding_format"),
    **keyed(Type("one of a string or array", (str, list)), "input"),
    **keyed(INTEGER, "dimensions"),
    **neutral(USER, "user"),
}
_TOKENS = Type("an array of integers", (list,))
_MOST_INPUTS = 2048
"""As at OpenAI."""


def _check(body: Body) -> Iterator[ClientError]:
    if body.get("input") is None and isinstance(body.get("messages"), list):
        yield missing("input")  # a chat to embed, as vLLM takes it
        return
    require(body, "input")
    given = body["input"]
    if isinstance(given, str):
        return
    if not given:
        raise empty_array("input")
    if type(given[0]) is int:  # one input, as tokens
        _check_tokens("input", given)
        return
    if len(given) > _MOST_INPUTS:
        message = (
            f"Invalid 'input': array too long. Expected an array with maximum length "
            f"{_MOST_INPUTS}, but got an array with length {len(given)} instead."
        )
        yield ClientError(400, message, param="input", code="array_above_max_length")
    kind = _TOKENS if type(given[0]) is list else STRING
    for place, item in enumerate(given):
        if isinstance(item, dict):  # text or an image, as models of both take it
            yield kind.error(f"input[{place}]", item)
            continue
        kind.check(f"input[{place}]", item)
        if type(item) is list:
            _check_tokens(f"input[{place}]", item)


def _check_tokens(where: str, tokens: list[Any]) -> None:
    for place, token in enumerate(tokens):
        if type(token) is not int:
            INTEGER.check(f"{where}[{place}]", token)


Item = str | list[int]

CALL = "refrain_call"
"""Member of a stored result that says which call it is a part of; clients never see it."""
_NO_USAGE = {"prompt_tokens": 0, "total_tokens": 0}


def items_of(body: Mapping[str, Any]) -> list[Item]:
    """Return the inputs, one by one; ``body`` is valid."""
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
    """Return the vectors of a reply in the order of the inputs, or None if it is not understood."""
    match reply:
        case {"object": "list", "data": [*data], "model": str()} if (
            len(data) == count and reply.get("error") is None
        ):
            pass
        case _:
            return None
    vectors = {}
    for one in data:
        match one:
            case {"object": "embedding", "index": int(place), "embedding": [_, *_] | str() as it}:
                vectors[place] = it
            case _:
                return None
    places = range(count)
    return [vectors[place] for place in places] if vectors.keys() == set(places) else None


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
            "usage": dict(_NO_USAGE),
            CALL: {**call, "item": distinct.index(key)},
        }
        for vector, key in zip(vectors, keys, strict=True)
    ]


def combine_items(
    results: Sequence[bytes], keys: Sequence[bytes], usage: Any = None
) -> list[bytes | memoryview]:
    """Return, in parts, one reply of stored results for an item each; ``keys`` are theirs.

    ``usage`` is what the upstream counted for this request. Where none of it was forwarded, it is
    what it counted when it made all this, as far as that is known.
    """
    parts: list[bytes | memoryview] = [_FIRST]
    others = []
    for place, result in enumerate(results):
        if place:
            parts.append(b",")
        item, other = _item(result, place)
        parts += item
        others.append(other)
    usage = _sum_usage(others, keys) if usage is None else usage
    last = orjson.dumps({"model": others[0]["model"], "usage": usage})
    return [*parts, b"]," + last[1:]]


_FIRST = b'{"object":"list","data":['
_START = b'{"object":"embedding","index":0,"embedding":'
_ENDS = {ord("["): b"]", ord('"'): b'"'}


def _item(result: bytes, place: int) -> tuple[Sequence[bytes | memoryview], dict[str, Any]]:
    """Return the parts of a stored item at its place in a batch, and the result without it.

    A vector is large, and its bytes stay as they are. Where the result is not written as
    ``stored_items`` writes it, it is parsed.
    """
    start = len(_FIRST + _START)
    ends = _ENDS.get(result[start]) if result.startswith(_FIRST + _START) else None
    end = 0 if ends is None else result.find(ends, start + 1) + 1
    if end and result.startswith(b"}],", end) and result.find(b"\\", start, end) < 0:
        other = orjson.loads(_FIRST + b"{" + result[end:])
        if other["data"] == [{}]:
            named = b'{"object":"embedding","index":%d,"embedding":' % place
            return (named, memoryview(result)[start:end], b"}"), other
    other = orjson.loads(result)
    return (orjson.dumps({**other["data"][0], "index": place}),), other


def _render(_body: Body, key: bytes, result: bytes) -> bytes:
    if CALL.encode() not in result:
        return result
    return b"".join(combine_items([result], [key]))


def _sum_usage(results: Sequence[Mapping[str, Any]], keys: Sequence[bytes]) -> dict[str, Any]:
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
    counts = {name: [usage.get(name) for usage in known] for name in _NO_USAGE}
    return {
        name: sum(each for each in given if isinstance(each, int | float))
        for name, given in counts.items()
    }


def _decline(_body: Body, result: Any, _finish_reasons: Container[str]) -> Reason | None:
    vectors = vectors_of(result, 1)
    if vectors is None:
        return Reason.UNKNOWN_SHAPE
    [vector] = vectors
    if isinstance(vector, str):
        return None if vector else Reason.EMPTY
    numbers = all(type(number) in (int, float) for number in vector)
    return None if numbers else Reason.UNKNOWN_SHAPE


def _without_vectors(result: Result) -> Result:
    """Leave the vectors out: in base64 these are strings, too."""
    data = result.get("data")
    if isinstance(data, list):
        data = [{**each, "embedding": None} if isinstance(each, dict) else each for each in data]
    return {**result, "data": data, CALL: None}


def _recognises(body: Body) -> bool:
    """Tell embeddings from responses, which have ``input``, too: a text, or a list of objects."""
    if "input" not in body:
        return False
    given = body["input"]
    is_batch = isinstance(given, list) and bool(given) and not isinstance(given[0], dict)
    named = "embed" in str(body.get("model")).lower()
    return is_batch or named or "encoding_format" in body or "dimensions" in body


SPEC = EndpointSpec(
    fields=_FIELDS,
    check=_check,
    recognises=_recognises,
    operation="embeddings",
    prompt_fields=("input",),
    question_field="input",
    decline=_decline,
    without_vectors=_without_vectors,
    render=_render,
    generates=False,
    is_batch=True,
)
