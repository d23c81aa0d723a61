"""Vectors in Qdrant, shared by all installations that name it: one collection for each encoder.

Laws: every search is filtered by partition, encoder and expiry, and what comes back is checked
against all three; an acknowledged add is found by whoever searches next; time is an argument; no
key, vector or error body reaches the log. Calls are bounded by `breaker.py`, not here.

A collection's name says encoder and dimensions, so vectors of two encoders never meet. Points are
known by a hash of their key: adding a key again replaces it wherever it was. The bound holds after
a sweep, since to count before each add would cost a round trip.
"""

import hashlib
import logging
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from embeddings.encoder.encoder import Vector
from embeddings.index.breaker import GuardedIndex
from embeddings.index.vector_index import IndexLostError, VectorIndexError, require_vector
from embeddings.messages import Match, Reason
from embeddings.settings import QdrantSettings

# What is never to expire needs a number that JSON has.
_FOR_EVER: Final = 1e300
# A page of the oldest points to drop; their ids go back and forth.
_EVICTED_AT_A_TIME: Final = 1000
# The longest wait of the HTTP client itself, for what nobody bounds more tightly.
_CLIENT_SECONDS: Final = 10
_LIMITS: Final = httpx.Limits(
    max_connections=64, max_keepalive_connections=64, keepalive_expiry=300.0
)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_log = logging.getLogger(__name__)


def connect(settings: QdrantSettings) -> AsyncQdrantClient:
    """Return a client; nothing is sent yet."""
    url = urlsplit(settings.url)
    if settings.api_key is not None and url.scheme == "http" and url.hostname not in _LOOPBACK:
        _log.warning("the API key of Qdrant goes over the network in clear text: use https")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
        return AsyncQdrantClient(
            url=settings.url,
            # Where a URL names no port its scheme's own holds, not the client's 6333.
            port=443 if url.scheme == "https" else 80,
            api_key=settings.api_key,
            timeout=_CLIENT_SECONDS,
            check_compatibility=False,
            limits=_LIMITS,
            trust_env=False,
        )


async def open_qdrant(
    settings: QdrantSettings, *, encoder_digest: str, dimensions: int, max_vectors: int
) -> GuardedIndex:
    """Return the index behind its guard, whether Qdrant answers by now or not."""
    index = QdrantIndex(
        connect(settings),
        encoder_digest=encoder_digest,
        dimensions=dimensions,
        max_vectors=max_vectors,
    )
    guarded = GuardedIndex(index, dimensions=dimensions, seconds=settings.seconds)
    await guarded.start()
    return guarded


class QdrantIndex:
    """See the port. `prepare` must have returned once before it is of use."""

    name = "qdrant"
    fault = None

    def __init__(
        self,
        client: AsyncQdrantClient,
        *,
        encoder_digest: str,
        dimensions: int,
        max_vectors: int,
        prefix: str = "refrain",
    ) -> None:
        self._client = client
        self._encoder = encoder_digest
        self._dimensions = dimensions
        self._max_vectors = max_vectors
        self.collection = f"{prefix}-{encoder_digest[:16]}-{dimensions}"
        self.size = 0

    async def prepare(self) -> None:
        """Make sure of collection and payload indexes. Raises VectorIndexError."""
        with _told():
            if not await self._client.collection_exists(self.collection):
                await self._create()
            info = await self._client.get_collection(self.collection)
        vectors = info.config.params.vectors
        if (
            not isinstance(vectors, models.VectorParams)
            or vectors.size != self._dimensions
            or vectors.distance != models.Distance.COSINE
        ):
            raise IndexLostError(
                Reason.INDEX_ERROR, f"the collection {self.collection} is not one of ours"
            )
        with _told():
            for name, schema in _PAYLOAD_INDEXES.items():
                if name not in info.payload_schema:
                    await self._client.create_payload_index(self.collection, name, schema)
            self.size = (await self._client.count(self.collection, exact=True)).count

    async def search(self, partition: bytes, vector: Vector, k: int, now: float) -> list[Match]:
        if k < 1:
            return []
        with _told():
            found = await self._client.query_points(
                self.collection,
                query=vector.tolist(),
                query_filter=models.Filter(
                    must=[
                        _equals("partition", partition.hex()),
                        _equals("encoder", self._encoder),
                        models.FieldCondition(key="expires_at", range=models.Range(gt=now)),
                    ]
                ),
                limit=k,
                with_payload=True,
            )
        return [match for point in found.points if (match := self._match(point, partition, now))]

    async def add(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> None:
        require_vector(vector, self._dimensions, expires_at)
        point = self.point(partition, key, vector, expires_at, now)
        with _told():
            await self._client.upsert(self.collection, [point], wait=True)

    def point(
        self, partition: bytes, key: bytes, vector: Vector, expires_at: float, now: float
    ) -> models.PointStruct:
        """Return what is stored of a vector."""
        return models.PointStruct(
            id=_point_id(key),
            vector=vector.tolist(),
            payload={
                "partition": partition.hex(),
                "encoder": self._encoder,
                "key": key.hex(),
                "expires_at": min(max(expires_at, -_FOR_EVER), _FOR_EVER),
                "added_at": now,
            },
        )

    async def remove(self, keys: Sequence[bytes]) -> None:
        if keys:
            with _told():
                await self._client.delete(
                    self.collection,
                    models.PointIdsList(points=[_point_id(key) for key in keys]),
                    wait=True,
                )

    async def sweep(self, now: float) -> None:
        # Several installations may sweep one collection at a time.
        expired = models.FieldCondition(key="expires_at", range=models.Range(lte=now))
        with _told():
            await self._delete_where(expired)
            self.size = (await self._client.count(self.collection, exact=True)).count
            while self.size > self._max_vectors:
                await self._evict(min(self.size - self._max_vectors, _EVICTED_AT_A_TIME))
                self.size = (await self._client.count(self.collection, exact=True)).count

    async def close(self) -> None:
        await self._client.close()

    async def _create(self) -> None:
        try:
            await self._client.create_collection(
                self.collection,
                vectors_config=models.VectorParams(
                    size=self._dimensions, distance=models.Distance.COSINE
                ),
                # Every search stays within a partition: no graph across them is of use.
                hnsw_config=models.HnswConfigDiff(m=0, payload_m=16),
            )
        except UnexpectedResponse as error:
            if error.status_code != HTTPStatus.CONFLICT:  # then another installation was first
                raise

    async def _evict(self, count: int) -> None:
        oldest, _ = await self._client.scroll(
            self.collection,
            limit=count,
            order_by=models.OrderBy(key="added_at", direction=models.Direction.ASC),
            with_payload=["added_at"],
        )
        if not oldest:
            return
        latest = max((point.payload or {}).get("added_at", 0.0) for point in oldest)
        # By age, too: what was replaced meanwhile is young and stays.
        await self._delete_where(
            models.HasIdCondition(has_id=[point.id for point in oldest]),
            models.FieldCondition(key="added_at", range=models.Range(lte=latest)),
        )

    async def _delete_where(self, *conditions: models.Condition) -> None:
        await self._client.delete(
            self.collection,
            models.FilterSelector(filter=models.Filter(must=list(conditions))),
            wait=True,
        )

    def _match(self, point: models.ScoredPoint, partition: bytes, now: float) -> Match | None:
        """Return the match, or None for a point that no search of ours may return."""
        payload = point.payload or {}
        expires_at = payload.get("expires_at")
        if (
            payload.get("partition") != partition.hex()
            or payload.get("encoder") != self._encoder
            or not isinstance(expires_at, int | float)
            or expires_at <= now
        ):
            return None
        try:
            key = bytes.fromhex(payload["key"])
        except (KeyError, TypeError, ValueError):
            return None
        return Match(key, max(-1.0, min(1.0, point.score)))


_PAYLOAD_INDEXES: Final[dict[str, Any]] = {
    "partition": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    "encoder": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD),
    "expires_at": models.FloatIndexParams(type=models.FloatIndexType.FLOAT),
    "added_at": models.FloatIndexParams(type=models.FloatIndexType.FLOAT),
}


def _equals(name: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def _point_id(key: bytes) -> str:
    return str(uuid.UUID(bytes=hashlib.sha256(key).digest()[:16]))


@contextmanager
def _told() -> Iterator[None]:
    """Tell the client's exceptions in the port's words, without what a reply's body may quote."""
    try:
        yield
    except UnexpectedResponse as error:
        gone = error.status_code == HTTPStatus.NOT_FOUND
        kind = IndexLostError if gone else VectorIndexError
        raise kind(Reason.INDEX_ERROR, f"Qdrant answered with {error.status_code}") from None
    except ResponseHandlingException as error:
        what = type(error.source).__name__
        if isinstance(error.source, httpx.TransportError):
            raise IndexLostError(
                Reason.INDEX_UNAVAILABLE, f"no answer from Qdrant: {what}"
            ) from None
        raise VectorIndexError(Reason.INDEX_ERROR, f"no answer of Qdrant's: {what}") from None
    except (QdrantException, ValueError, AssertionError) as error:
        raise VectorIndexError(Reason.INDEX_ERROR, type(error).__name__) from None
