"""The coalescer alone: real parts behind it, and a test-controlled upstream before it."""

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import orjson
from gated_upstream import GatedUpstream, pooled

from gateway.app import default_policy
from gateway.cache.key import identify
from gateway.cache.lookup import Forward
from gateway.cache.pii_scan import Scans
from gateway.cache.plan import Plan, plan_request
from gateway.cache.ports import Entry
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.protocol.request import read_request
from gateway.server.open.policy_file import PolicyFile
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.request import Exchange
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint
from policies.freshness import parse_directives


@dataclasses.dataclass
class Got:
    """A reply read to its end."""

    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    seen: Observation

    @property
    def raw(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        """The whole body, parsed."""
        return orjson.loads(self.raw)

    @property
    def cache(self) -> str:
        """The Cache-Status header."""
        return self.headers["Cache-Status"]


class GatedStore(MemoryStore):
    """A store whose writes wait while ``open`` is clear."""

    def __init__(self) -> None:
        super().__init__(max_bytes=2**24)
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()
        self.stored = asyncio.Event()

    async def put(self, entry: Entry) -> None:
        """Store once the gate is open."""
        self.waiting.set()
        await self.open.wait()
        await super().put(entry)
        self.stored.set()


class Rig:
    """A coalescer with a memory store, whose observations the test may wait for."""

    def __init__(self, data_dir: Path, *, max_answer_bytes: int = 2**20) -> None:
        self.upstream = GatedUpstream()
        self.store = GatedStore()
        self.active = PolicyFile(default_policy()).active
        quarantine = QuarantineFile(data_dir / "quarantine.jsonl")
        writer = CacheWriter(self.store, None, Scans(), time.time, quarantine)
        self.coalescer = Coalescer(AnsweredCall(pooled(self.upstream), writer, max_answer_bytes))
        self._finished: asyncio.Queue[Observation] = asyncio.Queue()

    async def next_finished(self) -> Observation:
        """Wait for the next request or refresh that has ended."""
        async with asyncio.timeout(60):
            return await self._finished.get()

    async def read(self, exchange: Exchange) -> Got:
        """Forward a request and read all of the reply."""
        try:
            reply, status, _ = await self.coalescer.forward(exchange)
            reason = Reason.COLLAPSED if status.collapsed else status.reason
            exchange.observation.end("miss", reason, reply.status)
            headers = dict(reply.headers)
            if isinstance(reply.body, bytes):
                return Got(reply.status, headers, [reply.body], exchange.observation)
            with contextlib.closing(reply):
                pieces = [piece async for piece in reply.body]
            return Got(reply.status, headers, pieces, exchange.observation)
        finally:
            exchange.observation.finish()

    async def ask(self, *args: Any, **options: Any) -> "asyncio.Task[Got]":
        """Begin to read, as ``exchange`` says, and return once the request has joined a call."""
        asked = asyncio.create_task(self.read(self.exchange(*args, **options)))
        await asyncio.sleep(0)  # a request joins before it first waits
        return asked

    def refresh(self, exchange: Exchange) -> bool:
        """Begin a refresh of which nothing has to be prepared."""

        async def ready() -> Exchange:
            return exchange

        return self.coalescer.refresh(exchange, ready)

    def exchange(
        self,
        content: str = "hi",
        *,
        headers: dict[str, str] | None = None,
        decision: dict[str, Any] | None = None,
        status: ForwardStatus | None = None,
        **fields: Any,
    ) -> Exchange:
        """Return a chat request on its way; ``decision`` holds changes of the policy's default."""
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        plan = self.plan(body, headers or {}, decision or {})
        state = (
            Forward(status or ForwardStatus(Forwarded.MISS), plan)
            if isinstance(plan, Plan)
            else Forward(ForwardStatus(Forwarded.BYPASS, plan), None)
        )
        named = headers or {}
        lines = tuple(named.items())
        request = read_request(Endpoint.CHAT, orjson.dumps(body), headers=named, fields=lines)
        sinks = (self._finished.put_nowait,)
        seen = Observation(Endpoint.CHAT.value, time.perf_counter(), time.perf_counter, sinks)
        return Exchange(request, state, self.active.scanner, seen)

    def plan(
        self, body: dict[str, Any], headers: dict[str, str], changes: dict[str, Any]
    ) -> Plan | Reason:
        """Plan a request under the default policy, changed."""
        return plan_request(
            body,
            endpoint=Endpoint.CHAT,
            upstream=self.upstream.name,
            query="",
            tenant=identify(headers),
            secret=bytes(32),
            decision=dataclasses.replace(self.active.policy.default, **changes),
            pii_identity="",
            directives=parse_directives(headers.get("cache-control")),
        )
