"""A request on its way out: rewritten, compressed, with hints and what the gateway says itself.

Law: looked up, scanned and keyed is the request as it was asked; what is changed here is only sent.
Rewriting never fails a request and never holds up the loop: what it cannot do, or not in time, is
left as it came, with the reason.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from gateway.asked import Asked
from gateway.compressing import Compressor, Summariser, Writer
from gateway.core.compress.compress import Compressed
from gateway.core.hints.plan import Hinted, hinted, hints_for
from gateway.core.key import cache_salt, document_owner, scope_id
from gateway.core.lookup import Forward
from gateway.core.outbound import with_priority, with_salt
from gateway.core.outcome import Declined, NotRewritten, Rewrite
from gateway.core.plan import end_user
from gateway.core.rewrite.documents import NOTHING_KNOWN, Memory
from gateway.core.rewrite.known_tools import KnownTools
from gateway.core.rewrite.plan import Rewritten, rewrite, rules_for
from gateway.core.rewrite.shared_documents import SharedDocuments
from gateway.core.types import Endpoint
from gateway.exchange import Exchange
from policies.decide import DocumentOrder
from policies.freshness import parse_directives

log = logging.getLogger(__name__)

INLINE_BYTES = 32_768
INLINE_PIECES = 1024
"""Objects, and lines of texts. Bodies with more of either, or longer, are rewritten in a thread;
what is within takes a fraction of a millisecond, some where it is made to take long."""
SECONDS = 1.0
"""Rewriting that takes longer is given up: the client is waiting for it."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """Makes of what was asked what is sent."""

    secret: bytes = field(repr=False)
    salts_caches: bool = False
    """Whether the upstream knows ``cache_salt``, so that the gateway gives it one a tenant."""
    shared: SharedDocuments = field(default_factory=SharedDocuments)
    tools: KnownTools = field(default_factory=KnownTools)
    compressor: Compressor = field(default_factory=Compressor)
    summariser: Summariser = field(default_factory=Summariser)

    def salts(self, asked: Asked) -> bool:
        """Tell whether the request gets a salt."""
        # Embeddings have no prefix cache, and servers that know the field may refuse it there.
        return self.salts_caches and asked.endpoint is not Endpoint.EMBEDDINGS

    async def exchange(self, asked: Asked, state: Forward, *, volatile: bool = True) -> Exchange:
        """Return the request as it is sent; ``volatile`` says whether such values may move."""
        if asked.odd_body is not None:
            return self._untouched(asked, asked.odd_body, state)
        rewritten = await self._rewritten(asked, volatile=volatile)
        shorter = self._summarised(asked, Compressed(rewritten.body, rewritten.raw, None))
        body, raw, compression = await self.compressor.compressed(
            asked.endpoint, asked.decision, shorter
        )
        if self.salts(asked):
            body, raw = with_salt(body, raw, cache_salt(self.secret, asked.tenant))
        hints = await self._hinted(asked, body, raw)
        fields = with_priority(asked.inbound.fields, asked.decision.priority)
        plain = Exchange(
            asked.endpoint,
            replace(asked.inbound, raw=raw, fields=fields),
            body,
            state,
            asked.active.scanner,
            asked.seen,
            rewritten.changes,
            rewritten.declined + hints.declined,
            compression,
            asked.inbound.holder or asked.tenant.credential_sha256,
        )
        if Rewrite.VOLATILE in rewritten.changes:
            again = partial(self.exchange, asked, state, volatile=False)
            plain = replace(plain, without_volatile=again)
        return _with_hints(plain, hints) if hints.changes else plain

    def _untouched(self, asked: Asked, body: dict[str, Any], state: Forward) -> Exchange:
        """Return a request of an odd shape as it came, but for the tenant's salt."""
        raw = asked.inbound.raw
        if self.salts(asked):
            _, raw = with_salt(body, raw, cache_salt(self.secret, asked.tenant))
        fields = with_priority(asked.inbound.fields, asked.decision.priority)
        return Exchange(
            asked.endpoint,
            replace(asked.inbound, raw=raw, fields=fields),
            asked.body,
            state,
            asked.active.scanner,
            asked.seen,
            client=asked.inbound.holder or asked.tenant.credential_sha256,
        )

    async def _rewritten(self, asked: Asked, *, volatile: bool) -> Rewritten:
        body, raw, settings = asked.body, asked.inbound.raw, asked.decision.prefix
        left: tuple[Declined, ...] = ()
        if not volatile:
            settings = replace(settings, volatile=(), patterns=())
            left = (Declined(Rewrite.VOLATILE, NotRewritten.REFUSED),)
        rules = rules_for(asked.endpoint, body, settings)
        if not rules:
            return Rewritten(body, raw, declined=left)
        memory = self._memory(asked)
        owner = scope_id(self.secret, asked.decision.scope, asked.tenant, end_user(body))
        known = self.tools.forms(settings.schema_keys, owner)
        work = partial(rewrite, asked.endpoint, body, raw, settings, memory, known=known)
        rewritten = await _done_in_time(work, raw)
        if isinstance(rewritten, NotRewritten):
            declined = tuple(Declined(rule, rewritten) for rule in rules)
            return Rewritten(body, raw, declined=declined + left)
        self.tools.note(settings.schema_keys, rewritten.tools, owner)
        if memory is not NOTHING_KNOWN and volatile:
            self.shared.note(rewritten.digests)
        return replace(rewritten, declined=rewritten.declined + left) if left else rewritten

    def _summarised(self, asked: Asked, came: Compressed) -> Compressed:
        settings = asked.decision.compress
        if not settings.enabled or not settings.history:
            return came
        owner = document_owner(self.secret, asked.tenant)
        writer = Writer(asked.forwarder.upstream, tuple(asked.inbound.fields), owner)
        stores = not parse_directives(asked.inbound.headers.get("cache-control")).no_store
        return self.summariser.applied(
            asked.endpoint, came, settings.history, writer, stores=stores
        )

    async def _hinted(self, asked: Asked, body: dict[str, Any], raw: bytes) -> Hinted:
        settings, rule = asked.decision.hints, asked.decision.rule
        hints = hints_for(asked.endpoint, settings)
        if not hints:
            return Hinted(body, raw)
        owner = document_owner(self.secret, asked.tenant)
        work = partial(hinted, asked.endpoint, body, raw, settings, rule=rule, owner=owner)
        told = await _done_in_time(work, raw)
        if isinstance(told, NotRewritten):
            return Hinted(body, raw, declined=tuple(Declined(hint, told) for hint in hints))
        return told

    def _memory(self, asked: Asked) -> Memory:
        """Return what is known of the tenant's documents, where their order is by that."""
        documents = asked.decision.prefix.documents
        if documents is None or documents.order is not DocumentOrder.SHARED:
            return NOTHING_KNOWN
        return Memory(document_owner(self.secret, asked.tenant), self.shared.ranks)


def _with_hints(plain: Exchange, hints: Hinted) -> Exchange:
    refused = tuple(Declined(hint, NotRewritten.REFUSED) for hint in hints.changes)
    return replace(
        plain,
        inbound=replace(plain.inbound, raw=hints.raw),
        body=hints.body,
        rewrites=plain.rewrites + hints.changes,
        without_hints=replace(plain, not_rewritten=plain.not_rewritten + refused),
    )


T = TypeVar("T")


def _is_quick(raw: bytes) -> bool:
    return len(raw) <= INLINE_BYTES and raw.count(b"{") + raw.count(b"\\n") <= INLINE_PIECES


async def _done_in_time(work: Callable[[], T], raw: bytes) -> T | NotRewritten:
    """Return what comes of the work on a body, or why nothing does."""
    try:
        if _is_quick(raw):
            return work()
        async with asyncio.timeout(SECONDS):
            return await asyncio.to_thread(work)
    except TimeoutError:
        return NotRewritten.TIMEOUT
    except Exception as error:  # noqa: BLE001 - whatever it is, the request can go on as it came
        # Its message may quote the prompt, so only its type is told.
        log.warning("a prompt could not be rewritten (%s)", type(error).__name__)
        return NotRewritten.FAULT
