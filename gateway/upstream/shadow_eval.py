"""Compares fresh answers with those found by meaning, behind every request's back.

Law: nobody waits for a comparison, and none fails a request. One is made at a time, and of those
that wait there are few: under load comparisons are dropped, not requests held up. A hit that was
served and is found wrong leaves the semantic index at once, whatever else fails.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from gateway.cache.plan import Plan
from gateway.cache.ports import Quarantine
from gateway.cache.shadow_eval.comparison import Check, Comparison, Kind, compared
from gateway.cache.shadow_eval.journal import ComparisonJournal
from gateway.protocol.headers import Fields
from gateway.semantic.compare.answers import (
    Answer,
    Judgement,
    NeedsVectors,
    Outcome,
    compare,
    read_answer,
)
from gateway.semantic.ports import LocalEncoder, SemanticIndex, SemanticUnavailableError
from gateway.upstream.judge_model import Judge

log = logging.getLogger(__name__)

MOST_WAITING = 64
MOST_BYTES = 32 * 2**20
"""Of the answers that wait."""
MOST_TEXT = 4000
"""Characters of an answer that are written down."""
SECONDS = 30.0
"""The longest that one comparison may take."""


class Pair(NamedTuple):
    """A check and the fresh answer, JSON, to the request of this plan."""

    check: Check
    plan: Plan
    fresh: bytes
    fields: Fields

    @property
    def size(self) -> int:
        """Bytes of both answers."""
        return len(self.check.entry.result) + len(self.fresh)


@dataclass(slots=True)
class Checks:
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
        self, check: Check, plan: Plan, fresh: bytes, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Have the fresh answer to a request compared, soon; ``fields`` are its headers."""
        if self._closed:
            return
        pair = Pair(check, plan, fresh, tuple(fields))
        held = sum(each.size for each in self._waiting)
        if len(self._waiting) >= MOST_WAITING or held + pair.size > MOST_BYTES:
            self.count(plan.decision.rule, check.kind.value, "dropped")
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
            self.count(pair.plan.decision.rule, pair.check.kind.value, outcome)

    async def _compare(self, pair: Pair) -> str:
        told = await self._told(pair)
        check = pair.check
        if check.kind is Kind.SERVED and told.outcome is Outcome.DIFFERENT:
            await self._take_out(check.entry.key)
        comparison = compared(
            *(check, pair.plan, told.outcome, told.why),
            threshold=self.threshold(pair.plan.decision.max_wrong_hits),
            now=self.now(),
        )
        await self._write_down(comparison, pair)
        return told.outcome.value

    async def _told(self, pair: Pair) -> Judgement:
        # Long answers take tens of milliseconds.
        step = await asyncio.to_thread(_read_beside, pair)
        if isinstance(step, Judgement):
            return step
        told = await asyncio.to_thread(step.next, await self._vectors(step))
        if told.outcome is Outcome.UNSURE and self.judge is not None:
            return await self._judged(self.judge, pair) or told
        return told

    async def _judged(self, judge: Judge, pair: Pair) -> Judgement | None:
        stored, fresh = _answers(pair)
        if pair.plan.question is None or stored is None or fresh is None:
            return None
        return await judge.judged(pair.plan.question, stored.text, fresh.text, pair.fields)

    async def _vectors(self, step: NeedsVectors) -> Any:
        if self.encoder is None:
            return None
        try:
            return await self.encoder.embed(step.texts)
        except SemanticUnavailableError as error:
            log.info("two answers could not be embedded: %s", error.reason)
            return None

    async def _take_out(self, key: bytes) -> None:
        """Bar an entry from semantic reuse."""
        try:
            await self.quarantine.add(key)
        except OSError as error:
            log.error("a wrong hit cannot be put in quarantine: %s", error)  # noqa: TRY400 - no trace
        if self.index is not None:
            with contextlib.suppress(SemanticUnavailableError):
                await self.index.remove([key])

    async def _write_down(self, comparison: Comparison, pair: Pair) -> None:
        line = comparison.line()
        if self.with_text:
            line |= _texts(pair)
        await self._append(line)
        if (switched := self.journal.to_switch_off(comparison.rule)) is not None:
            _alert(switched)
            await self._append({"time": self.now(), **switched})

    async def _append(self, line: dict[str, Any]) -> None:
        try:
            await self.journal.append(line)
        except OSError as error:
            log.warning("a comparison cannot be written down: %s", error.strerror or error)


def _read_beside(pair: Pair) -> Judgement | NeedsVectors:
    return compare(orjson.loads(pair.check.entry.result), orjson.loads(pair.fresh))


def _answers(pair: Pair) -> tuple[Answer | None, Answer | None]:
    stored, fresh = orjson.loads(pair.check.entry.result), orjson.loads(pair.fresh)
    return read_answer(stored), read_answer(fresh)


def _texts(pair: Pair) -> dict[str, str | None]:
    """Return what the operator lets be written down, so that a person may judge."""
    stored, fresh = _answers(pair)
    return {
        "question": pair.plan.question,
        "stored_question": pair.check.entry.question,
        "stored_answer": None if stored is None else stored.text[:MOST_TEXT],
        "fresh_answer": None if fresh is None else fresh.text[:MOST_TEXT],
    }


def _alert(line: dict[str, Any]) -> None:
    log.warning(
        "rule %s: semantic hits are off: %d of the latest %d compared were wrong, "
        "more than its budget of %g %%",
        line["rule"],
        line["wrong"],
        line["comparisons"],
        line["budget"] * 100,
    )
