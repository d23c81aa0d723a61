"""Compares fresh answers with semantic candidates, in the background.

Laws:
- No request waits for a comparison, and none fails by it. One is made at a time, and few may wait:
  under load comparisons are dropped, and no request is held up.
- A hit that was served and is found wrong leaves the semantic index at once, whatever else fails.
- A judge decides only if texts and vectors leave a pair unsure.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from gateway.cache.plan import Plan
from gateway.cache.ports import Quarantine
from gateway.cache.quality.comparison_journal import ComparisonJournal
from gateway.cache.quality.same_answer import (
    Judgement,
    NeedsVectors,
    Outcome,
    compare,
    read_answer,
)
from gateway.cache.quality.shadow_eval import ComparisonCandidate, Kind, make_comparison
from gateway.protocol.http.headers import Fields
from gateway.semantic.ports import LocalEncoder, SemanticIndex, SemanticUnavailableError

log = logging.getLogger(__name__)

MAX_WAITING = 64
MAX_BYTES = 32 * 2**20
"""Of the answers that wait."""
MAX_TEXT = 4000
"""Characters of an answer that are written down."""
SECONDS = 30.0
"""The longest that one comparison may take."""


class Judge(Protocol):
    """Decides on pairs that texts and vectors leave unsure."""

    async def judge(
        self, question: str, stored: str, fresh: str, fields: Iterable[tuple[str, str]]
    ) -> Judgement | None:
        """Return the verdict of the judge, None if it has none; ``fields`` are the client's."""


class Pair(NamedTuple):
    """A candidate and the fresh answer, JSON, to the request of this plan."""

    candidate: ComparisonCandidate
    plan: Plan
    fresh: bytes
    fields: Fields

    @property
    def size(self) -> int:
        """Bytes of both answers."""
        return len(self.candidate.entry.result) + len(self.fresh)

    def compare(self) -> Judgement | NeedsVectors:
        """Compare the answers, as far as texts tell."""
        return compare(orjson.loads(self.candidate.entry.result), orjson.loads(self.fresh))

    def texts(self) -> tuple[str | None, str | None]:
        """Return the texts of the stored and the fresh answer, if they have one."""
        answers = (
            read_answer(orjson.loads(raw)) for raw in (self.candidate.entry.result, self.fresh)
        )
        stored, fresh = (None if answer is None else answer.text for answer in answers)
        return stored, fresh


@dataclass(slots=True)
class Comparisons:
    """The comparisons that wait, and the task that makes them.

    ``threshold`` is the verifier's for a budget. ``count`` takes the rule, the kind, and the
    outcome or why there is none.
    """

    journal: ComparisonJournal
    quarantine: Quarantine
    index: SemanticIndex | None
    encoder: LocalEncoder | None
    now: Callable[[], float]
    threshold: Callable[[float], float | None]
    count: Callable[[str, str, str], None] = lambda *_: None
    with_text: bool = False
    judge: Judge | None = None
    _waiting: deque[Pair] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None
    _closed: bool = False

    def begin(
        self,
        candidate: ComparisonCandidate,
        plan: Plan,
        fresh: bytes,
        fields: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Queue a fresh answer for comparison; ``fields`` are the headers of its request."""
        if self._closed:
            return
        pair = Pair(candidate, plan, fresh, tuple(fields))
        held = sum(each.size for each in self._waiting)
        if len(self._waiting) >= MAX_WAITING or held + pair.size > MAX_BYTES:
            self.count(plan.decision.rule, candidate.kind.value, "dropped")
            return
        self._waiting.append(pair)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def idle(self) -> None:
        """Wait until what waits now has been compared."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Give up what waits."""
        self._closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._waiting:
            pair = self._waiting.popleft()
            outcome = "fault"
            try:
                async with asyncio.timeout(SECONDS):
                    outcome = await self._compare(pair)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no request's
                log.warning("a comparison of answers failed: %s", type(error).__name__)
            self.count(pair.plan.decision.rule, pair.candidate.kind.value, outcome)

    async def _compare(self, pair: Pair) -> str:
        found = await self._judge(pair)
        candidate, rule = pair.candidate, pair.plan.decision.rule
        if candidate.kind is Kind.SERVED and found.outcome is Outcome.DIFFERENT:
            await self._bar_entry(candidate.entry.key)
        threshold = self.threshold(pair.plan.decision.max_wrong_hits)
        comparison = make_comparison(
            candidate, pair.plan, found.outcome, found.why, threshold=threshold, now=self.now()
        )
        line = asdict(comparison)
        if self.with_text:  # the operator lets texts be written down, so that a person may judge
            stored, fresh = pair.texts()
            line["question"] = pair.plan.question
            line["stored_question"] = candidate.entry.question
            line["stored_answer"] = None if stored is None else stored[:MAX_TEXT]
            line["fresh_answer"] = None if fresh is None else fresh[:MAX_TEXT]
        await self._append(line)
        if (switched := self.journal.ledger.to_switch_off(rule)) is not None:
            log.warning(
                "rule %s: semantic hits are off: %d of the latest %d compared were wrong, "
                "more than its budget of %g %%",
                *(switched["rule"], switched["wrong"], switched["comparisons"]),
                switched["budget"] * 100,
                extra={"fields": {"event": "rule"}},
            )
            await self._append({"time": self.now(), **switched})
        return found.outcome.value

    async def _judge(self, pair: Pair) -> Judgement:
        # Long answers take tens of milliseconds.
        step = await asyncio.to_thread(pair.compare)
        if isinstance(step, Judgement):
            return step
        vectors = None
        if self.encoder is not None:
            try:
                vectors = await self.encoder.embed(step.texts)
            except SemanticUnavailableError as error:
                log.info("two answers could not be embedded: %s", error.reason)
        found = await asyncio.to_thread(step.next, vectors)
        question = pair.plan.question
        if found.outcome is not Outcome.UNSURE or self.judge is None or question is None:
            return found
        stored, fresh = pair.texts()
        if stored is None or fresh is None:
            return found
        return await self.judge.judge(question, stored, fresh, pair.fields) or found

    async def _bar_entry(self, key: bytes) -> None:
        """Bar an entry from semantic reuse."""
        try:
            await self.quarantine.add(key)
        except OSError as error:
            log.error("a wrong hit cannot be put in quarantine: %s", error)  # noqa: TRY400 - no trace
        if self.index is not None:
            with contextlib.suppress(SemanticUnavailableError):
                await self.index.remove([key])

    async def _append(self, line: dict[str, Any]) -> None:
        try:
            await self.journal.append(line)
        except OSError as error:
            log.warning("a comparison cannot be written down: %s", error.strerror or error)
