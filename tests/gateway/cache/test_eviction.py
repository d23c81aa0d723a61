"""S3-FIFO: what stays, what goes, and that a scan moves nothing that is used."""

import pytest

from gateway.cache.stores.memory import MOST_USES, S3Fifo


class Watched(S3Fifo):
    """Knows what is there by what it is told to go."""

    def __init__(self, max_bytes):
        super().__init__(max_bytes)
        self.there = set()

    def add(self, key, size):
        evicted = super().add(key, size)
        self.there = (self.there | {key}) - set(evicted)
        return evicted


def add(policy, name, size=10):
    return [key.decode() for key in policy.add(name.encode(), size)]


def kept(policy):
    return {key.decode() for key in policy.there}


def use(policy, *names):
    for name in names:
        policy.use(name.encode())


def test_the_oldest_that_nobody_used_goes_first():
    policy = Watched(30)
    for name in "abc":
        assert add(policy, name) == []
    assert add(policy, "d") == ["a"]
    assert add(policy, "e") == ["b"]
    assert policy.bytes == 30


def test_what_was_used_stays_while_others_pass_through():
    policy = Watched(60)
    for name in "abcdef":
        add(policy, name)
    use(policy, "a", "b")
    for n in range(100):
        add(policy, f"scan-{n}")
    assert {"a", "b"} <= kept(policy)


def test_a_scan_evicts_nothing_from_the_main_queue_where_lru_would_lose_all():
    policy = Watched(1000)
    for n in range(60):
        add(policy, f"hot-{n}")
        use(policy, f"hot-{n}")
    for n in range(5000):
        add(policy, f"scan-{n}")
    assert sum(name.startswith("hot") for name in kept(policy)) == 60


def test_what_returns_soon_after_it_went_is_kept():
    policy = Watched(30)
    for name in "abcd":
        add(policy, name)
    assert "a" not in kept(policy)
    add(policy, "a")
    for name in "efghij":
        add(policy, name)
    assert "a" in kept(policy)


def test_what_was_hot_long_ago_goes_at_last():
    policy = Watched(40)
    add(policy, "old")
    for _ in range(1000):
        use(policy, "old")
    for n in range(10 * MOST_USES):
        for name in (f"a{n}", f"b{n}"):
            add(policy, name)
            use(policy, name)
    assert "old" not in kept(policy)


@pytest.mark.parametrize("size", [100, 99, 1])
def test_one_entry_may_be_as_large_as_the_whole(size):
    policy = Watched(100)
    for n in range(20):
        add(policy, f"{n}", size=7)
    add(policy, "large", size=size)
    assert "large" in kept(policy)
    assert policy.bytes <= 100


def test_a_key_that_is_removed_leaves_no_bytes_behind():
    policy = Watched(100)
    add(policy, "a", size=60)
    assert policy.remove(b"a") == 60
    assert policy.remove(b"a") is None
    assert (policy.bytes, len(policy)) == (0, 0)
