"""A request on its way out: rewritten, compressed, with hints and what the gateway says itself.

Law: looked up, scanned and keyed is the request as it was asked; what is changed here is only sent.
Rewriting never fails a request and never holds up the loop: what it cannot do, or not in time, is
left as it came, with the reason.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

from gateway.cache.key import cache_salt, document_owner, scope_id
from gateway.cache.lookup import Forward
from gateway.cache.plan import end_user
from gateway.prompts.compress.compress import Compressed
from gateway.prompts.compress.compressor import Compressor, Summariser
from gateway.prompts.hints import hinted, hints_for
from gateway.prompts.outcome import Changed, Compression, Declined, NotRewritten, Rewrite
from gateway.prompts.rewrite.documents import NOTHING_KNOWN, Memory, SharedDocuments
from gateway.prompts.rewrite.rewrite import Rewritten, rewrite, rules_for
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.headers import Fields
from gateway.protocol.messages import read_whole
from gateway.server.request import INLINE_BYTES, RequestContext
from gateway.upstream.request import (
    Exchange,
    Outgoing,
    Upstream,
    own_fields,
    with_salt,
)
from policies.decision import DocumentOrder, Endpoint
from policies.freshness import parse_directives

log = logging.getLogger(__name__)

INLINE_PIECES = 1024
"""Objects, and lines of texts. Bodies with more of either, or longer, are rewritten in a thread;
what is within takes a fraction of a millisecond, some where it is made to take long."""
SECONDS = 1.0
"""Rewriting that takes longer is given up: the client is waiting for it."""
MOST_SAID = 256 * 2**10
"""Bytes of an answer to a request of ours."""


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

    def salts(self, asked: RequestContext) -> bool:
        """Tell whether the request gets a salt."""
        # Elsewhere there is no prefix cache, and servers that know the field may refuse it.
        return self.salts_caches and SPECS[asked.endpoint].generates

    async def exchange(self, asked: RequestContext, state: Forward) -> Exchange:
        """Return the request as it is sent."""
        original = self._untouched(asked, state)
        if asked.odd_body is not None:
            return original
        rewritten = await self._rewritten(asked)
        shorter = self._summarised(asked, Compressed(rewritten.body, rewritten.raw, None))
        body, raw, compression = await self.compressor.compressed(
            asked.endpoint, asked.decision, shorter
        )
        if raw is asked.inbound.raw:
            body, raw = original.body, original.raw
        elif self.salts(asked):
            body, raw = with_salt(body, raw, cache_salt(self.secret, asked.tenant))
        hints = await self._hinted(asked, body, raw)
        plain = replace(
            original,
            body=body,
            raw=raw,
            rewrites=rewritten.changes,
            not_rewritten=rewritten.declined + hints.declined,
            compression=compression,
        )
        return _sent(original, plain, hints)

    def _untouched(self, asked: RequestContext, state: Forward) -> Exchange:
        """Return the request as it came, but for the tenant's salt and the priority."""
        body, raw = asked.body, asked.inbound.raw
        if self.salts(asked):
            salt = cache_salt(self.secret, asked.tenant)
            if asked.odd_body is None:
                body, raw = with_salt(body, raw, salt)
            else:
                _, raw = with_salt(asked.odd_body, raw, salt)
        return Exchange(
            asked.endpoint,
            asked.inbound,
            body,
            raw,
            state,
            asked.active.scanner,
            asked.seen,
            asked.decision.priority,
            client=asked.inbound.holder or asked.tenant.credential_sha256,
        )

    async def _rewritten(self, asked: RequestContext) -> Rewritten:
        body, raw, settings = asked.body, asked.inbound.raw, asked.decision.prefix
        rules = rules_for(asked.endpoint, body, settings)
        if not rules:
            return Rewritten(body, raw)
        memory = self._memory(asked)
        owner = scope_id(self.secret, asked.decision.scope, asked.tenant, end_user(body))
        known = self.tools.forms(settings.schema_keys, owner)
        work = partial(rewrite, asked.endpoint, body, raw, settings, memory, known=known)
        rewritten = await _done_in_time(work, raw)
        if isinstance(rewritten, NotRewritten):
            return Rewritten(body, raw, declined=_declined(rules, rewritten))
        self.tools.note(settings.schema_keys, rewritten.tools, owner)
        if memory is not NOTHING_KNOWN:
            self.shared.note(rewritten.digests)
        return rewritten

    def _summarised(self, asked: RequestContext, came: Compressed) -> Compressed:
        settings = asked.decision.compress
        if not settings.enabled or not settings.history:
            return came
        stored = not parse_directives(asked.inbound.headers.get("cache-control")).no_store
        fields = own_fields(asked.inbound.fields)
        ask = partial(_said, asked.coalescer.upstream, fields) if stored else None
        owner = document_owner(self.secret, asked.tenant)
        return self.summariser.applied(asked.endpoint, came, settings.history, owner, ask)

    async def _hinted(self, asked: RequestContext, body: dict[str, Any], raw: bytes) -> Changed:
        settings, rule = asked.decision.hints, asked.decision.rule
        hints = hints_for(asked.endpoint, settings)
        if not hints:
            return Changed(body, raw)
        owner = document_owner(self.secret, asked.tenant)
        work = partial(hinted, asked.endpoint, body, raw, settings, rule=rule, owner=owner)
        told = await _done_in_time(work, raw)
        if isinstance(told, NotRewritten):
            return Changed(body, raw, declined=_declined(hints, told))
        return told

    def _memory(self, asked: RequestContext) -> Memory:
        """Return what is known of the tenant's documents, where their order is by that."""
        documents = asked.decision.prefix.documents
        if documents is None or documents.order is not DocumentOrder.SHARED:
            return NOTHING_KNOWN
        return Memory(document_owner(self.secret, asked.tenant), self.shared.ranks)


async def _said(upstream: Upstream, fields: Fields, raw: bytes, model: str) -> str | None:
    """Return what a model says to a chat request of ours, None where that is not all of it."""
    async with upstream.send(Outgoing(Endpoint.CHAT.value, fields, raw, model)) as reply:
        if reply.status != HTTPStatus.OK:
            return None
        read = await read_whole(reply.chunks(), MOST_SAID)
    match None if read is None else orjson.loads(read):
        case {"choices": [{"message": {"content": str(content)}, "finish_reason": "stop"}]}:
            return content
    return None


def _declined(rewrites: Iterable[Rewrite], why: NotRewritten) -> tuple[Declined, ...]:
    return tuple(Declined(each, why) for each in rewrites)


def _sent(original: Exchange, plain: Exchange, hints: Changed) -> Exchange:
    """Return the request with hints, and in it its other forms."""
    if hints.raw is original.raw:
        return plain
    told, changes = plain.compression, plain.rewrites + hints.changes
    if told is not None and told.steps:
        told = Compression(refused=NotRewritten.REFUSED)
    original = replace(
        original,
        not_rewritten=plain.not_rewritten + _declined(changes, NotRewritten.REFUSED),
        compression=told,
    )
    plain = replace(plain, original=original)
    if not hints.changes:
        return plain
    refused = _declined(hints.changes, NotRewritten.REFUSED)
    return replace(
        plain,
        body=hints.body,
        raw=hints.raw,
        rewrites=changes,
        unhinted=replace(plain, not_rewritten=plain.not_rewritten + refused),
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
