"""Beginnings of prompts that are worth having: what is kept, in which order, and within bounds."""

from typing import Any

import orjson
import pytest

from gateway.upstream.pool.watch.warm_up import HALF_LIFE, LONGEST_BYTES, MOST_COUNTED, WarmPrefixes
from policies.decision import Endpoint

LONG = "You are careful. " * 100
TOOLS = [{"type": "function", "function": {"name": "find", "description": LONG}}]


def chat(system: str | None = LONG, question: str = "Hello", **more: Any) -> dict[str, Any]:
    leading = [] if system is None else [{"role": "system", "content": system}]
    return {"model": "m", "messages": [*leading, {"role": "user", "content": question}], **more}


def noted(*bodies: dict[str, Any], **bounds: int) -> WarmPrefixes:
    prefixes = WarmPrefixes(**bounds)
    for number, body in enumerate(bodies):
        prefixes.note(Endpoint.CHAT, body, b"scope", float(number))
    return prefixes


def systems(prefixes: WarmPrefixes, now: float = 100.0) -> list[str]:
    return [orjson.loads(each.raw)["messages"][0]["content"] for each in prefixes.worth_most(now)]


def test_what_comes_twice_is_kept_without_what_users_say():
    bodies = [
        chat(question=f"Secret {number}", tools=TOOLS, cache_salt="s", temperature=0.7, stream=True)
        for number in range(2)
    ]
    assert systems(noted(bodies[0])) == []
    (kept,) = noted(*bodies).worth_most(2.0)
    assert orjson.loads(kept.raw) == {
        "model": "m",
        "tools": TOOLS,
        "cache_salt": "s",
        "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "."}],
        "max_tokens": 1,
        "temperature": 0,
    }
    assert b"Secret" not in kept.raw


def test_tenants_and_models_are_kept_apart():
    bodies = [chat(cache_salt="a"), chat(cache_salt="b"), {**chat(), "model": "n"}, chat()]
    assert systems(noted(*bodies)) == []
    assert len(systems(noted(*bodies, *bodies))) == 4


@pytest.mark.parametrize(
    "body",
    [
        chat("short"),
        chat("x" * LONGEST_BYTES),
        chat(None, LONG),
        {"model": "m", "messages": "text"},
        {"model": "m", "messages": [7]},
        chat(tools=[{"n": 2**70}]),
    ],
)
def test_what_has_no_stable_beginning_or_none_of_a_fit_length_is_not_kept(body):
    assert noted(body, body).worth_most(3.0) == []


def test_only_chats_are_kept():
    prefixes = WarmPrefixes()
    for now in (0.0, 1.0):
        prefixes.note(Endpoint.RESPONSES, chat(), b"scope", now)
    assert prefixes.worth_most(2.0) == []


def test_what_saves_most_comes_first_and_old_use_counts_less():
    often, large = chat("often " * 300), chat("large " * 1000)
    assert systems(noted(often, often, large, large)) == ["large " * 1000, "often " * 300]
    assert systems(noted(*[often] * 9, large, large))[0] == "often " * 300
    prefixes = noted(*[often] * 9)
    for _ in range(2):
        prefixes.note(Endpoint.CHAT, large, b"scope", 5 * HALF_LIFE)
    assert systems(prefixes, 5 * HALF_LIFE)[0] == "large " * 1000


def test_number_and_bytes_are_bounded_and_what_is_used_most_stays():
    best = chat("best " * 300)
    others = [chat(f"{number} {LONG}") for number in range(20)]
    twice = [each for each in others for _ in range(2)]
    few = noted(*[best] * 9, *twice, most=3)
    assert len(systems(few)) == 3
    assert systems(few)[0] == "best " * 300
    small = noted(*[best] * 9, *twice, most_bytes=5000)
    assert sum(len(each.raw) for each in small.worth_most(100.0)) <= 5000
    assert systems(small)[0] == "best " * 300


def test_beginnings_that_come_once_push_nothing_out_but_one_another():
    best = chat("best " * 300)
    prefixes = noted(best, best)
    for number in range(MOST_COUNTED // 2):
        prefixes.note(Endpoint.CHAT, chat(f"{number} {LONG}"), b"scope", 3.0)
    assert systems(prefixes) == ["best " * 300]


def test_what_is_dropped_has_to_come_twice_again():
    prefixes = noted(chat(), chat())
    (kept,) = prefixes.worth_most(2.0)
    prefixes.drop(kept.digest)
    prefixes.note(Endpoint.CHAT, chat(), b"scope", 3.0)
    assert prefixes.worth_most(4.0) == []
    prefixes.note(Endpoint.CHAT, chat(), b"scope", 4.0)
    assert len(prefixes.worth_most(5.0)) == 1
