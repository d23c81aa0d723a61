"""Compiles grammars beside the engine's loop, and remembers them.

Bounded in every way: threads, grammars that wait, memory of those that are kept, and the time that
a request waits for one. A compilation cannot be broken off; who waits no longer is told so, and
the thread ends later. One that has not begun by then is not begun any more: whoever wants others
compiled would wait for what nobody wants. Threads run at low priority where the system lets them.
"""

import contextlib
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import torch

from backend.core.types import Grammar, GrammarKind
from backend.ports import OverloadedError
from backend.runtime.grammar import GrammarError, GrammarMatcher, explain

if TYPE_CHECKING:
    import xgrammar

logger = logging.getLogger(__name__)

_ANY_OBJECT = '{"type": "object"}'

# Enough for what is laid out in lines; without a bound a weak model adds spaces until the end.
_MOST_SPACES = 16


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """``seconds`` bounds a request's wait, ``cache_bytes`` what is kept."""

    threads: int = 2
    waiting: int = 64
    seconds: float = 30.0
    cache_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token, none for one without text, and the tokens that end an answer.

    ``size`` is the model's, which may be padded.
    """

    tokens: tuple[bytes, ...]
    size: int
    end_token_ids: frozenset[int]


@dataclass(slots=True, eq=False)
class PendingGrammar:
    """A grammar that was asked for; read it when ``done``."""

    grammar: Grammar
    done: bool = False
    begun: bool = False
    _compiled: "xgrammar.CompiledGrammar | None" = None
    _error: GrammarError | OverloadedError | None = None
    timer: threading.Timer | None = None

    def matcher(self) -> GrammarMatcher:
        """Return a new matcher. Raises GrammarError, OverloadedError where it had no turn."""
        if self._error is not None:
            raise self._error
        if self._compiled is None:
            raise RuntimeError("the grammar is not compiled yet")
        return GrammarMatcher(self._compiled)

    def settle(
        self,
        compiled: "xgrammar.CompiledGrammar | None",
        error: GrammarError | OverloadedError | None,
    ) -> bool:
        """Set what came of it. False: it was settled before."""
        if self.done:
            return False
        self._compiled, self._error = compiled, error
        self.done = True
        return True


class GrammarCompiler:
    """Called by the engine's loop alone; its own threads stay behind it."""

    def __init__(
        self, vocabulary: Callable[[], Vocabulary], limits: CompilerLimits | None = None
    ) -> None:
        """Nothing is loaded before the first grammar; then ``vocabulary`` is called once."""
        self.wake: Callable[[], None] = _nobody
        """Called from any thread when a pending grammar is done."""
        self._vocabulary = vocabulary
        self._limits = limits or CompilerLimits()
        self._lock = threading.Lock()
        self._ready: OrderedDict[Grammar, xgrammar.CompiledGrammar] = OrderedDict()
        self._ready_bytes = 0
        self._running: dict[Grammar, PendingGrammar] = {}
        self._jobs: queue.SimpleQueue[PendingGrammar] = queue.SimpleQueue()
        self._threads = 0
        self._library = _Library()

    def compile(self, grammar: Grammar) -> PendingGrammar:
        """Return the grammar, done if it is known. Raises OverloadedError."""
        with self._lock:
            compiled = self._ready.get(grammar)
            if compiled is not None:
                self._ready.move_to_end(grammar)
                pending = PendingGrammar(grammar)
                pending.settle(compiled, None)
                return pending
            running = self._running.get(grammar)
            if running is not None:
                return running
            if len(self._running) >= self._limits.waiting:
                raise OverloadedError("too many grammars are being compiled", 1.0)
            pending = self._running[grammar] = PendingGrammar(grammar)
            if self._threads < self._limits.threads:
                self._threads += 1
                threading.Thread(target=self._work, name="grammar", daemon=True).start()
            pending.timer = threading.Timer(self._limits.seconds, self._give_up, [pending])
            pending.timer.daemon = True
            pending.timer.start()
        self._jobs.put(pending)
        return pending

    def _work(self) -> None:
        self._library.load(self._vocabulary)
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            pending = self._jobs.get()
            with self._lock:
                if pending.done:
                    continue
                pending.begun = True
            try:
                compiled = self._library.compile(pending.grammar)
            except GrammarError as error:
                self._settle(pending, None, error)
            except Exception as error:  # noqa: BLE001  # told to who waits
                # A trace could show the client's schema.
                name = type(error).__name__
                logger.error("a grammar could not be compiled: %s", name)  # noqa: TRY400
                self._settle(pending, None, GrammarError("it could not be compiled"))
            else:
                self._settle(pending, compiled, None)

    def _settle(
        self,
        pending: PendingGrammar,
        compiled: "xgrammar.CompiledGrammar | None",
        error: GrammarError | None,
    ) -> None:
        with self._lock:
            self._running.pop(pending.grammar, None)
            if compiled is not None:
                self._keep(pending.grammar, compiled)
            settled = pending.settle(compiled, error)
        if pending.timer is not None:
            pending.timer.cancel()  # or each grammar would leave a thread until its time is over
        if settled:
            self.wake()

    def _give_up(self, pending: PendingGrammar) -> None:
        seconds = f"{self._limits.seconds:g}"
        error: GrammarError | OverloadedError
        with self._lock:
            if pending.begun:
                # It goes on counting: the thread is busy, and may yet have it ready for others.
                error = GrammarError(
                    f"it was not compiled within {seconds} seconds; make it simpler"
                )
            else:
                self._running.pop(pending.grammar, None)
                message = f"other grammars were being compiled for {seconds} seconds"
                error = OverloadedError(message, self._limits.seconds)
            settled = pending.settle(None, error)
        if settled:
            self.wake()

    def _keep(self, grammar: Grammar, compiled: "xgrammar.CompiledGrammar") -> None:
        self._ready[grammar] = compiled
        self._ready_bytes += _size(grammar, compiled)
        while self._ready_bytes > self._limits.cache_bytes and len(self._ready) > 1:
            self._ready_bytes -= _size(*self._ready.popitem(last=False))


def _nobody() -> None:
    """Wake nobody."""


class _Library:
    """xgrammar and its tables of the vocabulary, loaded when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: GrammarError | None = None
        self._vocabulary: Vocabulary | None = None
        self._compilers: dict[frozenset[int], xgrammar.GrammarCompiler] = {}

    def load(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Load, unless that was done; what goes wrong is raised by ``compile``."""
        with self._lock:
            if self._vocabulary is not None or self._error is not None:
                return
            try:
                import xgrammar  # noqa: F401, PLC0415  # seconds, so only who needs it waits

                loaded = vocabulary()
                if loaded.end_token_ids:
                    self._vocabulary = loaded
                else:
                    self._error = GrammarError("the model has no token that ends an answer")
            except Exception:
                logger.exception("grammars cannot be compiled")
                self._error = GrammarError("this server cannot compile grammars")

    def compile(self, grammar: Grammar) -> "xgrammar.CompiledGrammar":
        """Compile, and see that something conforms. Raises GrammarError."""
        if self._error is not None:
            raise self._error
        if self._vocabulary is None:
            raise RuntimeError("nothing is loaded yet")
        with self._lock:
            compiler = self._compiler(self._vocabulary, _unused_bytes(grammar.kind))
        try:
            compiled = _compile(compiler, grammar)
        except RuntimeError as error:
            raise GrammarError(explain(error)) from error
        matcher = GrammarMatcher(compiled)
        words = -(-self._vocabulary.size // 32)
        matcher.fill(torch.full((1, words), -1, dtype=torch.int32), 0)
        if matcher.failure is not None:
            raise GrammarError(matcher.failure)
        return compiled

    def _compiler(
        self, vocabulary: Vocabulary, unused: frozenset[int]
    ) -> "xgrammar.GrammarCompiler":
        compiler = self._compilers.get(unused)
        if compiler is None:
            compiler = self._compilers[unused] = _new_compiler(vocabulary, unused)
        return compiler


def _unused_bytes(kind: GrammarKind) -> frozenset[int]:
    """Return what tokens must not contain to be used at all.

    xgrammar lets control characters into JSON strings whose length is bounded, where they are no
    JSON. Between its parts JSON needs none but line ends; text may have tabs.
    """
    match kind:
        case GrammarKind.REGEX | GrammarKind.EBNF:
            return frozenset()
        case GrammarKind.TEXT_WITH_STRUCTURE:
            return frozenset(range(0x20)) - frozenset(b"\t\r\n")
        case _:
            return frozenset(range(0x20)) - frozenset(b"\r\n")


def _new_compiler(vocabulary: Vocabulary, unused: frozenset[int]) -> "xgrammar.GrammarCompiler":
    import xgrammar  # noqa: PLC0415  # loaded by now

    tokens = xgrammar.TokenizerInfo(
        [
            token if unused.isdisjoint(token) else b""
            for token in vocabulary.tokens[: vocabulary.size]
        ],
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=sorted(vocabulary.end_token_ids),
    )
    threads = max(1, min(8, (os.cpu_count() or 1) // 2))
    return xgrammar.GrammarCompiler(tokens, max_threads=threads, cache_enabled=False)


def _compile(compiler: "xgrammar.GrammarCompiler", grammar: Grammar) -> "xgrammar.CompiledGrammar":
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return compiler.compile_json_schema(_ANY_OBJECT, max_whitespace_cnt=_MOST_SPACES)
        case GrammarKind.JSON_SCHEMA:
            return compiler.compile_json_schema(grammar.source, max_whitespace_cnt=_MOST_SPACES)
        case GrammarKind.REGEX:
            return compiler.compile_regex(grammar.source)
        case GrammarKind.EBNF:
            return compiler.compile_grammar(grammar.source)
        case GrammarKind.STRUCTURE | GrammarKind.TEXT_WITH_STRUCTURE:
            return compiler.compile_structural_tag(grammar.source)
        case _:
            assert_never(grammar.kind)


def _size(grammar: Grammar, compiled: "xgrammar.CompiledGrammar") -> int:
    return len(grammar.source) + compiled.memory_size_bytes
