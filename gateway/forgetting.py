"""Forget one scope: its entries, their vectors, and the keys that could still open a copy of them.

Law: what was stored for the scope when forgetting began is found by nobody once it has ended, in
memory, on disk or by meaning; with encryption not even in a copy of the files. Requests of the
scope that come meanwhile are stored anew: whoever is to be gone is to be shut out first.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from gateway.ports import SemanticIndex, SemanticUnavailableError, Store

PAGE = 256
"""Entries read at a time: the loop is free in between."""

PASSES = 3
"""What is stored while the store is walked is met by the next walk."""


class Vault(Protocol):
    """Holds the keys under which a scope's entries are sealed."""

    async def forget(self, scope: bytes) -> None:
        """Destroy the scope's keys. Raises StoreError."""
        ...


async def forget_scope(
    scope: bytes, *, store: Store, semantic: SemanticIndex | None, vault: Vault | None
) -> int:
    """Forget the scope; return how many entries it had. Raises StoreError.

    ``vault`` is None where entries are not encrypted. An index that is down keeps vectors whose
    entries are gone: they lead nowhere, and leave when they are next found.
    """
    forgotten = 0
    for _ in range(PASSES):
        found = await _remove_all(scope, store, semantic)
        forgotten += found
        if not found:
            break
    if vault is not None:
        # Last: without the keys, nobody could tell any more which entries are the scope's.
        await vault.forget(scope)
    return forgotten


async def _remove_all(scope: bytes, store: Store, semantic: SemanticIndex | None) -> int:
    removed = 0
    after: bytes | None = None
    while True:
        page = await store.walk(after, PAGE)
        keys = [entry.key for entry in page.entries if entry.scope == scope]
        await remove(keys, store=store, semantic=semantic)
        removed += len(keys)
        after = page.after
        if after is None:
            return removed


async def remove(keys: Sequence[bytes], *, store: Store, semantic: SemanticIndex | None) -> None:
    """Take entries out of store and index. Raises StoreError."""
    for key in keys:
        await store.delete(key)
    if semantic is not None and keys:
        # An index that is down keeps a vector whose entry is gone: never a hit.
        with suppress(SemanticUnavailableError):
            await semantic.remove(keys)
