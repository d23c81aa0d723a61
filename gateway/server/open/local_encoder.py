"""The installation's own encoder as an upstream: ``POST /v1/embeddings`` answered in this process.

Law: it answers in OpenAI's form, so that later steps (admission, storing, rendering) handle one
kind of answer only. It counts no tokens, since they cost nothing.
"""

import base64
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.protocol.endpoints.embeddings import items_of
from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.ports import LocalEncoder, SemanticUnavailableError
from gateway.upstream.request import Outgoing, Served
from gateway.upstream.sharing.coalescer import Coalescer

_REFUSALS = {
    "text-too-long": "An input is longer than this model reads.",
    "empty-text": "An input has nothing to embed.",
}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The installation's own encoder, as the upstream of requests that name it.

    ``coalescer`` has a ``LocalUpstream``; answers are stored as any others.
    """

    encoder: LocalEncoder
    coalescer: Coalescer

    def serves(self, model: str) -> bool:
        """Tell whether embeddings by this model are for this encoder.

        It is named with or without its maker, and has no name until it is loaded.
        """
        name = self.encoder.name
        return bool(name) and model in (name, f"sentence-transformers/{name}")


class LocalUpstream:
    """The encoder as an ``Upstream``."""

    def __init__(self, encoder: LocalEncoder) -> None:
        self._encoder = encoder

    @property
    def name(self) -> str:
        """The encoder's part of cache keys: vectors of another encoder are of no use."""
        return f"local:{self._encoder.digest}"

    @asynccontextmanager
    async def send(self, outgoing: Outgoing) -> AsyncIterator["LocalReply"]:
        served = Served(self.name, passes_credentials=False)
        try:
            reply = LocalReply(200, await self._answer(orjson.loads(outgoing.raw)), served)
        except ClientError as error:
            reply = LocalReply(error.status, error.body(), served)
        yield reply

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [item for item in items_of(body) if isinstance(item, str)]
        if len(texts) < len(items_of(body)):
            raise _refusal("This model reads text; it does not know these tokens.", "input")
        if body.get("encoding_format") not in (None, "float", "base64"):
            raise _refusal("'encoding_format' must be 'float' or 'base64'.", "encoding_format")
        try:
            vectors = await self._encoder.embed(texts)
        except SemanticUnavailableError as error:
            if (refusal := _REFUSALS.get(error.reason)) is not None:
                raise _refusal(refusal, "input") from error
            message = f"The local encoder could not answer: {error.reason}."
            raise UpstreamError(503, message, Reason.UPSTREAM_UNREACHABLE) from error
        if body.get("dimensions") not in (None, len(vectors[0])):
            raise _refusal("This model does not support specifying dimensions.", "dimensions")
        encode = _base64 if body.get("encoding_format") == "base64" else list
        data = [
            {"object": "embedding", "index": place, "embedding": encode(vector)}
            for place, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return {"object": "list", "data": data, "model": body["model"], "usage": usage}


class LocalReply:
    """The encoder's answer as an ``UpstreamReply``."""

    content_type = "application/json"
    headers = (("Content-Type", "application/json"),)

    def __init__(self, status: int, body: dict[str, Any], served: Served) -> None:
        self.status = status
        self.served = served
        self._rest = orjson.dumps(body)

    async def read(self) -> bytes:
        piece, self._rest = self._rest, b""
        return piece


def _refusal(message: str, param: str) -> ClientError:
    return ClientError(400, message, param=param)


def _base64(vector: Sequence[float]) -> str:
    """Return the vector as OpenAI packs it: 32-bit floats, little endian."""
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
