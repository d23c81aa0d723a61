"""The client: a bounded load, every byte of whose answers is checked.

An answer depends on its question and its tenant alone, so it is known what each one must be.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from tests.chaos.upstream import GARBAGE, answer, words

TENANTS = ("tenant-amber", "tenant-basil", "tenant-cedar")
KNOWN = 12
"""Questions that each tenant has asked before the fault."""
IN_FLIGHT = 24
THINK_SECONDS = 0.1
PATIENCE_SECONDS = 30.0
"""A request without an end for so long hangs."""

BAD = ("wrong", "truncated", "formless", "hung")
"""What must never be, whatever fails."""


@dataclass(frozen=True)
class Asked:
    """A question of a tenant."""

    tenant: str
    question: str

    @property
    def answer(self) -> str:
        """What it must be answered."""
        return answer(self.question, self.tenant)


@dataclass(frozen=True)
class Reply:
    """What became of a request.

    ``kind`` is ``hit``, ``miss``, ``error`` (in the right form), ``broke`` (the connection),
    ``garbage`` (of the upstream, unchanged), or one of ``BAD``.
    """

    kind: str
    status: int = 0
    cache: str = ""
    detail: str = ""


@dataclass
class Tally:
    """What was seen."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    answered: dict[Asked, float | None] = field(default_factory=dict)
    """When each question was answered whole for the first time, if it ever was."""
    stored: dict[Asked, float] = field(default_factory=dict)
    """When a reply first said that its answer is stored. The head of a stream cannot say it."""
    faults: list[str] = field(default_factory=list)

    def add(self, asked: Asked, reply: Reply, seconds: float) -> None:
        """Count a reply."""
        self.kinds[reply.kind] += 1
        self.slowest = max(self.slowest, seconds)
        if reply.kind == "error":
            self.statuses[reply.status] += 1
        if self.answered.setdefault(asked) is None and reply.kind in ("hit", "miss"):
            self.answered[asked] = time.monotonic()
        if "stored" in reply.cache or reply.kind == "hit":
            self.stored.setdefault(asked, time.monotonic())
        if reply.kind in BAD and len(self.faults) < 5:
            self.faults.append(f"{reply.kind}: {asked.question!r}: {reply.detail}")


class Client:
    """Asks a gateway, and judges its replies."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/chat/completions"
        self._session = ClientSession(
            timeout=ClientTimeout(total=PATIENCE_SECONDS), connector=TCPConnector(limit=0)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def is_idle(self) -> bool:
        """Tell whether no call of an upstream is left, once the last answers have ended."""
        page = f"{self._url.removesuffix('/v1/chat/completions')}/metrics"
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            async with self._session.get(page) as reply:
                lines = (await reply.text()).splitlines()
            gauges = ("refrain_upstream_in_flight", "refrain_upstream_waiting")
            if not any(line.startswith(gauges) and not line.endswith(" 0.0") for line in lines):
                return True
            await asyncio.sleep(0.1)
        return False

    async def ask(self, asked: Asked, *, streams: bool = False, control: str = "") -> Reply:
        """Ask, and judge the reply."""
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": asked.question}],
            "stream": streams,
        }
        headers = {"Authorization": f"Bearer {asked.tenant}"}
        if control:
            headers["Cache-Control"] = control
        raw, status, cache, error = b"", 0, "", ""
        try:
            async with self._session.post(self._url, json=body, headers=headers) as reply:
                status, cache = reply.status, reply.headers.get("Cache-Status", "")
                # Piece by piece: what came before a break is judged, too.
                async for piece in reply.content.iter_any():
                    raw += piece
        except TimeoutError:
            return Reply("hung", status, cache, repr(raw[-80:]))
        except (ClientError, ConnectionError) as broken:
            error = f"{type(broken).__name__}: {broken}"
        return judge(asked, status, cache, raw, streams=streams, error=error)


def judge(asked: Asked, status: int, cache: str, raw: bytes, *, streams: bool, error: str) -> Reply:
    """Tell what became of a request."""
    hit = "; hit" in cache
    if status != 200:
        if error:
            return Reply("broke", status, cache, error)
        right = _error_form(raw) or "detail=upstream-status" in cache
        return Reply("error" if right else "formless", status, cache, repr(raw[:200]))
    if GARBAGE.encode() in raw and not hit:
        return Reply("garbage", status, cache)
    try:
        text, whole, refused = _stream(raw) if streams else _plain(raw)
    except (ValueError, KeyError, TypeError, IndexError):
        # A plain reply whose upstream broke off is cut, and its connection closed.
        return Reply("broke" if error else "formless", status, cache, repr(raw[-200:]))
    if text == asked.answer and whole:
        return Reply("hit" if hit else "miss", status, cache)
    if not asked.answer.startswith(text):
        return Reply("wrong", status, cache, repr(text[:200]))
    if whole:
        return Reply("truncated", status, cache, repr(raw[-200:]))
    if refused:
        return Reply("error", status, cache)
    return Reply("broke" if error else "formless", status, cache, repr(raw[-200:]))


def _error_form(raw: bytes) -> bool:
    try:
        return set(orjson.loads(raw)["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False


def _plain(raw: bytes) -> tuple[str, bool, bool]:
    """Return the text, whether it is said to be whole, and whether an error ends it."""
    choice = orjson.loads(raw)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"] == "stop", False


def _stream(raw: bytes) -> tuple[str, bool, bool]:
    text, refused = "", False
    *events, tail = raw.split(b"\n\n")
    for event in (each.strip(b"\n") for each in events):
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            data = orjson.loads(event[6:])
            refused = refused or _error_form(event[6:])
            for choice in data.get("choices", ()):
                text += choice["delta"].get("content") or ""
    done = bool(events) and events[-1].strip(b"\n") == b"data: [DONE]"
    if tail.strip():
        raise ValueError(tail)
    return text, done, refused


def known(*, by_meaning: bool) -> list[Asked]:
    """Return the questions of before the fault."""
    things = [_thing(number, by_meaning=by_meaning) for number in range(KNOWN)]
    return [Asked(tenant, _ask(thing)) for tenant in TENANTS for thing in things]


def _thing(number: int, *, by_meaning: bool) -> str:
    return words(number, 1 if by_meaning else 4)


def _ask(thing: str) -> str:
    return f"How do I grow the {thing}?"


def _ask_exactly(number: int, count: int) -> str:
    """Return a question that only the same question answers: its answer depends on the day."""
    return _ask(f"{words(number, count)} today")


NEVER_AGAIN = Asked(TENANTS[0], "How do I prune the old apple tree?")
"""Is known, and asked again in other words alone."""


class Load:
    """Asks known questions, new ones twice at a time, and those of a moment ago."""

    def __init__(self, client: Client, *, by_meaning: bool = False, seed: int = 1) -> None:
        self.tally = Tally()
        self._client = client
        self._by_meaning = by_meaning
        self._known = known(by_meaning=by_meaning)
        self._random = random.Random(seed)
        self._new = self._new_ones()
        self._recent: deque[Asked] = deque(maxlen=50)

    def _new_ones(self) -> Iterator[Asked]:
        number = KNOWN
        while True:
            number += 1
            asked = Asked(self._random.choice(TENANTS), _ask_exactly(number, 5))
            self._recent.append(asked)
            yield asked
            yield asked  # most often while the first is under way

    def _next(self) -> Asked:
        drawn = self._random.random()
        if drawn < 0.4:
            asked = self._random.choice(self._known)
            if self._by_meaning and drawn < 0.2:
                return Asked(asked.tenant, asked.question.replace("How do I", "How can I"))
            return asked
        if drawn < 0.7 or not self._recent:
            return next(self._new)
        return self._random.choice(self._recent)

    async def ask_known(self) -> None:
        """Ask what is to be known, one after another."""
        for asked in (*self._known, NEVER_AGAIN):
            self.tally.add(asked, await self._client.ask(asked), 0.0)

    async def one(self) -> Reply:
        """Ask one question."""
        asked, began = self._next(), time.monotonic()
        reply = await self._client.ask(asked, streams=self._random.random() < 0.5)
        self.tally.add(asked, reply, time.monotonic() - began)
        return reply

    async def _ask_on(self) -> None:
        while True:
            await self.one()
            await asyncio.sleep(THINK_SECONDS * (0.5 + self._random.random()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask without a pause meanwhile."""
        tasks = [asyncio.create_task(self._ask_on()) for _ in range(IN_FLIGHT)]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()  # a fault of ours
        finally:
            for task in tasks:
                task.cancel()

    async def recovered(self, since: float, patience: float) -> float | None:
        """Return the seconds until new questions are misses, and hits when they are asked again.

        By meaning, the known question in other words must be a hit, too.
        """
        good, first, number = 0, 0.0, 0
        while time.monotonic() - since < patience:
            number += 1
            asked = Asked(TENANTS[number % 3], _ask_exactly(number, 7))
            replies = [await self._client.ask(asked), await self._client.ask(asked)]
            for reply in replies:
                self.tally.add(asked, reply, 0.0)
            wanted = ["miss", "hit"]
            if self._by_meaning:
                reworded = Asked(NEVER_AGAIN.tenant, NEVER_AGAIN.question.replace("do I", "can I"))
                replies.append(await self._client.ask(reworded, control="only-if-cached"))
                wanted.append("hit")
            good = good + 1 if [each.kind for each in replies] == wanted else 0
            if good == 1:
                first = time.monotonic() - since
            if good == 3:
                return first
            await asyncio.sleep(0.01)
        return None

    async def lost(self, before: float, *, promised: bool) -> list[float]:
        """Return when what is not found now was answered, if before a moment; judge what is found.

        ``promised`` leaves out what no reply said to be stored. What was never answered whole must
        not be found: half an answer may not be stored.
        """
        missing = []
        for asked, answered in list(self.tally.answered.items()):
            reply = await self._client.ask(asked, control="only-if-cached")
            at = self.tally.stored.get(asked) if promised else answered
            if reply.kind == "hit":
                continue
            if reply.kind != "error":
                self.tally.add(asked, reply, 0.0)
            if at is not None and at < before:
                missing.append(at)
        return missing
