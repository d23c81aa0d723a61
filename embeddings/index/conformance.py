"""What every vector index must do, as a check that each implementation runs in its tests.

Shipped with the port, so that an index of your own can be held to it: `await check_index(make)`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np

from embeddings.encoder.encoder import Vector
from embeddings.index.vector_index import VectorIndex

DIMENSIONS: Final = 8

MakeIndex = Callable[[str, int], Awaitable[VectorIndex]]
"""Opens the index of DIMENSIONS that is kept at a place, bounded to so many vectors: a new, empty
one where the place was not seen before, what the closed one held where it was."""

_NOW: Final = 1_700_000_000.0
_LATER: Final = _NOW + 3600
_ROOMY: Final = 10_000
_TIGHT: Final = 12
# Vectors may be kept as 16-bit floats: each number is then within 1/2048 of what it was.
_SLACK: Final = 5e-4


class IndexConformanceError(AssertionError):
    """The index broke the port's contract; the message says where."""


async def check_index(make: MakeIndex) -> None:
    """Put indexes made by `make` through every check. Raises IndexConformanceError."""
    for check in (
        _finds_the_nearest_first,
        _keeps_partitions_apart,
        _replaces_and_removes,
        _lets_nothing_expired_show,
        _sweeps_what_expired,
        _refuses_what_is_no_vector,
        _serves_many_at_once,
    ):
        index = await make(check.__name__, _ROOMY)
        try:
            await check(index)
        finally:
            await index.close()
    await _stays_within_its_bound(make)
    await _comes_back_after_a_restart(make)


def example_vectors(count: int, seed: int = 1) -> list[Vector]:
    """Return unit vectors, the same ones for a seed."""
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSIONS))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return list(np.ascontiguousarray(rows, dtype=np.float32))


def _expect(holds: bool, broken: str) -> None:
    if not holds:
        raise IndexConformanceError(broken)


async def _keys(
    index: VectorIndex, partition: bytes, vector: Vector, *, k: int = 200, now: float = _NOW
) -> list[bytes]:
    return [match.key for match in await index.search(partition, vector, k, now)]


async def _finds_the_nearest_first(index: VectorIndex) -> None:
    vectors = example_vectors(40)
    asked = example_vectors(1, seed=2)[0]
    _expect(await index.search(b"p", asked, 5, _NOW) == [], "an empty index found something")
    for number, vector in enumerate(vectors):
        await index.add(b"p", b"%d" % number, vector, _LATER, _NOW)
    cosines = {b"%d" % number: float(vector @ asked) for number, vector in enumerate(vectors)}
    nearest = sorted(cosines, key=cosines.__getitem__, reverse=True)
    for k in (1, 7, 40, 200):
        found = await index.search(b"p", asked, k, _NOW)
        keys = [match.key for match in found]
        _expect(keys == nearest[:k], f"the {k} nearest are not those, or not in their order")
        for match in found:
            off = abs(match.similarity - cosines[match.key])
            _expect(off < _SLACK, "a similarity is not the cosine")
    _expect(await index.search(b"p", asked, 0, _NOW) == [], "none were asked for, some found")
    for number, vector in enumerate(vectors[:10]):
        (own,) = await index.search(b"p", vector, 1, _NOW)
        _expect(own.key == b"%d" % number, "a vector is not its own nearest")
        _expect(1 - _SLACK < own.similarity <= 1.0, "a vector's similarity to itself is not 1")
        opposite = (await index.search(b"p", -vector, 40, _NOW))[-1]
        _expect(opposite.key == b"%d" % number, "a vector is not its opposite's farthest")
        _expect(-1.0 <= opposite.similarity < -1 + _SLACK, "a similarity left its range")


async def _keeps_partitions_apart(index: VectorIndex) -> None:
    vector = example_vectors(1)[0]
    partitions = [
        *(b"", b"\x00", b"\x00\x00", b"scope", b"scope\x00", b"Scope", b"'; --*\n{}"),
        *(bytes(range(256)), b"\xff" * 32, b"\xfe" + b"\xff" * 31, b"a" * 1024),
    ]
    for number, partition in enumerate(partitions):
        await index.add(partition, b"\x00%d\xff" % number, vector, _LATER, _NOW)
    for number, partition in enumerate(partitions):
        found = await _keys(index, partition, vector)
        _expect(found == [b"\x00%d\xff" % number], f"the partition {partition[:8]!r} leaks")
    _expect(await _keys(index, b"another", vector) == [], "an unknown partition found something")


async def _replaces_and_removes(index: VectorIndex) -> None:
    first, second, asked = example_vectors(3)
    for key in (b"", b"key", b"k" * 1024, b"\x00\xff"):
        await index.add(b"p", key, first, _LATER, _NOW)
        await index.add(b"p", key, second, _LATER, _NOW)
        (found,) = await index.search(b"p", second, 5, _NOW)
        _expect(found.key == key, "a key came back changed")
        _expect(found.similarity > 1 - _SLACK, "a replaced vector is the former one")
        await index.add(b"q", key, first, _LATER, _NOW)
        _expect(await _keys(index, b"p", asked) == [], "a key stayed in its former partition")
        _expect(await _keys(index, b"q", asked) == [key], "a key is not in its new partition")
        await index.remove([key, b"unknown"])
        _expect(await _keys(index, b"q", asked) == [], "a removed key was found")
    await index.remove([])
    for number in range(10):
        await index.add(b"p", b"%d" % number, first, _LATER, _NOW)
    await index.remove([b"%d" % number for number in range(0, 10, 2)])
    _expect(
        sorted(await _keys(index, b"p", first)) == [b"%d" % number for number in range(1, 10, 2)],
        "removing some keys took others, or not all of them",
    )
    await index.add(b"p", b"0", first, _LATER, _NOW)
    _expect(b"0" in await _keys(index, b"p", first), "a key added after its removal is not found")


async def _lets_nothing_expired_show(index: VectorIndex) -> None:
    near, far = example_vectors(2)
    for number in range(12):
        await index.add(b"p", b"old-%d" % number, near, _NOW + 10, _NOW)
    await index.add(b"p", b"live", far, _LATER, _NOW)
    await index.add(b"p", b"for ever", far, float("inf"), _NOW)
    await index.add(b"p", b"never", near, _NOW - 1, _NOW)
    await index.add(b"p", b"renewed", far, _NOW + 10, _NOW)
    await index.add(b"p", b"renewed", far, _LATER, _NOW)
    before = await _keys(index, b"p", near, now=_NOW + 9.5)
    _expect(len(before) == 15, "a live vector is not found, or one that expired is")
    after = await _keys(index, b"p", near, k=3, now=_NOW + 10)
    _expect(sorted(after) == [b"for ever", b"live", b"renewed"], "the expired hide the living")
    last = await _keys(index, b"p", near, now=_LATER)
    _expect(last == [b"for ever"], "a vector outlived its expiry")


async def _sweeps_what_expired(index: VectorIndex) -> None:
    vector = example_vectors(1)[0]
    for number in range(20):
        await index.add(b"p%d" % (number % 3), b"%d" % number, vector, _NOW + number, _NOW)
    await index.add(b"p0", b"0", vector, _LATER, _NOW)
    await index.sweep(_NOW + 9)
    _expect(index.size == 11, f"{index.size} vectors counted after a sweep, 11 there")
    found = [await _keys(index, b"p%d" % number, vector) for number in range(3)]
    left = sorted(int(key) for keys in found for key in keys)
    _expect(left == [0, *range(10, 20)], "a sweep dropped the living or left the expired")


async def _refuses_what_is_no_vector(index: VectorIndex) -> None:
    good = example_vectors(1)[0]
    bad = [np.ones(DIMENSIONS + 1, dtype=np.float32)]
    for value in (np.nan, np.inf, -np.inf):
        bad.append(good.copy())
        bad[-1][3] = value
    for vector, expires_at in [*((vector, _LATER) for vector in bad), (good, float("nan"))]:
        try:
            await index.add(b"p", b"bad", vector, expires_at, _NOW)
        except ValueError:
            continue
        raise IndexConformanceError("what is no vector, or has no expiry, was taken")
    _expect(await _keys(index, b"p", good) == [], "what was refused is found")


async def _serves_many_at_once(index: VectorIndex) -> None:
    vectors = example_vectors(24)

    async def use(number: int) -> None:
        mine, partition = b"mine-%d" % number, b"%d" % (number % 4)
        await index.add(partition, mine, vectors[number], _LATER, _NOW)
        (nearest,) = await index.search(partition, vectors[number], 1, _NOW)
        _expect(nearest.key == mine, "a vector was not found once its add had returned")
        await index.add(b"shared", b"shared", vectors[number], _LATER, _NOW)
        if number % 2:
            await index.remove([mine])

    await asyncio.gather(*(use(number) for number in range(len(vectors))))
    for number in range(4):
        kept = [b"mine-%d" % n for n in range(number, len(vectors), 4) if not n % 2]
        found = await _keys(index, b"%d" % number, vectors[0])
        _expect(sorted(found) == sorted(kept), "concurrent use lost a change")
    _expect(await _keys(index, b"shared", vectors[0]) == [b"shared"], "a key is there twice")


async def _stays_within_its_bound(make: MakeIndex) -> None:
    index = await make("bound", _TIGHT)
    vectors = example_vectors(3 * _TIGHT)
    try:
        for number, vector in enumerate(vectors[:_TIGHT]):
            await index.add(b"%d" % (number % 3), b"%d" % number, vector, _LATER, _NOW + number)
        await index.add(b"0", b"0", vectors[0], _LATER, _NOW + _TIGHT)
        await index.sweep(_NOW + _TIGHT)
        _expect(index.size == _TIGHT, "a vector left although there was room")
        for number in range(_TIGHT, len(vectors)):
            now = _NOW + number + 1
            await index.add(b"%d" % (number % 3), b"%d" % number, vectors[number], _LATER, now)
            if number == _TIGHT:
                await index.sweep(now)
                keys = await _all_keys(index, vectors[0])
                _expect(b"1" not in keys, "the oldest vector did not leave first")
                _expect(b"0" in keys, "a replaced vector left as if it were old")
        await index.sweep(_NOW + 1000)
        newest = [b"%d" % number for number in range(2 * _TIGHT, 3 * _TIGHT)]
        _expect(index.size == _TIGHT, "the bound does not hold after a sweep")
        keys = await _all_keys(index, vectors[0])
        _expect(sorted(keys) == sorted(newest), "it was not the oldest vectors that left")
    finally:
        await index.close()


async def _all_keys(index: VectorIndex, vector: Vector) -> Sequence[bytes]:
    return [key for number in range(3) for key in await _keys(index, b"%d" % number, vector)]


async def _comes_back_after_a_restart(make: MakeIndex) -> None:
    vectors = example_vectors(12)
    index = await make("restart", _ROOMY)
    for number, vector in enumerate(vectors):
        await index.add(b"p", b"%d" % number, vector, _LATER + number, _NOW)
    await index.remove([b"3"])
    await index.add(b"q", b"4", vectors[4], _LATER, _NOW)
    before = [await index.search(part, vectors[0], 50, _NOW) for part in (b"p", b"q")]
    await index.close()
    index = await make("restart", _ROOMY)
    try:
        after = [await index.search(part, vectors[0], 50, _NOW) for part in (b"p", b"q")]
        for was, now in zip(before, after, strict=True):
            _expect([m.key for m in was] == [m.key for m in now], "a restart changed what is found")
        _expect(len(after[0]) == 10, "vectors were lost")
        _expect(len(await _keys(index, b"p", vectors[0], now=_LATER + 8)) == 3, "expiry was lost")
        await index.sweep(_LATER + 8)
        _expect(index.size == 3, f"{index.size} vectors counted after a restart, 3 there")
    finally:
        await index.close()
    other = await make("elsewhere", _ROOMY)
    try:
        _expect(await _keys(other, b"p", vectors[0]) == [], "two places share vectors")
    finally:
        await other.close()
