"""Store an answer: admission, PII scan of the answer, entry, vector."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan
from gateway.cache.ports import (
    EntryTooLargeError,
    Quarantine,
    Scanner,
    Store,
    StoreError,
    StoreUnavailableError,
)
from gateway.protocol import exact_json
from gateway.protocol.cache_status import Reason
from gateway.protocol.conversation import answer_text
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.tokens import prompt_usage
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheWriter:
    """Admits and stores answers; an entry can be hit once ``store`` has returned.

    ``adding``: the vectors on their way to the index.
    """

    entries: Store
    semantic: SemanticIndex | None
    scans: Scans
    now: Callable[[], float]
    quarantine: Quarantine
    adding: set[asyncio.Task[None]] = field(default_factory=set)

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
        except StoreUnavailableError as error:
            # Logged once, by the breaker.
            log.debug("store: an answer could not be stored: %s", error)
            return Reason.STORE_FAULT
        except StoreError as error:
            log.warning("store: an answer could not be stored: %s", error)
            return Reason.STORE_FAULT
        self._index(plan, entry.expires_at)
        return None

    def _index(self, plan: Plan, expires_at: float) -> None:
        if self.semantic is None or plan.question is None or self.quarantine.holds(plan.key):
            return
        add = self.semantic.add(plan.fingerprint, plan.key, plan.question, expires_at)
        # No client waits for it: what is sent to the index later finds what was sent before.
        adding = asyncio.create_task(_logged(add))
        self.adding.add(adding)
        adding.add_done_callback(self.adding.discard)


async def _logged(add: Awaitable[None]) -> None:
    try:
        await add
    except SemanticUnavailableError as error:
        # The entry can still be hit exactly.
        log.info("semantic index: an entry was not added: %s", error.reason)
