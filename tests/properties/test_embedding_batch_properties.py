"""Whatever was asked before, in whatever batches: each input gets its own vector, in its place."""

from typing import Any

import orjson
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
        whole = combine_items([orjson.loads(store[key]) for key in keys], keys, usage)
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
