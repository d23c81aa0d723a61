"""Prompts as chains of digests: what begins alike has the same first blocks."""

import json
from types import SimpleNamespace

import orjson
import pytest

from gateway.upstream.pool.prefix_chain import (
    BLOCK_BYTES,
    MOST_BLOCKS,
    MOST_BYTES,
    PromptChains,
    chain_of,
    prefix_blocks,
)
from policies.decision import Endpoint

SYSTEM = {"role": "system", "content": "You are a careful clerk. " * 100}
TOOLS = [{"type": "function", "function": {"name": f"tool_{n}"}} for n in range(40)]


def chat(*turns: str, **fields: object) -> tuple[int, ...]:
    messages = [SYSTEM, *({"role": "user", "content": turn} for turn in turns)]
    return prefix_blocks(Endpoint.CHAT, {"model": "m", "messages": messages, **fields})


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    alike = [a == b for a, b in zip(one, other, strict=False)]
    return alike.index(False) if False in alike else len(alike)


def test_a_conversation_that_goes_on_begins_with_the_chain_of_the_turn_before() -> None:
    before, after = chat("word " * 1000), chat("word " * 1000, "and then? " * 200)
    assert len(after) > len(before)
    assert after[: len(before)] == before


def test_prompts_have_as_many_digests_in_common_as_full_blocks() -> None:
    one, other = chat("a" * 5000), chat("b" * 5000)
    assert common(one, other) == len(SYSTEM["content"]) // BLOCK_BYTES
    assert not set(one[common(one, other) :]) & set(other)


def test_tools_come_before_the_messages_though_the_body_has_them_last() -> None:
    with_tools = chat("hello", tools=TOOLS)
    assert common(with_tools, chat("hello", tools=[*TOOLS[:-1], {"type": "other"}])) > 2
    assert common(with_tools, chat("hello")) == 0
    body = {
        "tools": TOOLS,
        "model": "m",
        "messages": [SYSTEM, {"role": "user", "content": "hello"}],
    }
    assert prefix_blocks(Endpoint.CHAT, body) == with_tools


@pytest.mark.parametrize("field", ["model", "cache_salt"])
def test_another_model_or_salt_has_nothing_in_common(field: str) -> None:
    assert not set(chat("hello")) & set(chat("hello", **{field: "other"}))


def test_a_salt_and_a_model_are_not_taken_for_one_another() -> None:
    assert chat("x", model="bc", cache_salt="a") != chat("x", model="c", cache_salt="ab")


def test_what_does_not_shape_the_prompt_changes_no_digest() -> None:
    assert chat("hello", stream=True, temperature=1.0, max_tokens=3) == chat("hello")


def test_responses_and_completions_have_chains_too() -> None:
    text = "once upon a time " * 200
    turns = [{"role": "user", "content": text}]
    for endpoint, body in (
        (Endpoint.COMPLETIONS, {"prompt": text}),
        (Endpoint.COMPLETIONS, {"prompt": list(range(1000))}),
        (Endpoint.RESPONSES, {"instructions": text, "input": "hello"}),
        (Endpoint.RESPONSES, {"input": turns}),
    ):
        assert prefix_blocks(endpoint, body)


def test_a_longer_text_begins_with_the_chain_of_a_shorter_one() -> None:
    short = prefix_blocks(Endpoint.COMPLETIONS, {"prompt": "x" * 2000})
    long = prefix_blocks(Endpoint.COMPLETIONS, {"prompt": "x" * 2600})
    assert (len(short), len(long)) == (3, 5)
    assert long[:3] == short


def test_short_prompts_and_embeddings_have_no_chain() -> None:
    assert prefix_blocks(Endpoint.COMPLETIONS, {"prompt": "x" * 500}) == ()
    assert prefix_blocks(Endpoint.EMBEDDINGS, {"input": "x" * 5000}) == ()


@pytest.mark.parametrize(
    "content",
    ["\ud800" * 2000, [2**70] * 200, "é" * 2000, [{"type": "text", "text": "x" * 2000}]],
    ids=["half of a pair", "large numbers", "not ASCII", "parts"],
)
def test_odd_content_is_printed_all_the_same(content: object) -> None:
    body = {"messages": [{"role": "user", "content": content}]}
    assert len(prefix_blocks(Endpoint.CHAT, body)) > 2


def test_what_is_nested_too_deeply_has_no_chain() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert prefix_blocks(Endpoint.CHAT, {"messages": nested}) == ()


def test_a_chain_is_bounded() -> None:
    chain = prefix_blocks(Endpoint.COMPLETIONS, {"prompt": "x" * (2 * MOST_BLOCKS * BLOCK_BYTES)})
    assert len(chain) == MOST_BLOCKS


@pytest.mark.parametrize(
    "content",
    [
        "x" * 3 * MOST_BYTES,
        "é" * MOST_BYTES,
        [{"type": "image_url", "image_url": {"url": "data:" + "A" * 3 * MOST_BYTES}}],
        [{"type": "text", "text": "word"}] * 60_000,
        list(range(400_000)),
    ],
    ids=["text", "not ASCII", "image", "parts", "numbers"],
)
@pytest.mark.parametrize("turns_after", [0, 100])
@pytest.mark.parametrize("size", [0, 3 * MOST_BYTES], ids=["printed", "cut"])
def test_the_chain_of_a_huge_prompt_is_that_of_its_beginning(
    content: object, size: int, turns_after: int
):
    turn = {"role": "user", "content": content}
    body = {"model": "m", "tools": TOOLS, "messages": [SYSTEM, turn, *[SYSTEM] * turns_after]}
    chain = PromptChains(shared=True).of(Endpoint.CHAT, body, {}, size, scope=b"a")
    text = json.dumps(TOOLS, separators=(",", ":"))[:-1]
    text += json.dumps(body["messages"], separators=(",", ":"), ensure_ascii=False)
    root = json.dumps(("m", None, (b"a".hex(),))).encode()
    assert chain == chain_of(text.encode()[:MOST_BYTES], root)
    assert len(chain) == MOST_BLOCKS


@pytest.mark.parametrize("turns_after", [0, 100])
@pytest.mark.parametrize(
    "content",
    ["x" * 2**25, [{"type": "image_url", "image_url": {"url": "A" * 2**25}}]],
    ids=["text", "image"],
)
def test_of_a_text_of_megabytes_only_the_beginning_is_printed(
    content: object, turns_after: int, monkeypatch: pytest.MonkeyPatch
):
    printed = []

    def dumps(value: object) -> bytes:
        printed.append(len(result := orjson.dumps(value)))
        return result

    fake = SimpleNamespace(dumps=dumps)
    monkeypatch.setattr("gateway.upstream.pool.prefix_chain.orjson", fake)
    body = {"messages": [{"role": "user", "content": content}, *[SYSTEM] * turns_after]}
    chain = PromptChains(shared=True).of(Endpoint.CHAT, body, {}, 2**25, scope=b"a")
    assert len(chain) == MOST_BLOCKS
    assert sum(printed) < 2 * MOST_BYTES


def test_credentials_that_are_passed_on_keep_chains_apart():
    body = {"messages": [SYSTEM]}
    one, other = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}
    apart, together = PromptChains(shared=False), PromptChains(shared=True)
    for chains, alike in ((apart, False), (together, True)):
        first, second = (
            chains.of(Endpoint.CHAT, body, headers, scope=b"a") for headers in (one, other)
        )
        assert (first == second) is alike


def test_what_another_scope_asked_has_no_block_in_common():
    body, chains = {"messages": [SYSTEM]}, PromptChains(shared=True)
    mine = chains.of(Endpoint.CHAT, body, {}, scope=b"a")
    assert mine
    assert mine == chains.of(Endpoint.CHAT, body, {}, scope=b"a")
    assert set(mine).isdisjoint(chains.of(Endpoint.CHAT, body, {}, scope=b"b"))
