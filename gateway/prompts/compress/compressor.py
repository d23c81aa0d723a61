"""Declared context made shorter before a request is sent, in bounded time.

Law: it is all or nothing. Where a vector is missing, the time is over or anything fails, the
request goes on as it was, with the reason; no other request ever waits for it.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

from gateway.prompts.compress.outcome import Compression, Refusal, RefusedError
from gateway.prompts.compress.plan import Compressed, applies, begin
from gateway.protocol.endpoint import Endpoint
from gateway.semantic.ports import LocalEncoder, SemanticUnavailableError
from policies.decision import Decision

log = logging.getLogger(__name__)

INLINE_BYTES = 4096
"""Longer bodies are compressed in a thread. What is within takes one or two milliseconds."""


@dataclass(frozen=True, slots=True)
class Compressor:
    """Compresses requests as their rules say."""

    encoder: LocalEncoder | None = None
    seconds: float = 1.0

    async def compressed(
        self, endpoint: Endpoint, decision: Decision, body: dict[str, Any], raw: bytes
    ) -> Compressed | Compression | None:
        """Return the request as it is sent, or why it is sent as it was, if it declares context."""
        settings = decision.compress
        if settings.documents is None:
            settings = replace(settings, documents=decision.prefix.documents)
        if not applies(endpoint, settings):
            return None
        inline = len(raw) <= INLINE_BYTES
        try:
            async with asyncio.timeout(self.seconds):
                work = (endpoint, body, raw, settings)
                begun = begin(*work) if inline else await asyncio.to_thread(begin, *work)
                if begun is None:
                    return None
                vectors = await self._embedded(begun.texts)
                return (
                    begun.next(vectors) if inline else await asyncio.to_thread(begun.next, vectors)
                )
        except RefusedError as error:
            return Compression(refused=error.why)
        except TimeoutError:
            return Compression(refused=Refusal.TIMEOUT)
        except SemanticUnavailableError as error:
            timed_out = error.reason == Refusal.TIMEOUT.value
            return Compression(refused=Refusal.TIMEOUT if timed_out else Refusal.NO_ENCODER)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request can go on as it was
            # Its message may quote the prompt, so only its type is told.
            log.warning("a prompt could not be compressed (%s)", type(error).__name__)
            return Compression(refused=Refusal.FAULT)

    async def _embedded(self, texts: tuple[str, ...]) -> Any:
        if not texts:
            return ()
        if self.encoder is None:
            raise RefusedError(Refusal.NO_ENCODER)
        return await self.encoder.embed(texts)
