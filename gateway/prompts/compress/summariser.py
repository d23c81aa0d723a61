"""Summaries of long conversations, written by the upstream behind every request's back.

Law: no request ever waits for one: what is known is used, what is not is begun, and the request
goes on as it was. One call at most is made for the same turns, a few at a time, in bounded time,
with the credential of the request that needs it; its summary serves that tenant only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

import orjson

from gateway.cache.key import document_owner
from gateway.prompts.compress.history import (
    Cut,
    can_be_checked,
    cut_of,
    is_short,
    keeps_facts,
    request_for,
    tokens_of,
    with_summary,
)
from gateway.prompts.compress.outcome import Compression, Refusal, Step
from gateway.prompts.compress.summaries import Summaries
from gateway.protocol.errors import UpstreamError
from gateway.server.request import Asked
from gateway.upstream.ports import Upstream
from gateway.upstream.request import Outgoing, own_fields
from policies.freshness import parse_directives

log = logging.getLogger(__name__)

SECONDS = 120.0
MOST_AT_A_TIME = 4
_MOST_BYTES = 256 * 2**10
_PATH = "/v1/chat/completions"
_DIGEST_BYTES = 16


@dataclass(slots=True)
class Summariser:
    """Puts summaries in the place of earlier turns, and has them written."""

    secret: bytes = field(repr=False)
    summaries: Summaries = field(default_factory=Summaries)
    _tasks: dict[bytes, asyncio.Task[None]] = field(default_factory=dict)

    def applied(
        self, asked: Asked, body: dict[str, Any], raw: bytes
    ) -> tuple[dict[str, Any], bytes, Compression | None]:
        """Return the request with a summary, if one is known, and what became of its history."""
        settings = asked.decision.compress
        if not settings.enabled or not settings.history:
            return body, raw, None
        cut = cut_of(asked.endpoint, body, settings)
        if cut is None:
            return body, raw, None
        digest = self._digest(asked, cut)
        known = self.summaries.find(digest)
        if known is None:
            self._begin(asked, cut, digest)
            return body, raw, Compression(refused=Refusal.SUMMARY_PENDING)
        if isinstance(known, Refusal):
            return body, raw, Compression(refused=known)
        now, shorter = with_summary(body, raw, cut, known)
        tokens = tokens_of(len(cut.turns))
        return (
            now,
            shorter,
            Compression((Step.SUMMARY,), tokens, tokens - tokens_of(len(known.encode()))),
        )

    async def idle(self) -> None:
        """Wait until the summaries that are being written are written."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Give up what is being written."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _digest(self, asked: Asked, cut: Cut) -> bytes:
        owner = document_owner(self.secret, asked.tenant)
        model = str(asked.body.get("model")).encode("utf-8", "surrogatepass")
        digest = blake2b(len(model).to_bytes(4, "big"), digest_size=_DIGEST_BYTES, key=owner)
        digest.update(model)
        digest.update(cut.turns)
        return digest.digest()

    def _begin(self, asked: Asked, cut: Cut, digest: bytes) -> None:
        stored = not parse_directives(asked.inbound.headers.get("cache-control")).no_store
        if digest in self._tasks or len(self._tasks) >= MOST_AT_A_TIME or not stored:
            return
        work = self._write(
            asked.coalescer.upstream,
            str(asked.body.get("model")),
            tuple(asked.inbound.fields),
            cut,
            digest,
        )
        task = asyncio.create_task(work)
        self._tasks[digest] = task
        task.add_done_callback(lambda _: self._tasks.pop(digest, None))

    async def _write(
        self,
        upstream: Upstream,
        model: str,
        fields: Iterable[tuple[str, str]],
        cut: Cut,
        digest: bytes,
    ) -> None:
        known: str | Refusal = Refusal.SUMMARY_FACTS
        try:
            async with asyncio.timeout(SECONDS):
                if not await asyncio.to_thread(can_be_checked, cut):
                    return
                summary = await _asked(upstream, model, fields, cut)
                known = await asyncio.to_thread(_judged, cut, summary)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no request's
            expected = isinstance(error, UpstreamError | TimeoutError | _NoSummaryError)
            log.log(
                logging.INFO if expected else logging.WARNING,
                "a summary was not written (%s)",
                type(error).__name__,
            )
            known = Refusal.SUMMARY_FAILED
        self.summaries.note(digest, known)


def _judged(cut: Cut, summary: str) -> str | Refusal:
    if not is_short(cut, summary):
        return Refusal.SUMMARY_LONG
    return summary if keeps_facts(cut, summary) else Refusal.SUMMARY_FACTS


class _NoSummaryError(Exception):
    """The upstream answered with something else."""


async def _asked(
    upstream: Upstream, model: str, fields: Iterable[tuple[str, str]], cut: Cut
) -> str:
    outgoing = Outgoing(_PATH, own_fields(fields), request_for(cut, model), model)
    async with upstream.send(outgoing) as reply:
        if reply.status != HTTPStatus.OK:
            raise _NoSummaryError
        read = b""
        async for chunk in reply.chunks():
            read += chunk
            if len(read) > _MOST_BYTES:
                raise _NoSummaryError
    match orjson.loads(read):
        case {"choices": [{"message": {"content": str(content)}, "finish_reason": "stop"}]}:
            return content.strip()
    raise _NoSummaryError
