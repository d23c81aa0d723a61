"""xgrammar and its tables of a vocabulary: from a grammar to one that masks tokens.

Law: whatever is returned has been seen to admit a first token, and keeps to the bound on memory.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import torch

from backend.grammar.matcher import GrammarError, GrammarMatcher, explain
from backend.scheduler.request import Grammar, GrammarKind

if TYPE_CHECKING:
    import xgrammar

_ANY_OBJECT = '{"type": "object"}'

# Enough for what is laid out in lines; without a bound a weak model adds spaces until the end.
_MOST_SPACES = 16


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token, none for one without text, and the tokens that end an answer.

    ``size`` is the model's, which may be padded.
    """

    tokens: tuple[bytes, ...]
    size: int
    end_token_ids: frozenset[int]


class GrammarLibrary:
    """Of one vocabulary; not thread-safe where it says ``prepare``."""

    def __init__(self, vocabulary: Vocabulary, most_bytes: int) -> None:
        """``most_bytes`` bound the memory of one compiled grammar."""
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._tables: dict[frozenset[int], xgrammar.TokenizerInfo] = {}

    def prepare(self, kind: GrammarKind) -> "xgrammar.TokenizerInfo":
        """Return the tables for grammars of ``kind``, made when they are first needed."""
        unused = _unused_bytes(kind)
        tables = self._tables.get(unused)
        if tables is None:
            tables = self._tables[unused] = _tables(self._vocabulary, unused)
        return tables

    def compile(self, grammar: Grammar) -> "xgrammar.CompiledGrammar":
        """Compile. Raises GrammarError."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        threads = max(1, min(8, (os.cpu_count() or 1) // 2))
        tables = self.prepare(grammar.kind)
        compiler = xgrammar.GrammarCompiler(tables, max_threads=threads, cache_enabled=False)
        try:
            compiled = _compile(compiler, grammar)
        except RuntimeError as error:
            raise GrammarError(explain(error)) from error
        return self._checked(compiled)

    def restore(self, grammar: Grammar, serialised: str) -> "xgrammar.CompiledGrammar":
        """Return what another process compiled and checked."""
        import xgrammar  # noqa: PLC0415  # loaded by now

        return xgrammar.CompiledGrammar.deserialize_json(serialised, self.prepare(grammar.kind))

    def _checked(self, compiled: "xgrammar.CompiledGrammar") -> "xgrammar.CompiledGrammar":
        size = compiled.memory_size_bytes
        if size > self._most_bytes:
            allowed = f"of which {self._most_bytes} are allowed"
            raise GrammarError(f"compiled it has {size} bytes, {allowed}; make it simpler")
        matcher = GrammarMatcher(compiled)
        words = -(-self._vocabulary.size // 32)
        matcher.fill(torch.full((1, words), -1, dtype=torch.int32), 0)
        if matcher.failure is not None:
            raise GrammarError(matcher.failure)
        return compiled


class SharedLibrary:
    """The library of a process, for several threads; loaded when it is first needed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], most_bytes: int) -> None:
        """``vocabulary`` is called once; see ``GrammarLibrary``."""
        self._lock = threading.Lock()
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._known: Vocabulary | None = None
        self._loaded: GrammarLibrary | None = None

    def vocabulary(self) -> Vocabulary:
        """Return what there is to choose from. Raises GrammarError where nothing would end."""
        with self._lock:
            if self._known is None:
                self._known = self._vocabulary()
            if not self._known.end_token_ids:
                raise GrammarError("the model has no token that ends an answer")
            return self._known

    def load(self) -> GrammarLibrary:
        """Load all that takes long. Raises GrammarError."""
        vocabulary = self.vocabulary()
        with self._lock:
            if self._loaded is None:
                import xgrammar  # noqa: F401, PLC0415  # seconds, so only who needs it waits

                self._loaded = GrammarLibrary(vocabulary, self._most_bytes)
            return self._loaded

    def make(self, grammar: Grammar, serialised: str | None) -> "xgrammar.CompiledGrammar":
        """Compile what was found to be quick, or restore what was not. Raises GrammarError."""
        library = self.load()
        with self._lock:
            library.prepare(grammar.kind)
        if serialised is None:
            return library.compile(grammar)
        return library.restore(grammar, serialised)


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


def _tables(vocabulary: Vocabulary, unused: frozenset[int]) -> "xgrammar.TokenizerInfo":
    import xgrammar  # noqa: PLC0415  # loaded by now

    return xgrammar.TokenizerInfo(
        [
            token if unused.isdisjoint(token) else b""
            for token in vocabulary.tokens[: vocabulary.size]
        ],
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=sorted(vocabulary.end_token_ids),
    )


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
