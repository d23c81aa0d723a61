"""Repeated requests, answered by their bytes before a request object is made of them.

The ordinary way decides; the hot path only repeats. When the ordinary way has answered a request
from a fresh exact entry, the answer is kept here under a digest of the request's bytes. If the same
bytes come again, and nothing has changed that the decision hung on, the answer is written at once.
Law: in doubt, a request goes the ordinary way, with nothing of it consumed.

A digest leaves out the headers that differ between equal requests (``NEUTRAL``). All other bytes of
the head count, credentials and ``Host`` among them.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from email.utils import formatdate
from hashlib import sha256
from typing import NamedTuple

from gateway.cache.ports import Entry, MemoryTier, PolicySource
from gateway.protocol.cache_status import HitStatus, Reason, hit_fields
from gateway.protocol.messages import Reply
from gateway.server.auth import Access
from gateway.telemetry import request_id
from gateway.telemetry.metrics import HitBatch, Metrics
from policies.policy import Policy

MAX_HEAD_BYTES = 8_192
MAX_HEADERS = 100
MAX_BODY_BYTES = 1 << 20
"""Larger requests and answers take the ordinary way."""

MAX_HEADS = 4_096
MAX_ANSWERS = 8_192
MAX_RENDERED_BYTES = 16 << 20
"""Bounds of the tables. A plain answer belongs to its entry; only rendered answers take room."""

HOLD_SECONDS = 1.0
"""Time for the rest of a body after its head. After that the ordinary path waits for it."""

SWEEP_SECONDS = 1.0
"""Longest time until an answer is forgotten after its entry left the memory tier."""

NEUTRAL = frozenset(
    {
        b"b3",
        b"baggage",
        b"sentry-trace",
        b"traceparent",
        b"tracestate",
        b"uber-trace-id",
        b"x-amzn-trace-id",
        b"x-b3-parentspanid",
        b"x-b3-sampled",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
        b"x-correlation-id",
        b"x-datadog-parent-id",
        b"x-datadog-sampling-priority",
        b"x-datadog-trace-id",
        b"x-request-id",
        b"x-stainless-read-timeout",
        b"x-stainless-retry-count",
    }
)
"""Headers that differ between a request and its repetition. Those that a policy rule reads count
nevertheless."""

_ORDINARY = frozenset({b"cache-control", b"content-encoding", b"expect"})
"""A request with one of these headers takes the ordinary way."""

_UNSURE = frozenset({b"transfer-encoding", b"upgrade"})
"""After one of these headers it is not sure what the bytes behind the head are."""

_REQUEST_LINE = re.compile(rb"(GET|POST) /[\x21-\x7e]* HTTP/1\.1")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_LENGTH = re.compile(rb"[0-9]{1,9}")
_PLAIN = bytes((*range(0x20, 0x7F), *b"\t\r\n"))
"""The bytes of a head that every parser reads alike."""

_END_OF_HEAD = b"\r\n\r\n"


class Head(NamedTuple):
    """The head of a request whose end is sure. ``length`` is the size of its body in bytes."""

    length: int
    facts: bytes = b""
    """Digest of all that counts in it; empty where the request takes the ordinary way."""
    request_id: bytes = b""
    """The client's own, if it sent one."""


def read_head(block: bytes, neutral: frozenset[bytes], generation: bytes) -> Head | None:
    """Read a head without its last empty line; None where it is not sure where its request ends.

    ``generation`` becomes part of the facts.
    """
    request_line, *lines = block.split(b"\r\n")
    method = _REQUEST_LINE.fullmatch(request_line)
    if (
        method is None
        or len(lines) > MAX_HEADERS
        or block.translate(None, _PLAIN)
        or not block.count(b"\r") == block.count(b"\n") == len(lines)
    ):
        return None
    hot = method[1] == b"POST"
    identity = [generation, request_line]
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in _UNSURE or name[:1] in b" \t":
            return None
        if name == b"content-length" or name in neutral:
            if name in found:
                return None
            found[name] = value.strip()
        elif name in _ORDINARY or (name == b"connection" and value.strip() != b"keep-alive"):
            hot = False
        else:
            identity.append(name + b":" + value)
    length = found.get(b"content-length", b"0")
    if _LENGTH.fullmatch(length) is None:
        return None
    given_id = found.get(b"x-request-id", b"")
    if (
        not hot
        or int(length) > MAX_BODY_BYTES
        or (given_id and not _REQUEST_ID.fullmatch(given_id))
    ):
        return Head(int(length))
    return Head(int(length), sha256(b"\r\n".join(identity)).digest(), given_id)


class Answer:
    """A stored answer as it is written, until ``until`` (seconds since the epoch).

    ``labels`` are the endpoint and the rule, for the metrics.
    """

    __slots__ = ("age", "body", "content_type", "entry", "hits", "labels", "start", "ttl", "until")

    def __init__(
        self, labels: tuple[str, str], entry: Entry, reply: Reply, body: bytes, until: float
    ) -> None:
        self.entry = entry
        self.labels = (*labels, Reason.EXACT.value)
        self.content_type = reply.headers[0][1]
        self.body = body
        self.until = until
        self.hits: HitBatch | None = None
        """What counts its repetitions, once there is one."""
        self.age = self.ttl = -1
        self.start = b""

    @property
    def rendered_bytes(self) -> int:
        """What its body takes beside the entry's."""
        return 0 if self.body is self.entry.result else len(self.body)

    def head(self, now: float) -> bytes:
        """Return the head up to the request's id; empty once the answer is not fresh."""
        stored_at = self.entry.stored_at
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

    ``server`` is the header that names the server. ``stopping`` tells whether clients are to leave.
    """

    def __init__(
        self,
        memory: MemoryTier,
        policies: PolicySource,
        access: Access,
        metrics: Metrics,
        *,
        server: str,
        stopping: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._policies = policies
        self._access = access
        self._metrics = metrics
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
        """Return what ``read_head`` does."""
        if self._policies.active is not self._active or self._access.rings != self._rings:
            self._begin_generation()
        digest = sha256(block).digest()
        found = self._heads.get(digest)
        if found is None:
            found = read_head(block, self._neutral, b"%d" % self._generation)
            if found is not None:
                if len(self._heads) >= MAX_HEADS:
                    self._heads.clear()
                self._heads[digest] = found
        return found

    def has_answered(self, head: Head) -> bool:
        """Tell whether a request with such a head was answered from an entry before."""
        return head.facts in self._answered

    def answer(self, request: bytes, given_id: bytes, began: float) -> tuple[bytes, bytes] | None:
        """Return head and body of the reply to a request, None where it takes the ordinary way.

        ``request`` is the digest of its facts and its body. ``began`` is when its head came, by
        ``perf_counter``.
        """
        known = self._answers.get(request)
        if known is None or self._stopping():
            return None
        now = self._now()
        start = known.head(now)
        if not start or self._memory.find(known.entry.key) is not known.entry:
            self._forget(request)
            return None
        if int(now) != self._second:
            self._second = int(now)
            date = formatdate(now, usegmt=True)
            self._end = f"\r\nDate: {date}\r\nServer: {self._server}\r\n\r\n".encode()
        own_id = given_id or request_id.new_id().encode()
        head = b"%b%b\r\nContent-Length: %d%b" % (start, own_id, len(known.body), self._end)
        if known.hits is None:
            known.hits = self._metrics.hits(*known.labels)
        known.hits.add(time.perf_counter() - began)
        return head, known.body

    def remember(self, head: Head, request: bytes, answer: Answer) -> None:
        """Keep the answer that the ordinary path gave to a request with these bytes."""
        if len(answer.body) > MAX_BODY_BYTES:
            return
        self._forget(request)
        while len(self._answers) >= MAX_ANSWERS or self._rendered_bytes > MAX_RENDERED_BYTES:
            self._forget(next(iter(self._answers)))
        if len(self._answered) >= MAX_HEADS:
            self._answered.clear()
        self._answers[request] = answer
        self._answered.add(head.facts)
        self._rendered_bytes += answer.rendered_bytes

    def sweep(self) -> None:
        """Forget the answers of entries that left the memory tier, and flush the hit counts."""
        find = self._memory.find
        for request, answer in list(self._answers.items()):
            if find(answer.entry.key, touch=False) is not answer.entry:
                self._forget(request)
        self._metrics.flush()

    async def watch(self) -> None:
        """Sweep until cancelled."""
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
        self._neutral = NEUTRAL - _headers_read(self._active.policy)
        self._generation += 1
        self._heads.clear()
        self._answers.clear()
        self._answered.clear()
        self._rendered_bytes = 0


def _headers_read(policy: Policy) -> frozenset[bytes]:
    """Return the headers that rules match, in lower case."""
    keys = (condition.key for rule in policy.rules for condition in rule.conditions)
    return frozenset(
        key.removeprefix("header.").lower().encode() for key in keys if key.startswith("header.")
    )


class Reader:
    """Where the requests of one connection begin and end, as far as that is sure. No I/O.

    Once it is not sure, all that comes goes the ordinary way, to the end of the connection.
    """

    def __init__(self, hot: HotPath) -> None:
        self._hot = hot
        self._left: int | None = 0
        """Bytes of the present request's body that have not come; None where that is not sure."""
        self._head: Head | None = None
        self._digest = sha256()
        self._began = 0.0
        self._held: list[bytes] = []

    @property
    def holds(self) -> bool:
        """Tell whether it keeps the beginning of a request back."""
        return bool(self._held)

    def feed(self, data: bytes, *, waiting: bool) -> tuple[bytes, bytes] | bytes:
        """Return the reply to a repeated request, or the bytes for the parser, if any.

        ``waiting`` tells that all requests before are answered.
        """
        if self._left is None:
            return data
        if self._held:
            self._held.append(data)
            return self._go_on(data)
        if self._left:
            self._count(data)
            return data
        return self._begin(data, waiting=waiting)

    def release(self) -> bytes:
        """Return the bytes that were held back."""
        data = b"".join(self._held)
        self._held.clear()
        return data

    def remember(self, endpoint: str, rule: str, entry: Entry, reply: Reply) -> None:
        """Keep the reply to the last request, if both are complete."""
        head, body, until = self._head, reply.body, reply.fresh_until
        if head is None or self._left != 0 or until is None or not isinstance(body, bytes):
            return
        answer = Answer((endpoint, rule), entry, reply, body, until)
        self._hot.remember(head, self._digest.digest(), answer)

    def _begin(self, data: bytes, *, waiting: bool) -> tuple[bytes, bytes] | bytes:
        end = data.find(_END_OF_HEAD, 0, MAX_HEAD_BYTES)
        head = None if end < 0 else self._hot.head(data[:end])
        if head is None:
            self.give_up()
            return data
        begin = end + len(_END_OF_HEAD)
        self._left = head.length
        if not (waiting and head.facts):
            self._head = None
            self._count(data, begin)
            return data
        self._head = head
        self._began = time.perf_counter()
        self._digest = sha256(head.facts)
        self._count(data, begin)
        if self._left == 0:
            return self._answer(head) or data
        if self._left and self._hot.has_answered(head):
            self._held.append(data)
            return b""
        return data

    def _go_on(self, data: bytes) -> tuple[bytes, bytes] | bytes:
        self._count(data)
        if self._left:
            return b""
        whole = self.release()
        if self._left is None or self._head is None:
            return whole
        return self._answer(self._head) or whole

    def _answer(self, head: Head) -> tuple[bytes, bytes] | None:
        return self._hot.answer(self._digest.digest(), head.request_id, self._began)

    def _count(self, data: bytes, begin: int = 0) -> None:
        """Take a piece of the body; more than the body is left to the parser."""
        left = (self._left or 0) - (len(data) - begin)
        if left < 0:
            self.give_up()
            return
        self._left = left
        if self._head is not None:
            self._digest.update(memoryview(data)[begin:])

    def give_up(self) -> None:
        """Hand all further bytes to the parser."""
        self._left = self._head = None
