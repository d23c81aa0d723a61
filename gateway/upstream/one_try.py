"""One try at one upstream: its reply up to the first token, and whether that is an answer."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import bears_credential
from gateway.protocol.http.messages import read_up_to
from gateway.upstream.additions import MOVED, NONE
from gateway.upstream.pool.pool import UpstreamPool
from gateway.upstream.pool.table import Call
from gateway.upstream.request import PREFILL, Outgoing, Served, UpstreamReply
from gateway.upstream.tries import (
    ADDITION_REFUSED,
    NOT_KEPT,
    NOT_SERVED,
    Failure,
    failure_of,
    refusal_of,
)
from gateway.upstream.wire.first_token import HELD_BYTES, FirstToken, FirstTokenDetector
from gateway.upstream.wire.translated import RefusedReply
from gateway.upstream.wire.verdict import error_of, lacks_model, parsed_or_none

_EXPLAINED = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""The statuses of a refusal whose body says what was refused."""
_MAY_LACK_MODEL = _EXPLAINED - {HTTPStatus.UNPROCESSABLE_ENTITY}
_OF_ADDITIONS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_UNKNOWN_ID = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""The statuses for an id that is not known, or for the field on a server that keeps nothing."""


@dataclass(eq=False)
class OneTry:
    """The reply to one try at one upstream; see the port ``UpstreamReply``.

    Once it is open, its first token is here, or it is a refusal, or there is no other upstream.
    """

    pool: UpstreamPool = field(repr=False)
    call: Call = field(repr=False)
    served: Served
    name: str
    status: int = 0
    headers: Sequence[tuple[str, str]] = ()
    content_type: str = ""
    failure: Failure | None = None
    """Why this is no answer. A refusal is passed on nevertheless if no upstream answers."""
    error: UpstreamError | None = None
    """The fault, if there is no reply, or one that broke before its first token."""
    refused: bool = False
    """Whether the answer is that the request is at fault."""
    lacks_model: bool = False
    """Whether the answer is that the upstream does not have the model."""
    may_be_of_additions: bool = False
    """Whether it may be refused for what the gateway added: then its body is held."""
    _context: AbstractAsyncContextManager[UpstreamReply] | None = None
    _reply: UpstreamReply | None = None
    _held: list[bytes] = field(default_factory=list, repr=False)

    async def send(self, outgoing: Outgoing) -> None:
        """Send the request, wait for the first token, and note how the upstream did."""
        pool, call = self.pool, self.call
        if pool.metrics is not None:
            pool.metrics.count_request(call.name, call.route)
        if call.prefill is not None:
            place = call.prefill.upstream.member.kv_transfer
            outgoing = replace(outgoing, fields=(*outgoing.fields, (PREFILL, place)))
        try:
            await self._open(outgoing)
        except UpstreamError as error:
            self.error, self.failure = error, failure_of(error, head=self.status > 0)
            self.lacks_model = error.of_model
            if self.lacks_model:
                pool.table.record_lack(call.name, outgoing, pool.clock())
            pool.note_failure(call, self.failure)
            await self.close(error)
        except BaseException:
            await self.close()
            raise
        if self.error is not None or isinstance(self._reply, RefusedReply):
            return
        self.failure = self.failure or self._refusal(outgoing)
        if self.failure is None or self.failure is ADDITION_REFUSED:
            pool.table.first_byte(call, pool.clock(), refused=self.refused)
        else:
            pool.note_failure(call, self.failure)

    async def _open(self, outgoing: Outgoing) -> None:
        """Wait for the first token. Raises UpstreamError, also for an empty answer."""
        pool = self.pool
        context = pool.upstreams[self.name].send(outgoing)
        self._reply = reply = await context.__aenter__()
        self._context = context
        self.served = self._served(reply.served)
        self.status, self.headers = reply.status, reply.headers
        self.content_type = reply.content_type
        if self.status != HTTPStatus.OK:
            self.refused = self.status >= HTTPStatus.BAD_REQUEST
            personal = pool.passes_credentials and bears_credential(outgoing.fields)
            self.failure = refusal_of(self.status, self.headers, pool.wall(), personal=personal)
            moved = self.status == HTTPStatus.INTERNAL_SERVER_ERROR and MOVED in self.additions
            if self.status in _EXPLAINED or moved:
                self._held.append(body := await read_up_to(reply.read, HELD_BYTES))
                is_added = self.status in _OF_ADDITIONS and bool(self.additions)
                # llama.cpp answers with an error 500 if a chat template fails.
                self.may_be_of_additions = len(body) <= HELD_BYTES and (moved or is_added)
                if self.status in _MAY_LACK_MODEL:
                    self.lacks_model = lacks_model(self.status, error_of(parsed_or_none(body)))
            if self.failure is not None or self._held:
                return
        if not pool.several:
            return
        detector = FirstTokenDetector(self.content_type == "text/event-stream", self._held)
        found: FirstToken | Failure = FirstToken.PENDING
        while found is FirstToken.PENDING:
            piece = await reply.read()
            found = detector.add(piece, pool.clock()) if piece else detector.end()
        self.refused = self.refused or found is FirstToken.REFUSED
        if isinstance(found, Failure):
            self.failure = found if self.status == HTTPStatus.OK else None
        elif found is FirstToken.NONE and self.status == HTTPStatus.OK:
            message = "The upstream ended its answer before it began."
            raise UpstreamError(502, message, Reason.UPSTREAM_BROKE)

    def _served(self, served: Served) -> Served:
        """Return what is said of the reply: by a lone upstream only what it says itself."""
        several = self.pool.several
        return Served(
            self.name if several else served.upstream,
            several=several,
            passes_credentials=served.passes_credentials,
            tried=self.served.tried,
            variant=self.served.variant,
            added=served.added,
            report=self._report if several else None,
            learn=partial(self.pool.learn, self.name) if several else None,
        )

    def _refusal(self, outgoing: Outgoing) -> Failure | None:
        """Return the failure of a reply that another upstream, or another form, may better."""
        pool = self.pool
        if self.lacks_model:
            pool.table.record_lack(self.name, outgoing, pool.clock())
            return NOT_SERVED if pool.table.may_have(outgoing, self.name) else None
        if outgoing.sticky_id and pool.several:
            if self.status < HTTPStatus.BAD_REQUEST:
                pool.affinity.note((outgoing.sticky_id,), outgoing.scopes()[0], self.name)
            elif not outgoing.pinned and self.status in _UNKNOWN_ID:
                return NOT_KEPT
        return ADDITION_REFUSED if self.may_be_of_additions else None

    @property
    def additions(self) -> frozenset[str]:
        """What the gateway added, and may be refused."""
        variant = self.served.variant
        return self.served.added | (NONE if variant is None else variant.additions)

    async def read(self) -> bytes:
        """Return the next piece of the body, none at its end. Raises UpstreamError."""
        if self._held:
            piece = b"".join(self._held)
            self._held.clear()
            return piece
        if self._reply is None:
            return b""
        try:
            return await self._reply.read()
        except UpstreamError as error:
            if self.pool.several:
                error.tried = (*self.served.tried, (self.name, error.reason))
            raise

    async def close(self, error: BaseException | None = None) -> None:
        """Leave the reply and end the call.

        A broken or incomplete body counts against the upstream, unless its first token was judged
        already.
        """
        counted = self.failure is not None or self.refused
        if isinstance(error, UpstreamError) and not counted:
            self.pool.note_failure(self.call, failure_of(error, head=True))
        context, self._context, self._reply = self._context, None, None
        try:
            if context is not None:
                kind = None if error is None else type(error)
                await context.__aexit__(kind, error, None)
        finally:
            pool = self.pool
            pool.table.release(self.call)
            if pool.queue.waiting.lanes:
                pool.queue.admit()

    def _report(self, cached_tokens: int | None) -> None:
        """Note the cached tokens of the answer."""
        if cached_tokens is not None:
            self.pool.table.routing.note_cached(self.call.dispatch, cached_tokens)
