"""The embeddings package behind the gateway's ports: index, local encoder, verifier.

Part of the composition root, which alone may know both packages.
"""

import asyncio
import logging
from collections.abc import Sequence

from embeddings.client import EmbeddingsClient, EmbeddingsUnavailable
from embeddings.verify.agreement import agree
from gateway.core.verification import Verification
from gateway.ports import Candidate, SemanticUnavailableError

log = logging.getLogger(__name__)

VERIFY_SECONDS = 1.0


class SemanticService:
    """The embeddings process as the gateway's semantic index and local encoder."""

    def __init__(self, client: EmbeddingsClient) -> None:
        self._client = client
        self.name = ""
        self.digest = ""
        self._index = self._fault = ""

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Candidate]:
        """See the port."""
        try:
            matches = await self._client.search(partition, text, k)
        except EmbeddingsUnavailable as error:
            raise SemanticUnavailableError(error.reason) from error
        return [Candidate(match.key, match.similarity) for match in matches]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        """See the port."""
        try:
            await self._client.add(partition, key, text, expires_at)
        except EmbeddingsUnavailable as error:
            raise SemanticUnavailableError(error.reason) from error

    async def remove(self, keys: Sequence[bytes]) -> None:
        """See the port."""
        try:
            await self._client.remove(keys)
        except EmbeddingsUnavailable as error:
            raise SemanticUnavailableError(error.reason) from error

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See the port."""
        try:
            return await self._client.embed(texts)
        except EmbeddingsUnavailable as error:
            raise SemanticUnavailableError(error.reason) from error

    async def not_ready(self) -> str | None:
        """Check whether the encoder is loaded and warm."""
        try:
            status = await self._client.status()
        except EmbeddingsUnavailable as error:
            return f"encoder: {error.reason}"
        if not status.ready:
            return "encoder: loading"
        self.name, self.digest = status.encoder, status.digest
        self._index, self._fault = status.index, status.fault
        return None

    def details(self) -> dict[str, str]:
        """Return where the vectors are, and why they are not searched at present."""
        return {"index": self._index, **({"fault": self._fault} if self._fault else {})}

    async def learn(self, period: float) -> None:
        """Ask until the encoder is known: nobody need ask this worker whether it is ready."""
        while await self.not_ready() is not None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(period)

    async def close(self) -> None:
        """Give the connection up."""
        await self._client.close()


class AgreementVerifier:
    """The rules of ``embeddings.verify`` as the gateway's verifier.

    Two short questions take some 0.3 ms; longer ones leave the loop.
    """

    INLINE_CHARACTERS = 400

    async def verify(self, asked: str, stored: str) -> Verification:
        """See the port."""
        refusal = await self._refusal(asked, stored)
        return Verification(1.0 if refusal is None else 0.0, refusal)

    def threshold(self, max_wrong_hits: float) -> float | None:
        """See the port."""
        return 1.0 if max_wrong_hits > 0 else None

    async def _refusal(self, asked: str, stored: str) -> str | None:
        try:
            if len(asked) + len(stored) <= self.INLINE_CHARACTERS:
                return agree(asked, stored)
            async with asyncio.timeout(VERIFY_SECONDS):
                return await asyncio.to_thread(agree, asked, stored)
        except Exception as error:  # noqa: BLE001 - fail to miss, whatever it is
            log.warning("verification failed (%s): a miss", type(error).__name__)
            return "fault"
