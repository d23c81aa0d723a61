"""Eviction over all sequences of use: bytes are exact, bounds hold, nothing is lost unnoticed."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.stores.memory import S3Fifo

MAX_BYTES = 100
keys = st.integers(0, 15).map(lambda n: b"%d" % n)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys, st.integers(0, MAX_BYTES)),
        st.tuples(st.just("use"), keys),
        st.tuples(st.just("remove"), keys),
    ),
    max_size=120,
)


@given(steps)
def test_what_is_kept_is_what_was_added_less_what_was_told_to_go(sequence):
    policy, model = S3Fifo(MAX_BYTES), {}
    for name, key, *rest in sequence:
        if name == "use":
            policy.use(key)
        elif name == "remove":
            assert policy.remove(key) == model.pop(key, None)
        elif key not in model:
            [size] = rest
            for evicted in policy.add(key, size):
                del model[evicted]  # told once, and only of what is there
            model[key] = size
        assert policy.bytes == sum(model.values()) <= MAX_BYTES
        assert len(policy) == len(model)
        assert set(policy._small) | set(policy._main) == set(model)
        assert policy._small_bytes == sum(slot.size for slot in policy._small.values())
        assert policy._ghost_bytes == sum(policy._ghosts.values()) <= MAX_BYTES
        assert not set(policy._ghosts) & set(model)
