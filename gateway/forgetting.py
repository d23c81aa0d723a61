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
        for key in keys:
            await store.delete(key)
        await _unindex(keys, semantic)
        removed += len(keys)
        after = page.after
        if after is None:
            return removed


async def _unindex(keys: Sequence[bytes], semantic: SemanticIndex | None) -> None:
    if semantic is not None and keys:
        with suppress(SemanticUnavailableError):
            await semantic.remove(keys)
