"""Store an answer: admission, PII scan of the answer, entry, vector."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan
from gateway.cache.ports import EntryTooLargeError, Quarantine, Scanner, Store, StoreError
from gateway.protocol import exact_json
from gateway.protocol.conversation import answer_text
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.tokens import prompt_usage
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError

log = logging.getLogger(__name__)

MAX_TO_ADD = 1024
"""Vectors on their way to the index. No client waits for them: the next is left out."""
SETTLE_SECONDS = 3.0
"""The longest wait for vectors under way; a stopped worker is killed some seconds later."""


def _count_nothing(_reason: str) -> None:
    """Where nobody counts, an entry that was not added is in the log alone."""


@dataclass(frozen=True, slots=True)
class CacheWriter:
    """Admits, stores and removes answers; an entry can be hit once ``store`` has returned.

    ``adding``: the vectors on their way to the index, by the keys of their entries.
    ``count_not_added`` takes the reason why a question could not be indexed: its entry has exact
    hits only.
    """

    entries: Store
    semantic: SemanticIndex | None
    scans: Scans
    now: Callable[[], float]
    quarantine: Quarantine
    count_not_added: Callable[[str], None] = _count_nothing
    adding: dict[bytes, asyncio.Task[None]] = field(default_factory=dict)

    async def store(self, plan: Plan, result: Any, plain: bytes, scanner: Scanner) -> Reason | None:
        """Store ``plain``, the JSON of ``result``. Return None, or why it was not stored."""
        allowed = plan.decision.finish_reasons
        spec = SPECS[plan.partition.endpoint]
        reason = spec.decline(plan.body, result, allowed)
        if reason is not None:
            return reason
        if plan.scans:
            try:
                text = answer_text(plan.partition.endpoint, result)
                found = await self.scans.scan(scanner, text, plan.partition.scope)
            except ScanFailedError:
                return Reason.SCAN_FAULT
            if found is not None:
                if plan.personal is None:
                    return Reason.PII
                plan = plan.personal
        if spec.anonymous is not None and (anonymous := spec.anonymous(result)) is not None:
            plain = exact_json.dumps(anonymous)
        usage = prompt_usage(spec.usage(result))
        tokens = (usage.prompt or 0) + (usage.completion or 0)
        entry = plan.entry(plain, self.now(), tokens=tokens)
        try:
            await self.entries.put(entry)
        except EntryTooLargeError:
            return Reason.TOO_LARGE
        except StoreError as error:
            # A fault that lasts is logged once, by the store's guard.
            log.debug("store: an answer could not be stored: %s", error)
            return Reason.STORE_FAULT
        self._index(plan, entry.expires_at)
        return None

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Take entries out of store and index. Raises StoreError."""
        for key in keys:
            await self.entries.delete(key)
        if self.semantic is not None and keys:
            # Else a vector that is still under way would arrive after this removal.
            await self.settle(keys)
            for key in keys:
                if (adding := self.adding.get(key)) is not None:
                    adding.cancel()
            # An index that is down keeps a vector whose entry is gone: never a hit.
            with suppress(SemanticUnavailableError):
                await self.semantic.remove(keys)

    async def settle(self, keys: Iterable[bytes] | None = None) -> None:
        """Wait up to ``SETTLE_SECONDS`` for vectors under way: of these keys, or all."""
        some = self.adding if keys is None else self.adding.keys() & set(keys)
        if adding := [self.adding[key] for key in some]:
            await asyncio.wait(adding, timeout=SETTLE_SECONDS)

    def _index(self, plan: Plan, expires_at: float) -> None:
        if self.semantic is None or plan.question is None or self.quarantine.holds(plan.key):
            return
        if len(self.adding) >= MAX_TO_ADD:
            self.count_not_added("too-many")
            return
        key, question = plan.key, plan.question
        add = partial(self.semantic.add, plan.fingerprint, key, question, expires_at)
        if key in self.adding:
            self.adding[key].cancel()
        adding = self.adding[key] = asyncio.create_task(self._add(add))

        def on_end(_: object) -> None:
            if self.adding.get(key) is adding:
                del self.adding[key]

        adding.add_done_callback(on_end)

    async def _add(self, add: Callable[[], Awaitable[None]]) -> None:
        try:
            await add()
        except SemanticUnavailableError as error:
            # The entry can still be hit exactly; an outage is logged once, by the index.
            log.debug("semantic index: an entry was not added: %s", error.reason)
            self.count_not_added(error.reason)
