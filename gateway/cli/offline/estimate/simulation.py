"""What would have become of each request of a log: the gateway's own decisions on the log's clock.

Laws:
- The gateway's driver decides (``Pipeline.explain``), over entries in memory. Nothing is decided
  a second time here but who joins whose call, which needs the log's times.
- Requests come in the order of their start. An answer is stored when it ended in the log.
- Memory is bounded: entries, answers under way, and blocks of prompts.
"""

import heapq
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from gateway.cache.lookup import End, Forward, Hit, storage_plan
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry
from gateway.cache.stores.memory import MemoryStore
from gateway.cli.offline.estimate.log_formats import LoggedRequest
from gateway.cli.offline.explain import pipeline_to_explain
from gateway.protocol.endpoints.embeddings import stored_items, vectors_of
from gateway.protocol.errors import RequestError
from gateway.protocol.http.cache_status import Forwarded, Reason
from gateway.protocol.request import read_request
from gateway.semantic.ports import Match, SemanticIndex, Verifier
from gateway.server.context import Trace
from gateway.server.open.policy_file import ActivePolicy, PolicyFile
from gateway.upstream.pool.prefix_chain import BLOCK_BYTES, prefix_blocks
from policies.decision import PiiAction, Scope

ENTRY_BYTES = 256 << 20
"""Memory of the entries, which hold no answers. A gateway's own store may hold less, or more."""
MOST_UNDER_WAY = 10_000
"""Answers that wait for their end; of more, the first to end is stored at once."""
MOST_BLOCKS = 1_000_000
"""Blocks of prompts that are remembered, the latest: some 150 MB."""
SEMANTIC_SECONDS = 120.0
"""A lookup by meaning is never cut short here: it decides as on a fast machine."""

_SECRET = b"refrain estimate: nothing outlives the command"
_A_YEAR = 366 * 86_400.0
_STAND_IN = b'{"data":[{}],"model":"","usage":null}'
"""What entries hold in place of answers: each lookup needs only that one is there."""


class Way(StrEnum):
    """How a request would have been answered."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    COALESCED = "coalesced"
    MISS = "miss"
    BYPASS = "bypass"


SAVING = (Way.EXACT, Way.SEMANTIC, Way.COALESCED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would have become of one request.

    ``seconds`` is the time that its client would have saved. ``saves_call`` is false for a stale
    hit, whose answer is fetched anew. ``repeated`` is the share of its prompt that an earlier one
    of the window begins with; 0 if nothing would have been sent.
    """

    way: Way
    reason: Reason | None = None
    rule: str = ""
    key: bytes | None = None
    """The cache key; None if the request is not looked up."""
    seconds: float = 0.0
    saves_call: bool = False
    repeated: float = 0.0
    ineligible: Reason | None = None
    """Why it could not be answered by meaning, where the policy allows that."""


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """The ``PolicySource`` of a policy that does not change."""

    active: ActivePolicy

    @property
    def needs_user(self) -> bool:
        return any(
            each.scope is Scope.USER or each.pii is PiiAction.USER
            for each in self.active.policy.decisions
        )


def fixed_policy(file: Path, risk: float | None) -> FixedPolicy:
    """Read a policy; ``risk`` takes the place of its error budgets. Raises PolicyError, OSError."""
    active = PolicyFile(file).active
    if risk is None:
        return FixedPolicy(active)
    policy = active.policy
    rules = tuple(
        replace(rule, decision=replace(rule.decision, max_wrong_hits=risk)) for rule in policy.rules
    )
    default = replace(policy.default, max_wrong_hits=risk)
    policy = replace(policy, rules=rules, default=default)
    return FixedPolicy(replace(active, policy=policy))


class _Entries(MemoryStore):
    """Entries in memory, where a lookup counts as a use: the driver thinks that it explains."""

    def find(self, key: bytes, *, touch: bool = True) -> Entry | None:  # noqa: ARG002
        return super().find(key, touch=True)


class _Vectors:
    """An index of questions on the log's clock; the one behind it has the clock of today."""

    def __init__(self, index: SemanticIndex, simulation: "Simulation") -> None:
        self._index = index
        self._simulation = simulation
        self._expiring: list[tuple[float, bytes]] = []
        self._until: dict[bytes, float] = {}

    async def search(self, partition: bytes, text: str, k: int) -> Sequence[Match]:
        now, gone = self._simulation.now, []
        while self._expiring and self._expiring[0][0] <= now:
            until, key = heapq.heappop(self._expiring)
            if self._until.get(key) == until:
                del self._until[key]
                gone.append(key)
        if gone:
            await self._index.remove(gone)
        return await self._index.search(partition, text, k)

    async def add(self, partition: bytes, key: bytes, text: str, expires_at: float) -> None:
        self._until[key] = expires_at
        heapq.heappush(self._expiring, (expires_at, key))
        await self._index.add(partition, key, text, time.time() + _A_YEAR)

    async def remove(self, keys: Sequence[bytes]) -> None:
        await self._index.remove(keys)


class _Prefixes:
    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[int, float] = OrderedDict()

    def repeated(self, one: LoggedRequest, now: float) -> float:
        """Return the share of the prompt that an earlier one begins with, and note the prompt."""
        request = one.request
        size = len(request.raw)
        chain = prefix_blocks(request.endpoint, request.body, is_large=size > 1 << 20)
        found, known = 0, True
        for digest in chain:
            seen = self._seen.pop(digest, None)
            known = known and seen is not None and now - seen <= self._window
            found += known
            self._seen[digest] = now
        while len(self._seen) > MOST_BLOCKS:
            self._seen.popitem(last=False)
        return min(1.0, found * BLOCK_BYTES / max(1, size))


@dataclass(slots=True)
class _Call:
    """A call to the upstream: until when it is under way, and what is stored then."""

    one: LoggedRequest
    end: float
    plans: tuple[Plan | None, ...]
    """The plan of the answer, or of each item of a batch; None: that one is not stored."""


class Simulation:
    """Takes requests in the order of their start, and tells what would have become of each."""

    def __init__(
        self,
        policies: FixedPolicy,
        *,
        window: float,
        index: SemanticIndex | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """``window`` is for how many seconds an upstream keeps the beginning of a prompt."""
        self.now = 0.0
        self.not_stored: dict[Reason, int] = {}
        """Answers of the log that the gateway would not have stored, by reason."""
        self._policies = policies
        self._store = _Entries(max_bytes=ENTRY_BYTES)
        self._semantic = None if index is None else _Vectors(index, self)
        self._pipeline = replace(
            pipeline_to_explain(
                policies,
                self._store,
                _SECRET,
                "",
                semantic=self._semantic,
                verifier=verifier,
                now=lambda: self.now,
            ),
            semantic_seconds=SEMANTIC_SECONDS,
        )
        self._prefixes = _Prefixes(window)
        self._flights: dict[bytes, _Call] = {}
        self._ends: list[tuple[float, int, _Call]] = []
        self._numbers = itertools.count()

    @property
    def evictions(self) -> int:
        """Entries that had to go because the memory for them is bounded."""
        return self._store.stats().evictions

    async def close(self) -> None:
        self._pipeline.scans.close()
        await self._pipeline.close()
        await self._store.close()

    async def take(self, one: LoggedRequest) -> Outcome:
        start = self.now if one.start is None else max(self.now, one.start)
        await self.finish(start)
        self.now = start
        if self._policies.needs_user:
            one = one.with_user()
        trace = Trace()
        request = one.request
        try:
            read = read_request(
                request.endpoint,
                request.raw,
                headers=request.headers,
                target=request.target,
                holder=one.holder,
            )
            end = await self._pipeline.explain(read, trace)
        except RequestError as error:
            reason = getattr(error, "reason", Reason.INVALID_REQUEST)
            return Outcome(Way.BYPASS, reason, _rule(trace))
        lookups = [steps[-1].state for steps in trace.lookups]
        plans = tuple(map(storage_plan, lookups if len(lookups) > 1 else [end]))
        return self._outcome(one, end, plans, trace)

    def _outcome(
        self, one: LoggedRequest, end: End, plans: tuple[Plan | None, ...], trace: Trace
    ) -> Outcome:
        first = trace.lookups[0][0].state
        key = None if isinstance(first, End) else first.plan.key
        outcome = Outcome(Way.MISS, None, _rule(trace), key)
        if isinstance(end, Hit):
            way = Way.SEMANTIC if end.status.reason is Reason.SEMANTIC else Way.EXACT
            if end.revalidate is not None:
                self._begin(one, plans)
            saves_call = end.revalidate is None
            return replace(outcome, way=way, seconds=one.seconds, saves_call=saves_call)
        if not isinstance(end, Forward):
            return replace(outcome, way=Way.BYPASS, reason=Reason.ONLY_IF_CACHED)
        plan = end.store
        if plan is not None and plan.decision.max_followers > 0:
            call = self._flights.get(plan.coalescing_key)
            if call is not None and call.end > self.now:
                seconds = max(0.0, self.now + one.seconds - call.end)
                return replace(outcome, way=Way.COALESCED, seconds=seconds, saves_call=True)
        self._begin(one, plans)
        bypass = end.status.forwarded is Forwarded.BYPASS
        return replace(
            outcome,
            way=Way.BYPASS if bypass else Way.MISS,
            reason=end.status.reason,
            repeated=self._prefixes.repeated(one, self.now),
            ineligible=end.ineligible,
        )

    def _begin(self, one: LoggedRequest, plans: tuple[Plan | None, ...]) -> None:
        """Note that the upstream is called; requests with a failed answer share no call."""
        call = _Call(one, self.now + one.seconds, plans)
        if not one.storable or not any(plans):
            return
        heapq.heappush(self._ends, (call.end, next(self._numbers), call))
        if len(plans) == 1 and plans[0] is not None:
            self._flights[plans[0].coalescing_key] = call

    async def finish(self, until: float = math.inf) -> None:
        while self._ends and (self._ends[0][0] <= until or len(self._ends) > MOST_UNDER_WAY):
            end, _, call = heapq.heappop(self._ends)
            self.now = max(self.now, min(end, until))
            for plan in call.plans:
                if plan is not None and self._flights.get(plan.coalescing_key) is call:
                    del self._flights[plan.coalescing_key]
            for plan, answer in zip(call.plans, _answers(call), strict=True):
                if plan is not None:
                    await self._store_answer(plan, answer)

    async def _store_answer(self, plan: Plan, answer: dict[str, Any] | None) -> None:
        """Store an answer as the gateway would; one that the log lacks counts as storable."""
        writer = self._pipeline.coalescer.caller.writer
        if answer is not None:
            scanner = self._policies.active.scanner
            reason = await writer.store(plan, answer, _STAND_IN, scanner)
            if reason is not None:
                self.not_stored[reason] = self.not_stored.get(reason, 0) + 1
            await writer.settle()
            return
        entry = plan.entry(_STAND_IN, self.now)
        await self._store.put(entry)
        if self._semantic is not None and plan.question is not None:
            await self._semantic.add(plan.fingerprint, plan.key, plan.question, entry.expires_at)


def _rule(trace: Trace) -> str:
    context = getattr(trace, "context", None)
    return "" if context is None else context.decision.rule


def _answers(call: _Call) -> Sequence[dict[str, Any] | None]:
    """Return the answer of a call, or of each item of a batch; None where the log has none."""
    answer, count = call.one.answer, len(call.plans)
    if answer is None or count == 1:
        return [answer] * count
    vectors = vectors_of(answer, count)
    if vectors is None:
        return [{}] * count
    return stored_items(answer, vectors, [b"%d" % place for place in range(count)])
