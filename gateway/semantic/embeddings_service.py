"""The embeddings process as the gateway's semantic index, local encoder and scorer of pairs."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from embeddings.client import EmbeddingsClient, EmbeddingsUnavailable
from gateway.semantic.ports import Candidate, SemanticUnavailableError


class SemanticService:
    """Implements ``SemanticIndex``, ``LocalEncoder`` and ``Scorer`` over one socket."""

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
        with _faults():
            matches = await self._client.search(partition, text, k)
        return [Candidate(match.key, match.similarity) for match in matches]

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        with _faults():
            await self._client.add(partition, key, text, expires_at)

    async def remove(self, keys: Sequence[bytes]) -> None:
        with _faults():
            await self._client.remove(keys)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        with _faults():
            return await self._client.embed(texts)

    async def score(self, asked: str, stored: str) -> float:
        with _faults():
            (score,) = await self._client.score([(asked, stored)])
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
        """Ask until the encoder is known: no readiness check may ever come to this worker."""
        while await self.not_ready() is not None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(period)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except EmbeddingsUnavailable as error:
        raise SemanticUnavailableError(error.reason) from error
