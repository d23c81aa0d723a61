"""Where prompts part, and how much an unbounded prefix cache would have had of each."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.prefix_tree import PrefixTree

TEXTS = st.lists(st.text("ab", max_size=8), max_size=12)


def common(one, other):
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def test_a_prompt_that_goes_on_with_another_does_not_part_from_it():
    tree = PrefixTree()
    assert [tree.add(text) for text in ("a system", "a system prompt", "a sys")] == [0, 8, 5]
    assert list(tree.partings()) == []


def test_where_prompts_part_is_told_with_what_had_to_be_read_anew():
    tree = PrefixTree()
    for second in ("01", "02", "17"):
        tree.add(f"at 10:00:{second} you are kind")
    partings = {node.end: node for node in tree.partings()}
    assert sorted(partings) == [9, 10]
    assert (partings[9].lost, partings[9].visits) == (len("17 you are kind"), 3)
    assert (partings[10].lost, partings[10].visits) == (len("2 you are kind"), 2)
    assert {child.prompt for child in partings[9].children.values()} == {0, 2}


@given(TEXTS)
def test_what_is_shared_is_the_longest_beginning_that_any_earlier_prompt_has(texts):
    tree = PrefixTree()
    for number, text in enumerate(texts):
        shared = [common(text, earlier) for earlier in texts[:number]]
        assert tree.add(text) == max(shared, default=0)


@given(TEXTS)
def test_every_parting_is_one_of_the_prompts_and_they_differ_behind_it(texts):
    tree = PrefixTree()
    for text in texts:
        tree.add(text)
    for node in tree.partings():
        ways = [texts[child.prompt] for child in node.children.values()]
        assert {common(one, ways[0]) for one in ways[1:]} == {node.end}
        assert len({one[node.end] for one in ways}) == len(ways) > 1
