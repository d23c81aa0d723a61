"""What each replica is believed to hold: bounded, and forgotten tails first."""

from gateway.upstream.routing.prefix_aware import PrefixIndex


def test_the_longest_run_from_the_start_counts() -> None:
    index = PrefixIndex()
    index.add("a", (1, 2, 3))
    assert index.held("a", (1, 2, 3, 4)) == 3
    assert index.held("a", (1, 5, 3)) == 1
    assert index.held("a", (5, 2, 3)) == 0
    assert index.held("b", (1, 2, 3)) == 0


def test_tails_go_before_heads() -> None:
    index = PrefixIndex(capacity=4)
    index.add("a", (1, 2, 3))
    index.add("a", (1, 7, 8))
    assert index.held("a", (1, 7, 8)) == 3
    assert index.held("a", (1, 2, 3)) == 2
    assert index.size("a") == 4


def test_a_prompt_longer_than_the_cache_keeps_its_head() -> None:
    index = PrefixIndex(capacity=3)
    index.add("a", tuple(range(10)))
    assert index.held("a", tuple(range(10))) == 3


def test_what_is_used_again_outlives_what_is_not() -> None:
    index = PrefixIndex(capacity=4)
    index.add("a", (1, 2))
    index.add("a", (3, 4))
    index.add("a", (1, 2))
    index.add("a", (5, 6))
    assert index.held("a", (1, 2)) == 2
    assert index.held("a", (3, 4)) == 0


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
