"""Compiles grammars beside the engine's loop, and remembers them.

Bounded in every way: grammars that wait, time and memory of each, memory of those that are kept,
and the time that a request waits for one.

Laws:
- Nothing is compiled in this process before it was tried in another (``grammar_trials``), where it
  can be broken off: at its deadline, or when nobody wants it any more.
- Quick grammars never wait for slow ones: what takes more than ``quick_seconds`` of computing is
  ended and begins again in a line of its own.
- In both lines tenants take turns, and no tenant has all places of the slow one.
"""

import contextlib
import logging
import os
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, assert_never

from backend.grammar.jobs import Job, Refused, Tried
from backend.grammar.library import SharedLibrary, Vocabulary
from backend.grammar.matcher import GrammarError
from backend.grammar.pending import PendingGrammar
from backend.grammar.trials import NoTrialsError, ProcessTrials, Trials
from backend.ports import OverloadedError
from backend.scheduler.fair_line import FairLine
from backend.scheduler.request import Grammar

if TYPE_CHECKING:
    import xgrammar

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """``seconds`` bounds a request's wait, ``cache_bytes`` what is kept, and each of it.

    So many threads serve each line.
    """

    quick_threads: int = 2
    slow_threads: int = 2
    quick_seconds: float = 0.5
    waiting: int = 64
    seconds: float = 30.0
    cache_bytes: int = 64 * 2**20


@dataclass(slots=True)
class _Lane:
    """A line and the threads that serve it; ``cpu_seconds`` bounds the computing of each."""

    name: str
    line: FairLine[PendingGrammar]
    most_threads: int
    most_per_tenant: int
    cpu_seconds: float | None
    num_threads: int = 0
    busy: Counter[str] = field(default_factory=Counter)

    def take(self) -> PendingGrammar | None:
        full = {each for each, count in self.busy.items() if count >= self.most_per_tenant}
        taken = self.line.take(full)
        return None if taken is None else taken[1]


class GrammarCompiler:
    """Called by the engine's loop alone; its own threads stay behind it."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        limits: CompilerLimits | None = None,
        trials: Trials | None = None,
    ) -> None:
        """Nothing is loaded before the first grammar; then ``vocabulary`` is called once."""
        self.wake: Callable[[], None] = _nobody
        """Called from any thread when a pending grammar is done."""
        self._limits = limits = limits or CompilerLimits()
        self._library = SharedLibrary(vocabulary, limits.cache_bytes)
        self._trials = trials or ProcessTrials(self._library.vocabulary, limits.cache_bytes)
        self._turn = threading.Condition()
        self._ready: OrderedDict[Grammar, xgrammar.CompiledGrammar] = OrderedDict()
        self._ready_bytes = 0
        self._open: dict[Grammar, PendingGrammar] = {}
        self._quick = _Lane(
            "quick",
            FairLine(limits.waiting),
            limits.quick_threads,
            limits.quick_threads,
            limits.quick_seconds,
        )
        self._slow = _Lane(
            "slow",
            FairLine(limits.waiting),
            limits.slow_threads,
            max(1, limits.slow_threads - 1),
            None,
        )

    def compile(self, grammar: Grammar, tenant: str = "") -> PendingGrammar:
        """Return the grammar, done if it is known; ``forget`` it if it is not wanted any more."""
        with self._turn:
            compiled = self._ready.get(grammar)
            if compiled is not None:
                self._ready.move_to_end(grammar)
                pending = PendingGrammar(grammar)
                pending.settle(compiled, None)
                return pending
            running = self._open.get(grammar)
            if running is not None:
                running.num_wanted += 1
                return running
            seconds = self._limits.seconds
            pending = PendingGrammar(grammar, tenant, deadline=monotonic() + seconds)
            self._open[grammar] = pending
            pending.timer = threading.Timer(seconds, self._give_up, [pending])
            pending.timer.daemon = True
            pending.timer.start()
            self._enter(self._quick, pending)
        return pending

    def forget(self, pending: PendingGrammar) -> None:
        """Take note that one of those who asked for it has left."""
        with self._turn:
            pending.num_wanted -= 1
            if not pending.num_wanted and not pending.done:
                self._end(pending, None, GrammarError("nobody wants it"))

    def close(self) -> None:
        """End the process that tries grammars; another would be started for the next one."""
        self._trials.close()

    def _enter(self, lane: _Lane, pending: PendingGrammar) -> None:
        refused = lane.line.add(pending.tenant, pending)
        if refused is not None:
            self._end(refused, None, OverloadedError("too many grammars are being compiled", 1.0))
        if lane.num_threads < lane.most_threads:
            lane.num_threads += 1
            threading.Thread(
                target=self._work, args=[lane], name=f"{lane.name}-grammars", daemon=True
            ).start()
        self._turn.notify_all()

    def _work(self, lane: _Lane) -> None:
        with contextlib.suppress(Exception):  # what is wrong, everybody who asks is told
            # Before the priority is lowered, which the process would inherit while it loads.
            self._trials.start()
            self._library.load()
        if sys.platform == "linux":  # elsewhere a thread's number may be another process's
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            with self._turn:
                while (pending := lane.take()) is None:
                    self._turn.wait()
                lane.busy[pending.tenant] += 1
            try:
                self._serve(lane, pending)
            finally:
                with self._turn:
                    lane.busy[pending.tenant] -= 1
                    lane.busy += Counter()  # without those that have none
                    self._turn.notify_all()

    def _serve(self, lane: _Lane, pending: PendingGrammar) -> None:
        try:
            outcome = self._try(lane, pending)
            if pending.done:
                return
            match outcome:
                case None if lane is self._quick:
                    with self._turn:
                        if not pending.done:
                            self._enter(self._slow, pending)
                case None:
                    # Its time is not over yet, so its memory or its stack was.
                    self._settle(pending, None, GrammarError("it is too large; make it simpler"))
                case Refused(reason):
                    self._settle(pending, None, GrammarError(reason))
                case Tried(serialised):
                    compiled = self._library.make(pending.grammar, serialised)
                    self._settle(pending, compiled, None)
                case _:
                    assert_never(outcome)
        except GrammarError as refused:
            self._settle(pending, None, refused)
        except NoTrialsError:
            logger.error("no grammar can be tried")  # noqa: TRY400  # a trace says no more
            problem = "grammars cannot be compiled at the moment"
            self._settle(pending, None, OverloadedError(problem, 1.0))
        except Exception as error:  # noqa: BLE001  # told to who waits
            # A trace could show the client's schema.
            name = type(error).__name__
            logger.error("a grammar could not be compiled: %s", name)  # noqa: TRY400
            self._settle(pending, None, GrammarError("it could not be compiled"))

    def _try(self, lane: _Lane, pending: PendingGrammar) -> Tried | Refused | None:
        # This side ends it in time; a second later it does so itself.
        seconds = max(0.0, pending.deadline - monotonic()) + 1.0
        quick = self._limits.quick_seconds
        trial = self._trials.begin(Job(pending.grammar, seconds, lane.cpu_seconds, quick))
        with self._turn:
            pending.trial = trial
            if pending.done:  # in the meantime
                trial.cancel()
        outcome = trial.result()
        with self._turn:
            pending.trial = None
        return outcome

    def _settle(
        self,
        pending: PendingGrammar,
        compiled: "xgrammar.CompiledGrammar | None",
        error: GrammarError | OverloadedError | None,
    ) -> None:
        with self._turn:
            if compiled is not None:
                self._keep(pending.grammar, compiled)
            self._end(pending, compiled, error)

    def _end(
        self,
        pending: PendingGrammar,
        compiled: "xgrammar.CompiledGrammar | None",
        error: GrammarError | OverloadedError | None,
    ) -> None:
        if not pending.settle(compiled, error):
            return
        self._open.pop(pending.grammar, None)
        for lane in (self._quick, self._slow):
            lane.line.leave(pending.tenant, pending)
        if pending.trial is not None:
            pending.trial.cancel()
        if pending.timer is not None:
            pending.timer.cancel()  # or each grammar would leave a thread until its time is over
        self.wake()

    def _give_up(self, pending: PendingGrammar) -> None:
        seconds = f"{self._limits.seconds:g}"
        with self._turn:
            error: GrammarError | OverloadedError
            if pending.trial is None:
                message = f"other grammars were being compiled for {seconds} seconds"
                error = OverloadedError(message, self._limits.seconds)
            else:
                error = GrammarError(
                    f"it was not compiled within {seconds} seconds; make it simpler"
                )
            self._end(pending, None, error)

    def _keep(self, grammar: Grammar, compiled: "xgrammar.CompiledGrammar") -> None:
        if grammar in self._ready:
            return
        self._ready[grammar] = compiled
        self._ready_bytes += _size(grammar, compiled)
        while self._ready_bytes > self._limits.cache_bytes:
            self._ready_bytes -= _size(*self._ready.popitem(last=False))


def _nobody() -> None:
    """Wake nobody."""


def _size(grammar: Grammar, compiled: "xgrammar.CompiledGrammar") -> int:
    return len(grammar.source) + compiled.memory_size_bytes
