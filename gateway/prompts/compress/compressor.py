"""Prompts made shorter before they are sent, in bounded time.

Law: where anything fails, the request goes on as it was, with the reason. No request waits for a
summary: what is not known is begun behind its back, once for the same turns, with the credential of
the request that needs it. Its summary serves that tenant only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from gateway.prompts.compress import history
from gateway.prompts.compress.compress import Compressed, begin
from gateway.prompts.compress.history import Cut, Known, Summaries
from gateway.prompts.compress.relevance import Vector
from gateway.prompts.outcome import Compression, NotRewritten, NotRewrittenError, both
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import UpstreamError
from gateway.semantic.ports import LocalEncoder, SemanticUnavailableError
from policies.decision import Decision, Endpoint

log = logging.getLogger(__name__)

INLINE_BYTES = 4096  # longer bodies are compressed in a thread; these take a millisecond or two
SUMMARY_SECONDS = 120.0
MOST_AT_A_TIME = 4  # summaries that are being written
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Compressor:
    """Compresses the declared context of requests as their rules say."""

    encoder: LocalEncoder | None = None
    seconds: float = 1.0

    async def compressed(
        self, endpoint: Endpoint, decision: Decision, came: Compressed
    ) -> Compressed:
        """Return the request as it is sent, and what became of its context, if it declares some."""
        settings = decision.compress
        if settings.documents is None:
            settings = replace(settings, documents=decision.prefix.documents)
        declares = settings.enabled and (settings.markers or settings.tool_results)
        if not declares or SPECS[endpoint].turns is None:
            return came
        inline = len(came.raw) <= INLINE_BYTES
        try:
            async with asyncio.timeout(self.seconds):
                work = (endpoint, came.body, came.raw, settings)
                begun = begin(*work) if inline else await asyncio.to_thread(begin, *work)
                if begun is None:
                    return came
                given = await self._embedded(begun.texts)
                ended = begun.next(given) if inline else await asyncio.to_thread(begun.next, given)
                return ended._replace(told=both(came.told, ended.told))
        except NotRewrittenError as error:
            why = error.why
        except TimeoutError:
            why = NotRewritten.TIMEOUT
        except SemanticUnavailableError as error:
            why = NotRewritten.TIMEOUT if error.reason == "timeout" else NotRewritten.NO_ENCODER
        except Exception as error:  # noqa: BLE001 - whatever it is, the request can go on as it was
            # Its message may quote the prompt, so only its type is told.
            log.warning("a prompt could not be compressed (%s)", type(error).__name__)
            why = NotRewritten.FAULT
        return came._replace(told=both(came.told, Compression(refused=why)))

    async def _embedded(self, texts: tuple[str, ...]) -> Sequence[Vector]:
        if texts and self.encoder is None:
            raise NotRewrittenError(NotRewritten.NO_ENCODER)
        return await self.encoder.embed(texts) if texts and self.encoder else ()


Ask = Callable[[bytes, str], Awaitable[str | None]]
"""Asks a model by a chat request; None where it does not say all that it had to say."""


@dataclass(slots=True)
class Summariser:
    """Puts summaries in the place of earlier turns, and has them written."""

    summaries: Summaries = field(default_factory=Summaries)
    _tasks: dict[bytes, asyncio.Task[None]] = field(default_factory=dict)

    def applied(
        self, endpoint: Endpoint, came: Compressed, least: int, owner: bytes, ask: Ask | None
    ) -> Compressed:
        """Return the request with a summary, if one is known, and what became of its history.

        At ``least`` so many user turns stay. The ``owner`` keeps the summaries of a tenant apart
        from those of others. Without ``ask`` none is written.
        """
        cut = history.cut_of(endpoint, came.body, least)
        if cut is None:
            return came
        model = str(came.body.get("model"))
        digest = _digest(cut, model, owner)
        known = self.summaries.find(digest)
        if known is None:
            if ask and digest not in self._tasks and len(self._tasks) < MOST_AT_A_TIME:
                task = asyncio.create_task(self._write(cut, model, ask, digest))
                self._tasks[digest] = task
                task.add_done_callback(lambda _: self._tasks.pop(digest, None))
            known = NotRewritten.SUMMARY_PENDING
        if isinstance(known, NotRewritten):
            return came._replace(told=Compression(refused=known))
        return history.with_summary(came.body, came.raw, cut, known)

    async def close(self) -> None:
        """Give up what is being written."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, cut: Cut, model: str, ask: Ask, digest: bytes) -> None:
        known: Known = NotRewritten.SUMMARY_FACTS
        try:
            async with asyncio.timeout(SUMMARY_SECONDS):
                if await asyncio.to_thread(history.can_be_checked, cut):
                    said = await ask(history.request_for(cut, model), model)
                    if said is None:
                        log.info("a summary was not written (no whole answer)")
                        known = NotRewritten.SUMMARY_FAILED
                    else:
                        known = await asyncio.to_thread(history.judged, cut, said.strip())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no request's
            expected = isinstance(error, UpstreamError | TimeoutError)
            level = logging.INFO if expected else logging.WARNING
            log.log(level, "a summary was not written (%s)", type(error).__name__)
            known = NotRewritten.SUMMARY_FAILED
        self.summaries.note(digest, known)


def _digest(cut: Cut, model: str, owner: bytes) -> bytes:
    named = model.encode("utf-8", "surrogatepass")
    whole = len(named).to_bytes(4, "big") + named + cut.turns
    return blake2b(whole, digest_size=_DIGEST_BYTES, key=owner).digest()
