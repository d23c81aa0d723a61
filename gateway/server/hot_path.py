"""Plain requests, read here and not by the server's parser; repeated ones are answered at once.

A request is plain if its end is sure and nothing about it is unusual: a POST to a cached endpoint,
complete within a second. The pipeline gets it whole, without the server's request object. Law: in
doubt, a request goes through the server's parser, with nothing of it consumed.

The pipeline decides; the hot path only repeats. When the pipeline has answered a request from a
fresh exact entry, the answer is kept here under a digest of the request's bytes. If the same bytes
come again, and nothing has changed that the decision hung on, the answer is written at once.

A digest leaves out the headers that differ between equal requests (``NEUTRAL``). All other bytes of
the head count, credentials and ``Host`` among them.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from email.utils import formatdate
from hashlib import sha256
from typing import NamedTuple

from gateway.cache.lookup import Hit
from gateway.cache.ports import Entry, MemoryTier
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import HitStatus, Reason, hit_fields
from gateway.protocol.http.headers import Fields
from gateway.protocol.http.messages import Reply
from gateway.server.keys.auth import Access
from gateway.server.keys.usage_sync import Gate
from gateway.server.open.policy_file import PolicySource
from gateway.telemetry import request_id
from gateway.telemetry.metrics import HitBatch, Metrics
from gateway.telemetry.observation import Observation
from gateway.telemetry.usage import RepeatedHit, UsageLedger
from policies.decision import Endpoint
from policies.freshness import CLOCK_SKEW
from policies.policy import Policy

MAX_HEAD_BYTES = 8_192
MAX_HEADERS = 100
MAX_BODY_BYTES = 1 << 20
"""Of a plain request, and of an answer that is repeated."""

MAX_HEADS = 4_096
MAX_ANSWERS = 8_192
MAX_RENDERED_BYTES = 16 << 20
"""Bounds of the tables. A plain answer belongs to its entry; only rendered answers take room."""

HOLD_SECONDS = 1.0
"""Time for the rest of a body after its head. After that aiohttp waits for it."""

SWEEP_SECONDS = 1.0
"""Longest time until an answer is forgotten after its entry left the memory tier."""

NEUTRAL = frozenset(
    {"b3", "baggage", "sentry-trace", "traceparent", "tracestate", "uber-trace-id"}
    | {"x-amzn-trace-id", "x-b3-parentspanid", "x-b3-sampled", "x-b3-spanid", "x-b3-traceid"}
    | {"x-cloud-trace-context", "x-correlation-id", "x-datadog-parent-id"}
    | {"x-datadog-sampling-priority", "x-datadog-trace-id", "x-request-id"}
    | {"x-stainless-read-timeout", "x-stainless-retry-count"}
)
"""Headers that differ between a request and its repetition. If a policy rule reads one of them, it
counts nevertheless."""

_UNUSUAL = frozenset({"content-encoding", "expect", "origin", "via"})
"""A request with one of these headers is not plain. A page's reply needs more headers."""

_UNSURE = frozenset({"transfer-encoding", "upgrade"})
"""After one of these headers it is not sure what the bytes behind the head are."""

_HEAD = re.compile(
    rb"(GET|POST) (/[\x21-\x7e]*) HTTP/1\.1((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e]*)*)"
)
"""A head of which every parser reads all bytes alike, without its last empty line."""

_QUERY = re.compile(r"[A-Za-z0-9_.~=&%+-]+")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LENGTH = re.compile(r"[0-9]{1,9}")
_END_OF_HEAD = b"\r\n\r\n"
_ENDPOINTS = {endpoint.value: endpoint for endpoint in Endpoint}


class Head(NamedTuple):
    """The head of a request whose end is sure. ``length`` is the size of its body in bytes.

    Many are kept, so it has nothing of the client's credential but a digest.
    """

    length: int
    endpoint: Endpoint | None = None
    """None where the request is not plain."""
    target: str = ""
    facts: bytes = b""
    """Digest of all that counts in it; empty where its answer is not to be repeated."""
    request_id: bytes = b""
    """The client's own, if it sent one."""


class PlainRequest(NamedTuple):
    """A whole request to ``endpoint``. ``headers`` are by lower-case name; none is repeated."""

    endpoint: Endpoint
    head: Head
    fields: Fields
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Show nothing that the client has sent."""
        return f"PlainRequest({self.endpoint.value}, {len(self.body)} bytes)"


def read_fields(block: bytes) -> Fields:
    """Return the names and values of a head's fields; each line has a colon."""
    _, *lines = block.decode().split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return tuple([(name, value.strip(" \t")) for name, _, value in pairs])


def read_head(block: bytes, neutral: frozenset[str], generation: int) -> Head | None:
    """Read a head without its last empty line; None where it is not sure where its request ends.

    ``generation`` becomes part of the facts.
    """
    read = _HEAD.fullmatch(block)
    if read is None:
        return None
    fields = read_fields(block)
    headers = {name.lower(): value for name, value in fields}
    length = headers.get("content-length", "0")
    if (
        len(fields) > MAX_HEADERS
        or len(headers) < len(fields)  # some parsers refuse, and others join, repeated fields
        or not _UNSURE.isdisjoint(headers)
        or not _LENGTH.fullmatch(length)
    ):
        return None
    method, target = read[1], read[2].decode()
    endpoint = _endpoint_of(target) if method == b"POST" else None
    given_id = headers.get("x-request-id", "")
    if (
        endpoint is None
        or not _UNUSUAL.isdisjoint(headers)
        or headers.get("connection", "keep-alive") != "keep-alive"
        or not _HOST.fullmatch(headers.get("host", ""))
        or (given_id and not _REQUEST_ID.fullmatch(given_id))
    ):
        return Head(int(length))
    facts = b""
    if "cache-control" not in headers:
        kept = [f"{name}:{headers[name]}" for name in headers if name not in neutral]
        facts = sha256("\r\n".join((str(generation), target, *kept)).encode()).digest()
    return Head(int(length), endpoint, target, facts, given_id.encode())


def _endpoint_of(target: str) -> Endpoint | None:
    path, mark, query = target.partition("?")
    return _ENDPOINTS.get(path) if not mark or _QUERY.fullmatch(query) else None


class Answer:
    """A stored answer as it is written, until ``until`` (seconds since the epoch).

    ``labels`` are the endpoint and the rule, for the metrics.
    """

    __slots__ = (
        *("age", "body", "content_type", "entry", "gate", "hits", "labels", "saved", "start"),
        *("ttl", "until"),
    )

    def __init__(
        self,
        labels: tuple[str, str],
        entry: Entry,
        reply: Reply,
        body: bytes,
        until: float,
        *,
        saved: RepeatedHit,
    ) -> None:
        self.entry = entry
        self.labels = (*labels, Reason.EXACT.value)
        self.content_type = reply.headers[0][1]
        self.body = body
        self.until = until
        self.gate: Gate | None = None
        """What each repetition must pass."""
        self.hits: HitBatch | None = None
        """What counts its repetitions, once there is one."""
        self.saved = saved
        """What each repetition saves."""
        self.age = self.ttl = -1
        self.start = b""

    @property
    def rendered_bytes(self) -> int:
        """What its body takes beside the entry's."""
        return 0 if self.body is self.entry.result else len(self.body)

    def head(self, now: float) -> bytes:
        """Return the head up to the request's id; empty once the answer is not fresh."""
        stored_at = self.entry.stored_at
        if stored_at - now > CLOCK_SKEW:
            return b""
        age = max(0.0, now - stored_at)
        ttl = self.until - stored_at - age
        if ttl <= 0:
            return b""
        if int(age) != self.age or int(ttl) != self.ttl:
            self.age, self.ttl = int(age), int(ttl)
            status = HitStatus(Reason.EXACT, self.ttl)
            fields = hit_fields(self.content_type, status, self.age, self.entry.key)
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
            self.start = f"HTTP/1.1 200 OK\r\n{lines}{request_id.HEADER}: ".encode()
        return self.start


class HotPath:
    """The answers that may be repeated, and what they hang on. Used from one event loop.

    Without ``memory`` no answer is repeated. ``server`` is the header that names the server.
    ``stopping`` tells whether clients are to leave.
    """

    def __init__(
        self,
        memory: MemoryTier | None,
        policies: PolicySource,
        access: Access,
        metrics: Metrics,
        usage: UsageLedger,
        *,
        server: str,
        stopping: Callable[[], bool],
        now: Callable[[], float],
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.max_body_bytes = min(max_body_bytes, MAX_BODY_BYTES)
        """Requests with a longer body are not plain."""
        self._memory = memory
        self._policies = policies
        self._access = access
        self._metrics = metrics
        self._usage = usage
        self._stopping = stopping
        self._now = now
        self._server = server
        self._second = -1
        self._end = b""
        self._heads: dict[bytes, Head] = {}
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()
        self._answered: set[bytes] = set()
        self._rendered_bytes = 0
        self._generation = 0
        self._begin_generation()

    def head(self, block: bytes) -> Head | None:
        if self._policies.active is not self._active or self._access.rings != self._rings:
            self._begin_generation()
        digest = sha256(block).digest()
        found = self._heads.get(digest)
        if found is None:
            found = read_head(block, self._neutral, self._generation)
            if found is not None:
                if len(self._heads) >= MAX_HEADS:
                    self._heads.clear()
                self._heads[digest] = found
        return found

    def answer(
        self, head: Head, body: bytes | memoryview, began: float
    ) -> tuple[bytes, bytes] | None:
        """Return head and body of the reply to a repeated request, None for any other.

        ``began`` is when its head came, by ``perf_counter``.
        """
        memory = self._memory
        if memory is None or head.facts not in self._answered:
            return None
        request = _digest(head, body)
        known = self._answers.get(request)
        if known is None or self._stopping():
            return None
        now = self._now()
        start = known.head(now)
        if not start or memory.find(known.entry.key) is not known.entry:
            self._forget(request)
            return None
        if int(now) != self._second:
            self._second = int(now)
            date = formatdate(now, usegmt=True)
            self._end = f"\r\nDate: {date}\r\nServer: {self._server}\r\n\r\n".encode()
        end = self._end
        if known.gate is not None:
            if (more := known.gate(now)) is None:
                return None
            end = more + end
        own_id = head.request_id or request_id.new_id().encode()
        lines = b"%b%b\r\nContent-Length: %d%b" % (start, own_id, len(known.body), end)
        if known.hits is None:
            known.hits = self._metrics.hits(*known.labels)
        known.hits.add(time.perf_counter() - began)
        self._usage.repeated[known.saved] += 1
        return lines, known.body

    def remember(
        self,
        plain: PlainRequest,
        seen: Observation,
        hit: Hit,
        reply: Reply,
        gate: Gate | None = None,
    ) -> None:
        """Keep the reply to a request that hit, if the same request gets it again.

        Each repetition must pass ``gate``, and counts as this one was seen.
        """
        head, body, until = plain.head, reply.body, reply.fresh_until
        if (
            self._memory is None
            or until is None
            or not head.facts
            or not isinstance(body, bytes)
            or len(body) > MAX_BODY_BYTES
        ):
            return
        request = _digest(head, plain.body)
        entry = hit.entry
        saved = RepeatedHit()
        self._usage.remembered.append((saved, seen))
        answer = Answer((entry.endpoint, seen.asked.rule), entry, reply, body, until, saved=saved)
        answer.gate = gate
        self._forget(request)
        while len(self._answers) >= MAX_ANSWERS or self._rendered_bytes > MAX_RENDERED_BYTES:
            self._forget(next(iter(self._answers)))
        if len(self._answered) >= MAX_HEADS:
            self._answered.clear()
        self._answers[request] = answer
        self._answered.add(head.facts)
        self._rendered_bytes += answer.rendered_bytes

    def sweep(self) -> None:
        """Forget the answers of entries that left the memory tier."""
        for request, answer in list(self._answers.items()):
            entry = answer.entry
            if self._memory is None or self._memory.find(entry.key, touch=False) is not entry:
                self._forget(request)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def _forget(self, request: bytes) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None:
            self._rendered_bytes -= answer.rendered_bytes

    def _begin_generation(self) -> None:
        """Forget all that an earlier policy or an earlier list of keys has decided."""
        self._active, self._rings = self._policies.active, self._access.rings
        keyed = {name for spec in SPECS.values() for name in spec.keyed_headers}
        self._neutral = NEUTRAL - keyed - _headers_read(self._active.policy) | {"content-length"}
        self._generation += 1
        self._heads.clear()
        self._answers.clear()
        self._answered.clear()
        self._rendered_bytes = 0


def _digest(head: Head, body: bytes | memoryview) -> bytes:
    digest = sha256(head.facts)
    digest.update(body)
    return digest.digest()


def _headers_read(policy: Policy) -> frozenset[str]:
    keys = (condition.key for rule in policy.rules for condition in rule.conditions)
    return frozenset(
        key.removeprefix("header.").lower() for key in keys if key.startswith("header.")
    )


class Reader:
    """Where the requests of one connection begin and end, as far as that is sure. No I/O.

    Once it is not sure, all that comes goes through the parser, to the end of the connection.
    """

    def __init__(self, hot: HotPath) -> None:
        self._hot = hot
        self._left: int | None = 0
        """Bytes of the present request's body that have not come; None where that is not sure."""
        self._held: list[bytes] = []
        """The beginning of a plain request, with the head ``_head``."""
        self._head = Head(0)
        self._began = 0.0

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes, *, waiting: bool) -> "tuple[bytes, bytes] | PlainRequest | bytes":
        """Return the reply to a repeated request, a plain request, or the bytes for the parser.

        No bytes means that the rest of a request is missing. ``waiting`` tells that all requests
        before are answered.
        """
        if self._left is None:
            return data
        if self._held:
            self._held.append(data)
            self._count(len(data))
            return b"" if self._left else self._finish(self.release())
        if self._left:
            self._count(len(data))
            return data
        return self._begin(data, waiting=waiting)

    def release(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        return data

    def give_up(self) -> None:
        """Hand all further bytes to the parser."""
        self._left = None

    def _begin(self, data: bytes, *, waiting: bool) -> "tuple[bytes, bytes] | PlainRequest | bytes":
        end = data.find(_END_OF_HEAD, 0, MAX_HEAD_BYTES)
        head = None if end < 0 else self._hot.head(data[:end])
        if head is None:
            self.give_up()
            return data
        self._left = head.length
        self._count(len(data) - end - len(_END_OF_HEAD))
        if not waiting or head.endpoint is None or head.length > self._hot.max_body_bytes:
            return data
        self._head, self._began = head, time.perf_counter()
        if self._left:
            self._held.append(data)
            return b""
        return self._finish(data)

    def _finish(self, data: bytes) -> "tuple[bytes, bytes] | PlainRequest | bytes":
        """Take the bytes of a plain request, unless more than the request has come."""
        head = self._head
        if self._left is None or head.endpoint is None:
            return data
        body = memoryview(data)[len(data) - head.length :]
        repeated = self._hot.answer(head, body, self._began)
        if repeated is not None:
            return repeated
        fields = read_fields(data[: len(data) - head.length - len(_END_OF_HEAD)])
        headers = {name.lower(): value for name, value in fields}
        return PlainRequest(head.endpoint, head, fields, headers, bytes(body))

    def _count(self, size: int) -> None:
        """Take a piece of the body; more than the body is left to the parser."""
        left = (self._left or 0) - size
        self._left = None if left < 0 else left
