"""What each replica is believed to hold: bounded, and forgotten tails first."""

from gateway.upstream.pool.routing import PrefixIndex


def test_all_replicas_together_are_bounded_too() -> None:
    index = PrefixIndex(capacity=100, most=120)
    for number, name in enumerate("abcd"):
        index.add(name, tuple(range(number * 1000, number * 1000 + 100)))
    assert len(index) <= 120
    assert all(index.size(name) > 0 for name in "abcd")


def test_a_forgotten_replica_holds_nothing_and_leaves_its_share_to_others() -> None:
    index = PrefixIndex(capacity=100, most=100)
    for name in "ab":
        index.add(name, tuple(range(100)))
    assert index.capacity == 50
    index.forget("b")
    assert index.size("b") == 0
    assert index.capacity == 100
