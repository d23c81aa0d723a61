"""Whatever was asked before, in whatever batches: each input gets its own vector, in its place."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.endpoints.embeddings import (
    SPEC,
    batch_body,
    combine_items,
    items_of,
    stored_items,
    vectors_of,
)

BATCHES = st.lists(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=5)
    | st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=2), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


def key_of(item: Any) -> bytes:
    return orjson.dumps(item)


def vector_of(item: Any) -> list[float]:
    return [float(len(item)), *map(float, key_of(item))]


def upstream(raw: bytes) -> dict[str, Any]:
    """Answer as a server does: an item a vector, in an order of its own, a token an item."""
    items = items_of(orjson.loads(raw))
    data = [
        {"object": "embedding", "index": place, "embedding": vector_of(item)}
        for place, item in enumerate(items)
    ]
    usage = {"prompt_tokens": len(items), "total_tokens": len(items)}
    return {"object": "list", "data": data[::-1], "model": "m", "usage": usage}


@given(BATCHES)
def test_every_batch_is_answered_as_if_it_were_asked_for_whole(batches):
    store: dict[bytes, bytes] = {}
    for batch in batches:
        missing = [item for item in batch if key_of(item) not in store]
        usage = None
        if missing:
            reply = upstream(batch_body({"model": "m"}, missing))
            vectors = vectors_of(reply, len(missing))
            assert vectors is not None
            keys = [key_of(item) for item in missing]
            for key, made in zip(keys, stored_items(reply, vectors, keys), strict=True):
                assert SPEC.decline({}, made, ()) is None
                store[key] = orjson.dumps(made)
            usage = reply["usage"]
        keys = [key_of(item) for item in batch]
        whole = orjson.loads(b"".join(combine_items([store[key] for key in keys], keys, usage)))
        assert vectors_of(whole, len(batch)) == [vector_of(item) for item in batch]
        assert [one["index"] for one in whole["data"]] == list(range(len(batch)))
        if missing:
            assert whole["usage"]["prompt_tokens"] == len(missing)
        assert set(whole) == {"object", "data", "model", "usage"}
        for key in keys:
            alone = orjson.loads(SPEC.render({}, key, store[key]))
            assert set(alone) == {"object", "data", "model", "usage"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-1, 3) | st.text("ab", max_size=2),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["object", "data", "index", "embedding", "model"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.integers(0, 3),
)
def test_no_reply_of_whatever_shape_raises(reply, count):
    vectors = vectors_of(reply, count)
    assert vectors is None or len(vectors) == count
    SPEC.decline({}, reply, ())


NUMBERS = b"[0.10,-1e-3]"
LIST = b'{"object":"list","data":[%b],"model":"m","usage":{"prompt_tokens":1,"total_tokens":1}}'
STORED = {
    "as it is written here": (b'{"object":"embedding","index":0,"embedding":%b}', NUMBERS),
    "in base64": (b'{"object":"embedding","index":0,"embedding":%b}', b'"zczMPQ=="'),
    "with an escape": (b'{"object":"embedding","index":0,"embedding":%b}', b'"a\\"}],"'),
    "nested": (b'{"object":"embedding","index":0,"embedding":%b}', b"[[1],[2]]"),
    "in another order": (b'{"index":0,"embedding":%b,"object":"embedding"}', NUMBERS),
    "with more": (b'{"object":"embedding","index":0,"embedding":%b,"extra":"}],"}', NUMBERS),
    "twice": (b'{"object":"embedding","index":0,"embedding":[1],"embedding":%b}', NUMBERS),
    "spaced": (b'{"object": "embedding", "index": 0, "embedding": %b }', NUMBERS),
}


@pytest.mark.parametrize(("item", "vector"), STORED.values(), ids=STORED.keys())
def test_a_stored_item_of_any_writing_keeps_its_vector_in_a_batch(item, vector):
    plain = LIST % (b'{"object":"embedding","index":0,"embedding":[2.5]}')
    parts = combine_items([plain, LIST % (item % vector), plain], [b"a", b"b", b"c"])
    data = orjson.loads(b"".join(parts))["data"]
    assert [one["embedding"] for one in data] == [[2.5], orjson.loads(vector), [2.5]]
    assert [one["index"] for one in data] == [0, 1, 2]
    assert ("extra" in data[1]) is (b"extra" in item)
