"""Compiles grammars beside the engine's loop, one at a time, and caches them.

Bounded: how many wait, how long one waits and how long it compiles, and the memory of the cache.
"""

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from backend.grammar.matcher import CompiledGrammar, GrammarError, GrammarMatcher
from backend.grammar.worker import GrammarWorker, Vocabulary, WorkerError
from backend.ports import OverloadedError
from backend.scheduler.request import Grammar

_Outcome: TypeAlias = CompiledGrammar | GrammarError | OverloadedError

logger = logging.getLogger(__name__)

_NOT_NOW = "grammars cannot be compiled at the moment"


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """``wait_seconds`` bound the wait for a turn, ``compile_seconds`` the turn.

    ``cache_bytes`` bound all compiled grammars together, and each of them.
    """

    waiting: int = 64
    wait_seconds: float = 30.0
    compile_seconds: float = 30.0
    cache_bytes: int = 64 * 2**20


@dataclass(slots=True, eq=False)
class PendingGrammar:
    """A grammar that was asked for; ``matcher`` may be called when it is ``done``."""

    grammar: Grammar
    asked: float = 0.0
    num_wanted: int = 1
    started: bool = False
    outcome: _Outcome | None = None

    @property
    def done(self) -> bool:
        """Whether it has been compiled or refused."""
        return self.outcome is not None

    def matcher(self) -> GrammarMatcher:
        """Return a new matcher. Raises GrammarError, OverloadedError where it had no turn."""
        if self.outcome is None:
            raise RuntimeError("the grammar is not compiled yet")
        if isinstance(self.outcome, GrammarError | OverloadedError):
            raise self.outcome
        return GrammarMatcher(self.outcome)


class GrammarCompiler:
    """Called by the engine's loop, which never waits; one thread behind it waits for the worker."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        limits: CompilerLimits | None = None,
        worker: GrammarWorker | None = None,
    ) -> None:
        """Nothing is loaded before the first grammar; then ``vocabulary`` is called once."""
        self.wake: Callable[[], None] = lambda: None
        """Called from the thread when a pending grammar is done."""
        self._limits = limits = limits or CompilerLimits()
        self._worker = worker or GrammarWorker(vocabulary, limits.cache_bytes)
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._serving = False
        self._compiling: dict[Grammar, PendingGrammar] = {}
        """In order of arrival. The thread takes the first, so who is forgotten leaves nothing."""
        self._cache: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._cache_bytes = 0

    def compile(self, grammar: Grammar) -> PendingGrammar:
        """Return the grammar, done if it is cached; ``forget`` it if it is not wanted any more."""
        with self._lock:
            compiled = self._cache.get(grammar)
            if compiled is not None:
                self._cache.move_to_end(grammar)
                return PendingGrammar(grammar, outcome=compiled)
            pending = self._compiling.get(grammar)
            if pending is not None:
                pending.num_wanted += 1
                return pending
            if len(self._compiling) >= self._limits.waiting:
                error = OverloadedError("too many grammars are being compiled", 1.0)
                return PendingGrammar(grammar, outcome=error)
            pending = self._compiling[grammar] = PendingGrammar(grammar, monotonic())
            self._serve_next()
            self._watch()
        return pending

    def forget(self, pending: PendingGrammar) -> None:
        """Take note that one of those who asked for it has left.

        A compilation that has begun goes on: the client may ask again, and a new worker is dearer.
        """
        with self._lock:
            pending.num_wanted -= 1
            if not pending.num_wanted and pending in self._waiting():
                del self._compiling[pending.grammar]

    def close(self) -> None:
        """Refuse all that wait and end the worker; the next grammar would start another."""
        with self._lock:
            for pending in self._waiting():
                self._settle(pending, OverloadedError(_NOT_NOW, 1.0))
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._worker.close()

    def _waiting(self) -> list[PendingGrammar]:
        return [pending for pending in self._compiling.values() if not pending.started]

    def _settle(self, pending: PendingGrammar, outcome: _Outcome) -> None:
        del self._compiling[pending.grammar]
        pending.outcome = outcome

    def _watch(self) -> None:
        """See to it that the first one that waits is looked at when its time is over."""
        waiting = self._waiting()
        if self._timer is None and waiting:
            left = waiting[0].asked + self._limits.wait_seconds - monotonic()
            self._timer = threading.Timer(max(0.0, left), self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        """Refuse those that waited too long, though the thread itself waits for the worker."""
        seconds = self._limits.wait_seconds
        with self._lock:
            for pending in self._waiting():
                waited = monotonic() - pending.asked
                if waited >= seconds:
                    problem = f"other grammars were being compiled for {waited:.1f} seconds"
                    self._settle(pending, OverloadedError(problem, seconds))
            self._timer = None
            self._watch()
        self.wake()

    def _serve_next(self) -> None:
        if not self._serving and self._compiling:
            self._serving = True
            self._thread.submit(self._serve)

    def _serve(self) -> None:
        try:
            with self._lock:
                waiting = self._waiting()
                if not waiting:
                    return
                pending = waiting[0]
                pending.started = True
            outcome = self._outcome(pending)
            with self._lock:
                self._settle(pending, outcome)
                if not isinstance(outcome, GrammarError | OverloadedError):
                    self._keep(pending.grammar, outcome)
            self.wake()
            if isinstance(outcome, GrammarError):  # it may have cost the worker its life
                with contextlib.suppress(WorkerError):  # the next grammar tries again
                    self._worker.restart()
        finally:
            with self._lock:
                self._serving = False
                self._serve_next()

    def _outcome(self, pending: PendingGrammar) -> _Outcome:
        try:
            return self._worker.compile(pending.grammar, self._limits.compile_seconds)
        except GrammarError as error:
            return error
        except WorkerError as error:
            logger.error("no grammar can be compiled: %s", error)  # noqa: TRY400  # a trace says no more
            return OverloadedError(_NOT_NOW, 1.0)
        except Exception as error:  # noqa: BLE001  # told to who waits
            # A trace could show the client's schema.
            logger.error("a grammar could not be compiled: %s", type(error).__name__)  # noqa: TRY400
            return GrammarError("it could not be compiled")

    def _keep(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        self._cache[grammar] = compiled
        self._cache_bytes += _size(grammar, compiled)
        while self._cache_bytes > self._limits.cache_bytes:
            self._cache_bytes -= _size(*self._cache.popitem(last=False))


def _size(grammar: Grammar, compiled: CompiledGrammar) -> int:
    return len(grammar.source) + compiled.grammar.memory_size_bytes
