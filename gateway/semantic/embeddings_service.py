"""The embeddings package behind the gateway's ports: index, local encoder, scores of pairs.

Part of the composition root, which alone may know both packages.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from embeddings.client import EmbeddingsClient, EmbeddingsUnavailable
from gateway.semantic.ports import Candidate, SemanticUnavailableError


class SemanticService:
    """The embeddings process as the gateway's semantic index and local encoder."""

    def __init__(self, client: EmbeddingsClient) -> None:
        self._client = client
        self.name = ""
        self.digest = ""
        self.verifier: str | None = None
        self.verifier_fault = ""
        self._index = self._fault = ""

    @classmethod
    def at(cls, socket: Path, *, timeout: float) -> "SemanticService":
        """Return the service that listens there; nothing is connected yet."""
        return cls(EmbeddingsClient(socket, timeout=timeout))

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

    async def score(self, asked: str, stored: str) -> float:
        """See ``gateway.semantic.verifier.Scorer``."""
        try:
            (score,) = await self._client.score([(asked, stored)])
        except EmbeddingsUnavailable as error:
            raise SemanticUnavailableError(error.reason) from error
        self.verifier = self._client.verifier_digest
        return score

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
        self.verifier, self.verifier_fault = status.verifier_digest, status.verifier_fault
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
