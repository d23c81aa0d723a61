"""Field digests: what differs is named, nothing else is told, and the list is bounded."""

import pytest

from gateway.cache.key import Difference, differences, field_digests, nearest
from policies.decision import Endpoint

SECRET, SCOPE = b"s" * 32, b"a" * 32


def chat(*contents, **fields):
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": "m", "messages": messages, **fields}


def digests(body, endpoint=Endpoint.CHAT, secret=SECRET, scope=SCOPE):
    return field_digests(secret, scope, endpoint, body)


def told(one, other):
    return {found.field: found.how for found in differences(digests(one), digests(other))}


def test_each_field_and_each_message_has_a_digest_of_eight_bytes():
    found = digests(chat("a", "b", temperature=0))
    assert [name for name, _ in found] == ["model", "temperature", "messages[0]", "messages[1]"]
    assert {len(digest) for _, digest in found} == {8}


def test_only_what_differs_is_told():
    assert told(chat("a", "b"), chat("a", "b")) == {}
    assert told(chat("a", "b"), chat("a", "c")) == {"messages[1]": "differs"}
    assert told(chat("a"), chat("a", "b")) == {"messages[1]": "only stored"}
    assert told(chat("a", temperature=1), chat("a")) == {"temperature": "only asked"}
    assert told(chat("a", seed=1), chat("a", seed=2)) == {"seed": "differs"}


def test_entries_share_the_names_of_their_messages():
    def names(prefix):
        return [name for name, _ in digests(chat(*(f"{prefix}{index}" for index in range(40))))]

    assert all(one is other for one, other in zip(names("a"), names("b"), strict=True))


def test_what_is_no_part_of_the_key_has_none():
    assert told(chat("a", stream=True, user="u", metadata={"a": "b"}), chat("a")) == {}


def test_what_folds_in_the_key_folds_here():
    parts = [{"type": "text", "text": "a"}]
    assert told(chat(parts), chat("a")) == {}
    assert told(chat("a", tools=[{"b": 1, "a": 2}]), chat("a", tools=[{"a": 2, "b": 1}])) == {}


def test_the_same_value_has_another_digest_in_another_scope_field_or_installation():
    body = chat("a", one="x", two="x")
    ours = dict(digests(body))
    assert ours["one"] != ours["two"]
    for others in (dict(digests(body, scope=b"b" * 32)), dict(digests(body, secret=b"t" * 32))):
        assert all(others[name] != digest for name, digest in ours.items())


def test_the_list_is_bounded_and_still_tells_that_something_differs():
    def long(changed):
        return chat(*(f"{index}{'!' if index == changed else ''}" for index in range(500)))

    assert len(digests(long(None))) == 24
    assert told(long(None), long(0)) == {"messages[0]": "differs"}
    assert told(long(None), long(250)) == {"messages[8:-14]": "differs"}
    assert told(long(None), long(499)) == {"messages[-1]": "differs"}
    many = {f"f{index:04}": 1 for index in range(1000)}
    assert len(digests(chat("a", **many))) < 64
    assert told(chat("a", **many), chat("a", **many | {"f0999": 2})) == {
        "(other fields)": "differs"
    }
    assert max(len(name) for name, _ in digests(chat("a", **{"x" * 10**6: 1}))) <= 64


@pytest.mark.parametrize(
    ("endpoint", "body", "names"),
    [
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": ["a", "b"]}, ["model", "prompt"]),
        (Endpoint.RESPONSES, {"model": "m", "input": "a"}, ["input", "model"]),
        (
            Endpoint.RESPONSES,
            {"model": "m", "input": [{"role": "user", "content": "a"}], "instructions": "b"},
            ["instructions", "model", "input[0]"],
        ),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": ["a"]}, ["input", "model"]),
    ],
)
def test_every_endpoint(endpoint, body, names):
    assert [name for name, _ in digests(body, endpoint)] == names


def test_a_number_of_any_size_and_a_lone_surrogate_have_a_digest():
    assert told(chat("a", seed=2**70), chat("a", seed=2**70 + 1)) == {"seed": "differs"}
    assert told(chat("a", seed=2**70, x="\ud800"), chat("a", seed=2**70, x="?")) != {}


def test_the_nearest_is_the_one_with_the_fewest_differences():
    asked = digests(chat("a", "b", temperature=0))
    others = [chat("x", "y", temperature=1), chat("a", "y", temperature=0), chat("a", "b", seed=1)]
    assert nearest(asked, [digests(body) for body in others]) == 1
    assert nearest(asked, []) is None
    assert nearest(asked, [()]) is None
    assert differences(asked, digests(others[1])) == (Difference("messages[1]", "differs"),)
