"""The contract of entry stores, as a check that each implementation runs in its tests.

Shipped with the port, so that you can check your own store: ``await check_store(make)``.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from gateway.cache.ports import Entry, EntryTooLargeError, Store, StoreError
from gateway.cache.stores.entry_codec import encoded_size
from policies.decision import Endpoint

MakeStore = Callable[[int], Awaitable[Store]]
"""Returns a new, empty store with this bound in bytes; the check closes it."""

_ROOMY = 16 << 20
_TIGHT = 64 << 10


class StoreConformanceError(AssertionError):
    """The store broke the port's contract; the message says where."""


async def check_store(make: MakeStore, *, charge: Callable[[Entry], int] = encoded_size) -> None:
    """Put stores made by ``make`` through every check. Raises StoreConformanceError.

    ``charge`` is the bytes that the store counts for an entry.
    """
    for check in (
        _returns_what_was_put,
        _keeps_every_shape,
        partial(_accounts_exactly, charge=charge),
        _serves_many_at_once,
        _walks_over_all,
    ):
        store = await make(_ROOMY)
        try:
            await check(store)
        finally:
            await store.close()
    await _stays_within(await make(_TIGHT), _TIGHT)
    await _refuses_after_close(await make(_ROOMY))


def example_entry(key: bytes = b"key", result: bytes = b'{"answer":1}') -> Entry:
    """Return an ordinary entry."""
    return Entry(
        key=key,
        endpoint=Endpoint.CHAT.value,
        model="example",
        upstream="http://upstream/v1",
        generation=1,
        scope=b"s" * 32,
        fingerprint=b"f" * 32,
        rule="default",
        stored_at=1_700_000_000.0,
        expires_at=4_000_000_000.0,
        result=result,
        question="How do I reset my password?",
    )


def _expect(holds: bool, broken: str) -> None:
    if not holds:
        raise StoreConformanceError(broken)


async def _returns_what_was_put(store: Store) -> None:
    entry = example_entry()
    _expect(await store.get(entry.key) is None, "an unknown key was found")
    await store.delete(entry.key)
    await store.put(entry)
    _expect(await store.get(entry.key) == entry, "get after put is not the entry")
    newer = replace(entry, result=b"newer", stored_at=entry.stored_at + 1)
    await store.put(newer)
    _expect(await store.get(entry.key) == newer, "get after a second put is not the newer entry")
    _expect(store.stats().entries == 1, "a replaced entry is still counted")
    await store.put(example_entry(b"other"))
    await store.delete(entry.key)
    _expect(await store.get(entry.key) is None, "a deleted entry was found")
    _expect(await store.get(b"other") is not None, "delete took another key with it")
    await store.put(entry)
    _expect(await store.get(entry.key) == entry, "an entry put after its delete is not found")


async def _keeps_every_shape(store: Store) -> None:
    plain = example_entry()
    shapes = (
        replace(plain, key=b""),
        replace(plain, key=b"\x00"),
        replace(plain, key=b"\x00\x00"),
        replace(plain, key=b"\xff" * 32),
        replace(plain, key=b"'; --\n\r{}*"),
        replace(plain, key=b"empty", result=b"", scope=b"", fingerprint=b"", rule="", model=""),
        replace(plain, key=b"binary", result=bytes(range(256))),
        replace(plain, key=b"large", result=random.Random(1).randbytes(1 << 20)),
        replace(plain, key=b"no question", question=None),
        replace(plain, key=b"empty question", question=""),
        replace(
            plain, key=b"unicode", question="naïve 漢字 🙂 e\u0301 \u0000 \ud800", model="模型"
        ),
        replace(plain, key=b"stale", expires_at=1.0),
        replace(plain, key=b"for ever", expires_at=float("inf"), generation=-1),
    )
    for shape in shapes:
        await store.put(shape)
    for shape in shapes:
        _expect(await store.get(shape.key) == shape, f"the entry {shape.key!r} came back changed")


async def _accounts_exactly(store: Store, charge: Callable[[Entry], int]) -> None:
    rng = random.Random(2)
    model: dict[bytes, Entry] = {}
    for _ in range(300):
        key = b"%d" % rng.randrange(40)
        if rng.random() < 0.3:
            model.pop(key, None)
            await store.delete(key)
        else:
            entry = example_entry(key, rng.randbytes(rng.randrange(4000)))
            model[key] = entry
            await store.put(entry)
        looked_up = b"%d" % rng.randrange(40)
        _expect(await store.get(looked_up) == model.get(looked_up), "a random operation went wrong")
    stats = store.stats()
    expected = sum(charge(entry) for entry in model.values())
    _expect(stats.entries == len(model), f"{stats.entries} entries counted, {len(model)} there")
    _expect(stats.bytes == expected, f"{stats.bytes} bytes counted, {expected} there")
    _expect(stats.evictions == 0, "evicted although there was room")


async def _serves_many_at_once(store: Store) -> None:
    async def use(n: int) -> None:
        mine, shared = example_entry(b"mine-%d" % n, b"%d" % n), b"shared"
        await store.put(mine)
        _expect(await store.get(mine.key) == mine, "a concurrent put was lost")
        await store.put(example_entry(shared, b"%d" % n))
        found = await store.get(shared)
        _expect(found is not None, "an entry that everybody replaces was missing")
        if n % 2:
            await store.delete(mine.key)

    await asyncio.gather(*(use(n) for n in range(64)))
    for n in range(64):
        _expect(
            (await store.get(b"mine-%d" % n) is None) == bool(n % 2), "a concurrent use is lost"
        )
    await store.put(example_entry(b"shared", b"last"))
    found = await store.get(b"shared")
    _expect(found is not None and found.result == b"last", "the last put does not win")


async def _walks_over_all(store: Store) -> None:
    _expect((await store.walk(None, 10)).entries == [], "an empty store's walk found something")
    there = {b"%d" % n: example_entry(b"%d" % n, b"x" * n) for n in range(50)}
    for entry in there.values():
        await store.put(entry)
    await store.delete(b"0")
    del there[b"0"]
    for limit in (1, 7, 49, 1000):
        walked: dict[bytes, Entry] = {}
        after: bytes | None = None
        while True:
            page = await store.walk(after, limit)
            _expect(len(page.entries) <= limit, "a page is longer than its limit")
            walked.update((entry.key, entry) for entry in page.entries)
            after = page.after
            if after is None:
                break
        _expect(walked == there, f"a walk in pages of {limit} did not meet exactly what is there")


async def _stays_within(store: Store, max_bytes: int) -> None:
    try:
        for n in range(200):
            entry = example_entry(b"%d" % n, b"x" * 1500)
            await store.put(entry)
            _expect(store.stats().bytes <= max_bytes, "the bound in bytes was exceeded")
            _expect(await store.get(entry.key) == entry, "the newest entry was evicted")
        stats = store.stats()
        _expect(stats.evictions > 0, "nothing was evicted")
        _expect(
            stats.entries + stats.evictions == 200, "entries plus evictions is not what was put"
        )
        _expect(stats.bytes > max_bytes // 2, "far more was evicted than had to be")
        last = example_entry(b"199", b"x" * 1500)
        try:
            await store.put(replace(last, result=b"x" * (max_bytes + 1)))
        except EntryTooLargeError:
            pass
        else:
            raise StoreConformanceError("an entry larger than the store was not refused")
        _expect(await store.get(b"199") == last, "a refused entry replaced or evicted another")
    finally:
        await store.close()


async def _refuses_after_close(store: Store) -> None:
    entry = example_entry()
    await store.put(entry)
    await store.close()
    await store.close()
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: store.get(entry.key),
        "put": lambda: store.put(entry),
        "delete": lambda: store.delete(entry.key),
        "walk": lambda: store.walk(None, 1),
    }
    for name, use in uses.items():
        try:
            await use()
        except StoreError:
            continue
        raise StoreConformanceError(f"{name} of a closed store did not raise StoreError")
