"""A request on its way out: rewritten, compressed, with hints and what the gateway says itself.

Law: the client's request is looked up, scanned and keyed; what is changed here is only sent.
Rewriting never fails a request and never holds up the loop: what it cannot do, or not in time, it
leaves as it was, with the reason.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from cachetools import LRUCache

from gateway.cache.key import affinity_scopes, cache_salt, document_owner, scope_id
from gateway.cache.lookup import Forward
from gateway.cache.plan import end_user
from gateway.prompts.compress import history
from gateway.prompts.compress.compress import begin
from gateway.prompts.compress.history import Cut, Known
from gateway.prompts.compress.relevance import Vector
from gateway.prompts.hints import add_hints, hints_for
from gateway.prompts.json_splice import with_field
from gateway.prompts.outcome import (
    Compression,
    NotRewritten,
    NotRewrittenError,
    PreparedRequest,
    Rewrite,
    combine,
    decline,
)
from gateway.prompts.rewrite.rules import rewrite, rules_for
from gateway.prompts.rewrite.text_rules import NOTHING_KNOWN, Memory, SharedDocuments
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import read_whole
from gateway.protocol.request import LARGE_BYTES, CacheRequest
from gateway.semantic.ports import LocalEncoder, SemanticUnavailableError
from gateway.server.context import INLINE_BYTES, RequestContext
from gateway.upstream.request import (
    SALT,
    Exchange,
    Outgoing,
    Upstream,
    own_fields,
)
from policies.decision import NO_HINTS, Decision, DocumentOrder, Endpoint
from policies.freshness import parse_directives

log = logging.getLogger(__name__)

INLINE_PIECES = 1024
"""Objects, and lines of texts. Bodies with more of either, or longer, are rewritten in a thread;
what is within takes a fraction of a millisecond, some where it is made to take long."""
SECONDS = 1.0
"""Rewriting that takes longer is given up: the client is waiting for it."""
MOST_SAID = 256 * 2**10
"""Bytes of an answer to a request of ours."""
COMPRESS_INLINE_BYTES = 4096
"""Longer bodies are compressed in a thread; these take a millisecond or two."""
SUMMARY_SECONDS = 120.0
MOST_SUMMARIES = 4
"""That are being written at a time."""
_DIGEST_BYTES = 16

T = TypeVar("T")
Ask = Callable[[bytes, str], Awaitable[str | None]]
"""Sends a chat request to a model; None where it does not say all that it had to say."""


@dataclass(frozen=True, slots=True)
class Compressor:
    """Compresses the declared context of requests as their rules say."""

    encoder: LocalEncoder | None = None
    seconds: float = 1.0

    async def compress(
        self, endpoint: Endpoint, decision: Decision, request: PreparedRequest
    ) -> PreparedRequest:
        """Return the request to send, and the outcome for its context, if it declares some."""
        settings = decision.compress
        if settings.documents is None:
            settings = replace(settings, documents=decision.prefix.documents)
        if not (settings.markers or settings.tool_results) or SPECS[endpoint].turns is None:
            return request
        inline = len(request.raw) <= COMPRESS_INLINE_BYTES
        try:
            async with asyncio.timeout(self.seconds):
                work = partial(begin, endpoint, request.body, request.raw, settings)
                draft = work() if inline else await asyncio.to_thread(work)
                if draft is None:
                    return request
                last = partial(draft.next, await self._embed(draft.texts))
                result = last() if inline else await asyncio.to_thread(last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request can go on as it was
            refused = Compression(refused=_reason_of(error, "compressed"))
            return replace(request, compression=combine(request.compression, refused))
        compression = combine(request.compression, result.compression)
        return replace(request, body=result.body, raw=result.raw, compression=compression)

    async def _embed(self, texts: tuple[str, ...]) -> Sequence[Vector]:
        if texts and self.encoder is None:
            raise NotRewrittenError(NotRewritten.NO_ENCODER)
        return await self.encoder.embed(texts) if texts and self.encoder else ()


@dataclass(slots=True)
class Summariser:
    """Puts summaries in the place of earlier turns, and has them written.

    No request waits for a summary: what is not known is begun behind its back, once for the same
    turns, with the credential of the request that needs it. Its summary serves that tenant only.
    """

    summaries: LRUCache[bytes, Known] = field(default_factory=history.new_summaries)
    _tasks: dict[bytes, asyncio.Task[None]] = field(default_factory=dict)

    def apply(
        self,
        endpoint: Endpoint,
        request: PreparedRequest,
        least: int,
        owner: bytes,
        ask: Ask | None,
    ) -> PreparedRequest:
        """Return the request with a summary, if one is known, and the outcome for its history.

        At least ``least`` user turns stay. The ``owner`` separates the summaries of tenants.
        Without ``ask`` no summary is written.
        """
        cut = history.cut_of(endpoint, request.body, least)
        if cut is None:
            return request
        model = str(request.body.get("model"))
        name = model.encode()
        whole = len(name).to_bytes(4, "big") + name + cut.turns
        digest = blake2b(whole, digest_size=_DIGEST_BYTES, key=owner).digest()
        known = self.summaries.get(digest)
        if known is None:
            if ask and digest not in self._tasks and len(self._tasks) < MOST_SUMMARIES:
                task = asyncio.create_task(self._write(cut, model, ask, digest))
                self._tasks[digest] = task
                task.add_done_callback(lambda _: self._tasks.pop(digest, None))
            known = NotRewritten.SUMMARY_PENDING
        if isinstance(known, NotRewritten):
            return replace(request, compression=Compression(refused=known))
        return history.with_summary(request, cut, known)

    async def close(self) -> None:
        """Cancel the summaries in progress."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, cut: Cut, model: str, ask: Ask, digest: bytes) -> None:
        known: Known = NotRewritten.SUMMARY_FACTS
        try:
            async with asyncio.timeout(SUMMARY_SECONDS):
                if await asyncio.to_thread(history.can_be_checked, cut):
                    answer = await ask(history.request_for(cut, model), model)
                    if answer is None:
                        log.info("a summary was not written (no whole answer)")
                        known = NotRewritten.SUMMARY_FAILED
                    else:
                        known = await asyncio.to_thread(history.judge, cut, answer.strip())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no request's
            expected = isinstance(error, UpstreamError | TimeoutError)
            level = logging.INFO if expected else logging.WARNING
            log.log(level, "a summary was not written (%s)", type(error).__name__)
            known = NotRewritten.SUMMARY_FAILED
        self.summaries[digest] = known


def salted_endpoints(*, upstream_knows_salt: bool) -> frozenset[Endpoint]:
    """Return the endpoints whose requests get a ``cache_salt``.

    Elsewhere there is no prefix cache, and servers that know the field may refuse it.
    """
    return frozenset(each for each in Endpoint if upstream_knows_salt and SPECS[each].generates)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Makes of the request of a client the one that is sent."""

    secret: bytes = field(repr=False)
    salted: frozenset[Endpoint] = frozenset()
    """Requests to these endpoints get a ``cache_salt`` for each scope."""
    shared: SharedDocuments = field(default_factory=SharedDocuments)
    tools: KnownTools = field(default_factory=KnownTools)
    compressor: Compressor = field(default_factory=Compressor)
    summariser: Summariser = field(default_factory=Summariser)

    async def exchange(self, context: RequestContext, state: Forward) -> Exchange:
        """Return the request to send."""
        request, decision = context.request, context.decision
        if len(request.raw) > LARGE_BYTES:
            original = await asyncio.to_thread(self._client_exchange, context, state)
        else:
            original = self._client_exchange(context, state)
        if request.odd is not None:
            return original
        rules = rules_for(request.endpoint, request.body, decision.prefix)
        compresses = decision.compress.enabled and not SPECS[request.endpoint].is_anthropic
        if not (rules or compresses) and decision.hints is NO_HINTS:
            return original
        prepared = await self._rewrite(context, rules)
        if compresses:
            prepared = self._summarise(context, prepared)
            prepared = await self.compressor.compress(request.endpoint, decision, prepared)
        body, raw = prepared.body, prepared.raw
        if raw is request.raw:
            body, raw = original.request.body, original.request.raw
        elif request.endpoint in self.salted and not original.salt:
            body, raw = with_field(body, raw, SALT, self._salt(context))
        hints = await self._add_hints(context, body, raw)
        plain = replace(
            original,
            request=_with_body(original.request, body, raw),
            rewrites=prepared.changes,
            not_rewritten=prepared.declined + hints.declined,
            compression=prepared.compression,
        )
        return _with_hints(original, plain, hints)

    def _client_exchange(self, context: RequestContext, state: Forward) -> Exchange:
        """Return the client's request with the tenant's salt and the priority."""
        request, salt = context.request, ""
        if request.endpoint in self.salted:
            salt = self._salt(context)
        if salt and not SPECS[request.endpoint].is_anthropic:
            request, salt = _with_salt(request, salt), ""
        return Exchange(
            request,
            state,
            context.active.scanner,
            context.observation,
            context.decision.priority,
            client=request.holder or context.tenant.credential_sha256,
            salt=salt,
            scopes=partial(affinity_scopes, self.secret, context.decision.scope, context.tenant),
            forwarding=context.forwarding,
        )

    def _salt(self, context: RequestContext) -> str:
        return cache_salt(self.secret, context.decision.scope, context.tenant)

    async def _rewrite(
        self, context: RequestContext, rules: tuple[Rewrite, ...]
    ) -> PreparedRequest:
        request, settings = context.request, context.decision.prefix
        endpoint, body, raw = request.endpoint, request.body, request.raw
        if not rules:
            return PreparedRequest(body, raw)
        memory = NOTHING_KNOWN
        documents = settings.documents
        if documents is not None and documents.order is DocumentOrder.SHARED:
            memory = Memory(document_owner(self.secret, context.tenant), self.shared.ranks)
        owner = scope_id(
            self.secret, context.decision.scope, context.tenant, end_user(endpoint, body)
        )
        known = self.tools.forms(settings.schema_keys, owner)
        work = partial(rewrite, endpoint, body, raw, settings, memory, known=known)
        result = await _run_in_time(work, raw)
        if isinstance(result, NotRewritten):
            return PreparedRequest(body, raw, declined=decline(rules, result))
        self.tools.note(settings.schema_keys, result.tools, owner)
        if memory is not NOTHING_KNOWN:
            self.shared.note(result.digests)
        return result

    def _summarise(self, context: RequestContext, prepared: PreparedRequest) -> PreparedRequest:
        request, settings = context.request, context.decision.compress
        if not settings.enabled or not settings.history:
            return prepared
        stored = not parse_directives(request.headers.get("cache-control")).no_store
        fields = own_fields(request.fields)
        ask = partial(_ask_model, context.coalescer.caller.upstream, fields) if stored else None
        owner = document_owner(self.secret, context.tenant)
        return self.summariser.apply(request.endpoint, prepared, settings.history, owner, ask)

    async def _add_hints(
        self, context: RequestContext, body: dict[str, Any], raw: bytes
    ) -> PreparedRequest:
        endpoint, decision = context.request.endpoint, context.decision
        settings, rule = decision.hints, decision.rule
        hints = () if settings is NO_HINTS else hints_for(endpoint, settings)
        if not hints:
            return PreparedRequest(body, raw)
        owner = document_owner(self.secret, context.tenant)
        work = partial(add_hints, endpoint, body, raw, settings, rule=rule, owner=owner)
        result = await _run_in_time(work, raw)
        if isinstance(result, NotRewritten):
            return PreparedRequest(body, raw, declined=decline(hints, result))
        return result


async def _ask_model(upstream: Upstream, fields: Fields, raw: bytes, model: str) -> str | None:
    """Return what a model says to a chat request of ours, None where that is not all of it."""
    async with upstream.send(Outgoing(Endpoint.CHAT.value, fields, raw, model)) as reply:
        if reply.status != HTTPStatus.OK:
            return None
        read = await read_whole(reply.read, MOST_SAID)
    match None if read is None else orjson.loads(read):
        case {"choices": [{"message": {"content": str(content)}, "finish_reason": "stop"}]}:
            return content
    return None


def _with_salt(request: CacheRequest, salt: str) -> CacheRequest:
    if (odd := request.odd) is None:
        body, raw = with_field(request.body, request.raw, SALT, salt)
        return replace(request, body=body, raw=raw)
    body, raw = with_field(odd.body, request.raw, SALT, salt)
    return replace(request, raw=raw, odd=replace(odd, body=body))


def _with_body(request: CacheRequest, body: dict[str, Any], raw: bytes) -> CacheRequest:
    return request if raw is request.raw else replace(request, body=body, raw=raw)


def _with_hints(original: Exchange, plain: Exchange, hints: PreparedRequest) -> Exchange:
    """Return the request with hints, and in it its other forms."""
    if hints.raw is original.request.raw:
        return plain
    compression, changes = plain.compression, plain.rewrites + hints.changes
    if compression is not None and compression.steps:
        compression = Compression(refused=NotRewritten.REFUSED)
    original = replace(
        original,
        not_rewritten=plain.not_rewritten + decline(changes, NotRewritten.REFUSED),
        compression=compression,
    )
    plain = replace(plain, original=original)
    if not hints.changes:
        return plain
    refused = decline(hints.changes, NotRewritten.REFUSED)
    return replace(
        plain,
        request=replace(plain.request, body=hints.body, raw=hints.raw),
        rewrites=changes,
        unhinted=replace(plain, not_rewritten=plain.not_rewritten + refused),
    )


async def _run_in_time(work: Callable[[], T], raw: bytes) -> T | NotRewritten:
    """Return the result of the work on a body, or why there is none."""
    try:
        if len(raw) <= INLINE_BYTES and raw.count(b"{") + raw.count(b"\\n") <= INLINE_PIECES:
            return work()
        async with asyncio.timeout(SECONDS):
            return await asyncio.to_thread(work)
    except Exception as error:  # noqa: BLE001 - whatever it is, the request can go on as it was
        return _reason_of(error, "rewritten")


def _reason_of(error: Exception, what: str) -> NotRewritten:
    """Return why a prompt was not changed; log unexpected reasons."""
    if isinstance(error, NotRewrittenError):
        return error.why
    if isinstance(error, TimeoutError):
        return NotRewritten.TIMEOUT
    if isinstance(error, SemanticUnavailableError):
        return NotRewritten.TIMEOUT if error.reason == "timeout" else NotRewritten.NO_ENCODER
    # Its message may quote the prompt, so only its type is logged.
    log.warning("a prompt could not be %s (%s)", what, type(error).__name__)
    return NotRewritten.FAULT
