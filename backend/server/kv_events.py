"""GET /kv_events: what the prefix cache can find, for a router that knows where a prompt hits.

Server-sent events. The first ones are a snapshot, or, where ``Last-Event-ID`` is recent enough,
the changes since then; then changes as they come. A reader that is slower than the cache gets a
snapshot again and holds nobody up. Digests only: no text and no tokens.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence

import orjson
from aiohttp import web

from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.cache_events import (
    BlockRemoved,
    Blocks,
    BlocksStored,
    CacheFeed,
    Change,
    Cleared,
    EventBatch,
    Numbered,
    parts,
)
from backend.server.protocol.errors import ApiError
from backend.server.replies import EventStream

MOST_READERS = 32
BEAT_SECONDS = 15.0
"""A comment is sent after so long a silence, so that a connection that died is found."""

_MOST_CHANGES = 16_384
_BLOCKS_A_PART = 1_024
_MEDIUM = "GPU"
"""What vLLM calls the pool that steps read, on whatever device; tiers behind it are not told of."""
_MOST_DIGITS = 20  # Python refuses to read a number of thousands


class KvEvents:
    """The feed and its readers; owned by the event loop, ``publish`` is for any thread."""

    def __init__(self, *, limit: int = _MOST_CHANGES, beat_seconds: float = BEAT_SECONDS) -> None:
        """Keep ``limit`` changes for readers that come back."""
        self.fingerprint: Callable[[], bytes] = bytes
        """Identifies the model's KV; read for each snapshot."""
        self.adapter_names: Sequence[str] = ()
        """Of LoRA adapters; the first is adapter 1."""
        self.adapters: Callable[[], Sequence[bytes]] = tuple
        """Identify their KV."""
        self._loop: asyncio.AbstractEventLoop | None = None
        # Numbers begin anew with each server, and a reader may come back to another one.
        self._epoch = secrets.token_hex(4)
        self._feed = CacheFeed(limit)
        self._beat_seconds = beat_seconds
        self._news = asyncio.Event()
        self._num_readers = 0
        self._closed = False

    def open(self) -> None:
        """Belong to the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def publish(self, batches: Sequence[EventBatch]) -> None:
        """Have ``apply`` called on the loop; after its end nothing happens."""
        if self._loop is None:
            raise RuntimeError("the feed is not open")
        try:
            self._loop.call_soon_threadsafe(self.apply, batches)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def apply(self, batches: Iterable[EventBatch]) -> None:
        before = self._feed.sequence
        for batch in batches:
            self._feed.apply(batch)
        if self._feed.sequence != before:
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if self._num_readers >= MOST_READERS:
            raise ApiError(
                429,
                f"Too many readers: {MOST_READERS} follow already.",
                code="too_many_readers",
                headers={"Retry-After": "5"},
            )
        self._num_readers += 1
        try:
            response = EventStream()
            await response.prepare(request)
            await self._follow(response, self._position(request.headers.get("Last-Event-ID")))
            await response.write_eof()
        finally:
            self._num_readers -= 1
        return response

    async def _follow(self, response: EventStream, position: int | None) -> None:
        while not self._closed:
            changes = None if position is None else self._feed.since(position)
            if changes is None:
                position = self._feed.sequence
                for written in self._written_snapshot(position, self._feed.snapshot()):
                    await response.write(written)
            elif changes:
                await response.write(b"".join(map(self._written, changes)))
                position = changes[-1].sequence
            else:
                await self._wait(response)

    async def _wait(self, response: EventStream) -> None:
        news = self._news
        try:
            async with asyncio.timeout(self._beat_seconds):
                await news.wait()
        except TimeoutError:
            await response.write(b": no news\n\n")

    def _position(self, last_event_id: str | None) -> int | None:
        """Return the number that a reader has seen; None when it is not of this server."""
        epoch, _, number = (last_event_id or "").partition("-")
        is_ours = epoch == self._epoch and number.isascii() and number.isdigit()
        return int(number) if is_ours and len(number) <= _MOST_DIGITS else None

    def _wake(self) -> None:
        # Who waits holds the old event; who comes later waits for the new one.
        self._news.set()
        self._news = asyncio.Event()

    def _written_snapshot(self, sequence: int, blocks: Blocks) -> Iterable[bytes]:
        left = len(blocks)
        for part in parts(blocks, _BLOCKS_A_PART):
            left -= len(part)
            data: dict[str, object] = {
                "sequence": sequence,
                "fingerprint": hashlib.sha256(self.fingerprint()).hexdigest(),
                "block_size": BLOCK_SIZE,
                "blocks": [[digest.hex(), parent.hex()] for digest, parent in part],
                "more": left > 0,
            }
            if self.adapter_names:
                own = [hashlib.sha256(each).hexdigest() for each in self.adapters()]
                data["adapters"] = dict(zip(self.adapter_names, own, strict=False))
            # Only the last part has an id: who loses the connection before it begins again.
            yield _event("snapshot", data, "" if left else self._id(sequence))

    def _written(self, numbered: Numbered) -> bytes:
        kind, data = _describe(numbered.change, self.adapter_names)
        return _event(kind, {"sequence": numbered.sequence} | data, self._id(numbered.sequence))

    def _id(self, sequence: int) -> str:
        return f"{self._epoch}-{sequence}"


def _describe(change: Change, adapter_names: Sequence[str]) -> tuple[str, dict[str, object]]:
    match change:
        case BlocksStored(parent, digests, _, adapter):
            blocks = [digest.hex() for digest in digests]
            data: dict[str, object] = {"parent": parent.hex(), "blocks": blocks, "medium": _MEDIUM}
            if adapter:
                # As vLLM calls them.
                data |= {"lora_id": adapter, "lora_name": adapter_names[adapter - 1]}
            return "stored", data
        case BlockRemoved(digest):
            return "removed", {"block": digest.hex(), "medium": _MEDIUM}
        case Cleared():
            return "cleared", {}


def _event(kind: str, data: dict[str, object], event_id: str) -> bytes:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"
