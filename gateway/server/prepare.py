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
from gateway.server.context import INLINE_BYTES, RequestContext
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


def salted_endpoints(*, upstream_knows_salt: bool) -> frozenset[Endpoint]:
    """Return the endpoints whose requests get a ``cache_salt``.

    Elsewhere there is no prefix cache, and servers that know the field may refuse it.
    """
    return frozenset(each for each in Endpoint if upstream_knows_salt and SPECS[each].generates)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Makes of what was context what is sent."""

    secret: bytes = field(repr=False)
    salted: frozenset[Endpoint] = frozenset()
    """Requests to these endpoints get a ``cache_salt`` for each tenant."""
    shared: SharedDocuments = field(default_factory=SharedDocuments)
    tools: KnownTools = field(default_factory=KnownTools)
    compressor: Compressor = field(default_factory=Compressor)
    summariser: Summariser = field(default_factory=Summariser)

    async def exchange(self, context: RequestContext, state: Forward) -> Exchange:
        """Return the request as it is sent."""
        request = context.request
        original = self._untouched(context, state)
        if request.odd is not None:
            return original
        rewritten = await self._rewrite(context)
        shorter = self._summarise(context, Compressed(rewritten.body, rewritten.raw, None))
        body, raw, compression = await self.compressor.compressed(
            request.endpoint, context.decision, shorter
        )
        if raw is request.raw:
            body, raw = original.request.body, original.request.raw
        elif request.endpoint in self.salted:
            body, raw = with_salt(body, raw, cache_salt(self.secret, context.tenant))
        hints = await self._hint(context, body, raw)
        plain = replace(
            original,
            request=replace(original.request, body=body, raw=raw),
            rewrites=rewritten.changes,
            not_rewritten=rewritten.declined + hints.declined,
            compression=compression,
        )
        return _with_hints(original, plain, hints)

    def _untouched(self, context: RequestContext, state: Forward) -> Exchange:
        """Return the request as it came, but for the tenant's salt and the priority."""
        request, tenant = context.request, context.tenant
        body, raw = request.body, request.raw
        if request.endpoint in self.salted:
            salt = cache_salt(self.secret, tenant)
            if request.odd is None:
                body, raw = with_salt(body, raw, salt)
            else:
                _, raw = with_salt(request.odd.body, raw, salt)
        return Exchange(
            replace(request, body=body, raw=raw),
            state,
            context.active.scanner,
            context.observation,
            context.decision.priority,
            client=request.holder or tenant.credential_sha256,
        )

    async def _rewrite(self, context: RequestContext) -> Rewritten:
        request, settings = context.request, context.decision.prefix
        endpoint, body, raw = request.endpoint, request.body, request.raw
        rules = rules_for(endpoint, body, settings)
        if not rules:
            return Rewritten(body, raw)
        memory = self._memory(context)
        owner = scope_id(self.secret, context.decision.scope, context.tenant, end_user(body))
        known = self.tools.forms(settings.schema_keys, owner)
        work = partial(rewrite, endpoint, body, raw, settings, memory, known=known)
        rewritten = await _done_in_time(work, raw)
        if isinstance(rewritten, NotRewritten):
            return Rewritten(body, raw, declined=_declined(rules, rewritten))
        self.tools.note(settings.schema_keys, rewritten.tools, owner)
        if memory is not NOTHING_KNOWN:
            self.shared.note(rewritten.digests)
        return rewritten

    def _summarise(self, context: RequestContext, compressed: Compressed) -> Compressed:
        request, settings = context.request, context.decision.compress
        if not settings.enabled or not settings.history:
            return compressed
        stored = not parse_directives(request.headers.get("cache-control")).no_store
        fields = own_fields(request.fields)
        ask = partial(_ask_model, context.coalescer.upstream, fields) if stored else None
        owner = document_owner(self.secret, context.tenant)
        return self.summariser.applied(request.endpoint, compressed, settings.history, owner, ask)

    async def _hint(self, context: RequestContext, body: dict[str, Any], raw: bytes) -> Changed:
        endpoint, decision = context.request.endpoint, context.decision
        settings, rule = decision.hints, decision.rule
        hints = hints_for(endpoint, settings)
        if not hints:
            return Changed(body, raw)
        owner = document_owner(self.secret, context.tenant)
        work = partial(hinted, endpoint, body, raw, settings, rule=rule, owner=owner)
        result = await _done_in_time(work, raw)
        if isinstance(result, NotRewritten):
            return Changed(body, raw, declined=_declined(hints, result))
        return result

    def _memory(self, context: RequestContext) -> Memory:
        """Return what is known of the tenant's documents, where their order is by that."""
        documents = context.decision.prefix.documents
        if documents is None or documents.order is not DocumentOrder.SHARED:
            return NOTHING_KNOWN
        return Memory(document_owner(self.secret, context.tenant), self.shared.ranks)


async def _ask_model(upstream: Upstream, fields: Fields, raw: bytes, model: str) -> str | None:
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


def _with_hints(original: Exchange, plain: Exchange, hints: Changed) -> Exchange:
    """Return the request with hints, and in it its other forms."""
    if hints.raw is original.request.raw:
        return plain
    compression, changes = plain.compression, plain.rewrites + hints.changes
    if compression is not None and compression.steps:
        compression = Compression(refused=NotRewritten.REFUSED)
    original = replace(
        original,
        not_rewritten=plain.not_rewritten + _declined(changes, NotRewritten.REFUSED),
        compression=compression,
    )
    plain = replace(plain, original=original)
    if not hints.changes:
        return plain
    refused = _declined(hints.changes, NotRewritten.REFUSED)
    return replace(
        plain,
        request=replace(plain.request, body=hints.body, raw=hints.raw),
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
