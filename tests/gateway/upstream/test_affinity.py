"""The makers that are known: bounded, by scope, and shared with other processes."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gateway.cache.ports import StoreError
from gateway.cache.stores.sqlite.makers import SqliteMakers
from gateway.upstream.pool.affinity import (
    LONGEST_SIGNATURE,
    MOST_LEARNT,
    Affinity,
    Learner,
    digests_of,
)

MINE, THEIRS, OURS = bytes(32), b"t" * 32, b"o" * 32


def of_mine() -> Sequence[bytes]:
    return (MINE, OURS)


async def known(affinity: Affinity, *values: str, scopes: Sequence[bytes] = (MINE,)) -> str:
    return await affinity.maker_of(values, scopes)


async def test_the_least_recently_used_is_forgotten_first():
    affinity = Affinity(most=2)
    affinity.note(["one"], MINE, "a")
    affinity.note(["two"], MINE, "b")
    assert await known(affinity, "one") == "a"
    affinity.note(["three", ""], MINE, "c")
    assert [await known(affinity, one) for one in ("one", "two", "three", "")] == ["a", "", "c", ""]
    affinity.forget("a")
    assert await known(affinity, "one") == ""


async def test_the_first_known_value_decides():
    affinity = Affinity()
    affinity.note(["old"], MINE, "a")
    affinity.note(["new"], MINE, "b")
    assert await known(affinity, "unknown", "new", "old") == "b"


async def test_a_value_is_known_within_the_scope_it_was_made_in():
    affinity = Affinity()
    affinity.note(["value"], OURS, "a")
    assert await known(affinity, "value", scopes=(THEIRS, OURS)) == "a"
    assert await known(affinity, "value", scopes=(THEIRS,)) == ""
    [digest] = digests_of(["value"], (OURS,))
    assert b"value" not in digest
    assert len(digest) == 16


async def test_processes_of_one_folder_know_the_same_makers(tmp_path: Path):
    first, second = (SqliteMakers(tmp_path / "makers.sqlite3", seconds=30.0, most=3) for _ in "ab")
    one, other = Affinity(first), Affinity(second)
    for number in range(5):
        told = one.note([f"value {number}"], MINE, f"u{number}")
        assert told is not None
        await told
    assert one.note(["value 4"], MINE, "u4") is None  # nothing new
    found = [await known(other, f"value {number}") for number in range(5)]
    assert found == ["", "", "u2", "u3", "u4"]
    told = one.note(["value 4"], MINE, "u9")
    assert told is not None
    await told
    assert await known(Affinity(second), "value 4") == "u9"
    await first.close()
    await second.close()


async def test_what_was_learnt_is_told_before_the_end(tmp_path: Path):
    makers = SqliteMakers(tmp_path / "makers.sqlite3", seconds=30.0)
    affinity = Affinity(makers)
    affinity.note(["value"], MINE, "a")
    await affinity.settle()
    await affinity.settle()
    assert await known(Affinity(makers), "value") == "a"
    await makers.close()


async def test_a_reply_without_a_reader_tells_what_it_brought(tmp_path: Path):
    makers = SqliteMakers(tmp_path / "makers.sqlite3", seconds=30.0)
    affinity = Affinity(makers)
    learner = Learner(lambda values, scope: affinity.note(values, scope, "a"), of_mine, keeps=False)
    learner.take({"signature": "value"})
    telling = asyncio.create_task(learner.told())
    await asyncio.sleep(0)
    telling.cancel()
    await asyncio.wait([telling])
    await affinity.settle()
    assert await known(Affinity(makers), "value") == "a"
    await makers.close()


def test_a_signature_in_pieces_is_noted_whole():
    noted: list[str] = []
    learner = Learner(lambda values, _scope: noted.extend(values), of_mine, keeps=False)
    for pieces in ("ab", "c"), ("xy",):
        for piece in pieces:
            delta = {"type": "signature_delta", "signature": piece}
            learner.take({"type": "content_block_delta", "index": 0, "delta": delta})
        learner.take({"type": "content_block_stop", "index": 0})
    learner.take({"content": [{"signature": "abc"}, {"signature": "new"}]})
    assert noted == ["abc", "xy", "new"]


def test_an_endless_answer_is_learnt_up_to_a_bound():
    noted: list[str] = []
    learner = Learner(lambda values, _scope: noted.extend(values), of_mine, keeps=False)
    for number in range(MOST_LEARNT + 500):
        learner.take({"encrypted_content": f"value {number}"})
    assert len(noted) == MOST_LEARNT + 1


def test_a_signature_beyond_the_bound_is_not_learnt_and_the_next_one_is():
    noted: list[str] = []
    learner = Learner(lambda values, _scope: noted.extend(values), of_mine, keeps=False)
    for size in (LONGEST_SIGNATURE // 2, 3):
        for _ in range(3):
            piece = {"type": "signature_delta", "signature": "s" * size}
            learner.take({"type": "content_block_delta", "delta": piece})
        learner.take({"type": "content_block_stop"})
    assert noted == ["s" * 9]


class Silent:
    """A store that does not answer, or fails."""

    seconds = 0.005

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def find(self, _digests: Sequence[bytes]) -> Mapping[bytes, str]:
        await self._fail()
        return {}

    async def add(self, _digests: Sequence[bytes], _maker: str) -> None:
        await self._fail()

    async def close(self) -> None:
        """There is nothing to close."""

    async def _fail(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, StoreError("no"), AttributeError("a defect")])
async def test_a_store_that_fails_leaves_what_this_process_knows(error: Exception | None):
    affinity = Affinity(Silent(error))
    told = affinity.note(["value"], MINE, "a")
    assert told is not None
    await told
    assert await known(affinity, "value") == "a"
    assert await known(affinity, "another") == ""
