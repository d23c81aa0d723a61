"""xgrammar in a process of its own, which can be killed, and the engine's end of it.

A compilation in a thread cannot be stopped, and what it does to memory and stack hits the whole
engine. So a worker compiles, proves that a first token is admitted and serialises; the engine only
restores. The worker is killed at a deadline, dies of its own memory or stack, and is started anew.

The two ends talk over a socket pair: the vocabulary, then "ready"; then for each grammar a
serialised one or the reason why there is none. The worker ends with the other end of its socket.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import TYPE_CHECKING, Any, assert_never

from backend.grammar.matcher import (
    CharacterTokens,
    CompiledGrammar,
    GrammarError,
    GrammarMatcher,
    allocate_bitmask,
)
from backend.process import end_with_parent
from backend.scheduler.request import MOST_SPACES, Grammar, GrammarKind

if TYPE_CHECKING:
    import xgrammar

_INSTALL = "pip install 'refrain-gateway[structured]'"
_START_SECONDS = 60.0
_MOST_DATA = 512 * 2**20
"""Memory that compilations may take beyond what the worker begins with."""
_MOST_STACK = 4 * 2**20
"""Half of what threads have: a matcher that was tried here does not overflow the engine's."""
_MOST_SERIALISED = 128 * 2**20
_MOST_CHARACTERS = 300
"""So much of a complaint is passed on: some of xgrammar's repeat the whole grammar."""
# Within one token; see CharacterTokens for what a token begins and another ends.
_NO_CHARACTER = re.compile(
    rb"\xe0[^\xa0-\xbf]|\xed[^\x80-\x9f]|\xf0[^\x90-\xbf]|\xf4[^\x80-\x8f]", re.DOTALL
)
_TOO_LARGE = "it is too large; make it simpler"


class WorkerError(Exception):
    """The worker cannot be started, or did not stay."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token, none for one without text, and the tokens that end an answer.

    ``size`` is the model's, which may be padded. ``special`` tokens have no text, by their names.
    """

    tokens: tuple[bytes, ...]
    size: int
    end_token_ids: frozenset[int]
    special: Mapping[str, int] = field(default_factory=dict)


class GrammarLibrary:
    """xgrammar and its tables of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, most_bytes: int) -> None:
        """``most_bytes`` bound the memory of one compiled grammar."""
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._tables: dict[object, xgrammar.TokenizerInfo] = {}
        self._characters = CharacterTokens(vocabulary.tokens, vocabulary.size)

    def tables(self, grammar: Grammar) -> "xgrammar.TokenizerInfo":
        """Return the tables for grammars of its kind and markup, made when first needed."""
        unused = _unused_bytes(grammar.kind)
        special = self._vocabulary.special
        spelled = {special[tag]: tag.encode() for tag in grammar.markup if tag in special}
        key = unused, frozenset(spelled)
        tables = self._tables.get(key)
        if tables is None:
            tables = self._tables[key] = _tables(self._vocabulary, unused, spelled)
        return tables

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, and see that a first token is admitted. Raises GrammarError."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        threads = max(1, min(8, (os.cpu_count() or 1) // 2))
        tables = self.tables(grammar)
        compiler = xgrammar.GrammarCompiler(tables, max_threads=threads, cache_enabled=False)
        try:
            compiled = CompiledGrammar(_compile(compiler, grammar), self._characters)
        except RuntimeError as error:
            raise GrammarError(_complaint(error)) from error
        size = compiled.grammar.memory_size_bytes
        if size > self._most_bytes:
            allowed = f"of which {self._most_bytes} are allowed"
            raise GrammarError(f"compiled it has {size} bytes, {allowed}; make it simpler")
        matcher = GrammarMatcher(compiled)
        matcher.accept_text(grammar.passing)
        matcher.fill_bitmask(allocate_bitmask(1, self._vocabulary.size), 0)
        if matcher.failure is not None:
            raise GrammarError(matcher.failure)
        return compiled

    def restore(self, grammar: Grammar, serialised: str) -> CompiledGrammar:
        """Return what another process compiled."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        tables = self.tables(grammar)
        compiled = xgrammar.CompiledGrammar.deserialize_json(serialised, tables)
        return CompiledGrammar(compiled, self._characters)


class GrammarWorker:
    """The engine's end of a process that is started for the first grammar, and after its death.

    ``compile`` belongs to one thread; ``close`` may be called from any.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], most_bytes: int) -> None:
        """``vocabulary`` is called once; ``most_bytes`` bound one compiled grammar."""
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._library: tuple[Vocabulary, GrammarLibrary] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._num_closed = 0

    def compile(self, grammar: Grammar, seconds: float) -> CompiledGrammar:
        """Compile within ``seconds``; starts are not counted. Raises GrammarError, WorkerError.

        If something else ends the process, another compiles the grammar, once.
        """
        vocabulary, library = self._loaded()
        num_closed = self._num_closed
        process, connection = self._running(vocabulary)
        began = monotonic()
        try:
            try:
                serialised, reason = _exchange(process, connection, grammar, seconds)
            except WorkerError:
                if self._num_closed != num_closed:
                    raise
                left = seconds - (monotonic() - began)
                process, connection = self._running(vocabulary)
                serialised, reason = _exchange(process, connection, grammar, left)
        except TimeoutError:
            problem = f"it was not compiled within {seconds:g} seconds; make it simpler"
            raise GrammarError(problem) from None
        if serialised is None:
            raise GrammarError(reason)
        return library.restore(grammar, serialised)

    def restart(self) -> None:
        """Replace a process that ended, before the next grammar. Raises WorkerError."""
        if self._library is not None and self._process is not None:
            self._running(self._library[0])

    def close(self) -> None:
        """Kill the process; a compilation that is under way raises WorkerError."""
        self._num_closed += 1
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _loaded(self) -> tuple[Vocabulary, GrammarLibrary]:
        if find_spec("xgrammar") is None:
            raise GrammarError(f"xgrammar is not installed here: {_INSTALL}")
        if self._library is None:
            vocabulary = self._vocabulary()
            self._library = vocabulary, GrammarLibrary(vocabulary, self._most_bytes)
        if not self._library[0].end_token_ids:
            raise GrammarError("the model has no token that ends an answer")
        return self._library

    def _running(
        self, vocabulary: Vocabulary
    ) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
        if self._process is None or self._connection is None or self._process.poll() is not None:
            if self._connection is not None:
                self._connection.close()
            ours, theirs = Pipe()
            code = f"from backend.grammar.worker import main; main({theirs.fileno()})"
            with theirs:
                process = subprocess.Popen(  # noqa: S603  # our own module
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            self._process, self._connection = process, ours
            try:
                _exchange(process, ours, (vocabulary, self._most_bytes), _START_SECONDS)
            except (TimeoutError, GrammarError):
                raise WorkerError("it did not start") from None
        return self._process, self._connection


def _exchange(
    process: subprocess.Popen[bytes],
    connection: "Connection[Any, Any]",
    message: object,
    seconds: float,
) -> Any:
    """Send ``message`` and return the answer, or kill the process.

    Raises TimeoutError after ``seconds``, GrammarError where the message killed the worker,
    WorkerError where something else did.
    """
    end = threading.Lock()  # whoever takes it ends the exchange: a late timer must kill nothing

    def expire() -> None:
        if end.acquire(blocking=False):
            process.kill()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        connection.send(message)
        answer = connection.recv()
        if not end.acquire(blocking=False):
            raise EOFError  # noqa: TRY301  # it came as the process was killed
    except (EOFError, OSError):
        expired = not end.acquire(blocking=False)
        process.kill()
        code = process.wait()
        if expired:
            raise TimeoutError from None
        if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            raise GrammarError(_TOO_LARGE) from None
        raise WorkerError(f"the worker ended with {code}") from None
    else:
        return answer
    finally:
        end.acquire(blocking=False)
        timer.cancel()


def main(descriptor: int) -> None:
    """Serve the socket ``descriptor`` until its other end is closed."""
    end_with_parent(descriptor)
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123  # no file
        score.write("1000")  # the worker should be killed before the engine is
    with contextlib.suppress(EOFError, BrokenPipeError):
        connection: Connection[Any, Any] = Connection(descriptor)
        library = GrammarLibrary(*connection.recv())
        for kind in GrammarKind:
            library.tables(Grammar(kind))
        _limit()
        connection.send("ready")
        while True:
            connection.send(_answer(library, connection.recv()))


def _limit() -> None:
    """Bound memory and stack, and silence xgrammar, whose warnings repeat a client's schema."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for what, soft in (
        (resource.RLIMIT_STACK, _MOST_STACK),
        (resource.RLIMIT_DATA, _data_bytes() + _MOST_DATA),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def _data_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/self/statm") as sizes:  # noqa: PTH123  # no file
        return int(sizes.read().split()[5]) * resource.getpagesize()
    return 2**32


def _answer(library: GrammarLibrary, grammar: Grammar) -> tuple[str | None, str]:
    try:
        serialised: str = library.compile(grammar).grammar.serialize_json()
    except GrammarError as error:
        return None, str(error)
    except MemoryError:
        return None, _TOO_LARGE
    except Exception:  # noqa: BLE001  # a trace could show the client's schema
        return None, "it could not be compiled"
    if len(serialised) > _MOST_SERIALISED:
        return None, _TOO_LARGE
    return serialised, ""


def _complaint(error: Exception) -> str:
    """Return xgrammar's complaint without the place in its source that made it."""
    if "bad_alloc" in str(error):
        return _TOO_LARGE
    text = re.sub(r"^(?:\[[\d:]+\] )?\S+\.cc:\d+: ", "", str(error)).strip()
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _unused_bytes(kind: GrammarKind) -> frozenset[int]:
    """Return the bytes that JSON never has under grammars of ``kind``.

    xgrammar lets control characters into JSON strings whose length is bounded, where they are no
    JSON. Between its parts JSON needs none but line ends.
    """
    if kind in (GrammarKind.REGEX, GrammarKind.EBNF):
        return frozenset()
    return frozenset(range(0x20)) - frozenset(b"\r\n")


_NO_JSON = b"\\\0"
"""Fits no place of JSON, and any of a free text: an escape that there is not."""


def _tables(
    vocabulary: Vocabulary, unused: frozenset[int], spelled: Mapping[int, bytes]
) -> "xgrammar.TokenizerInfo":
    import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

    def text_of(token: bytes) -> bytes:
        if _NO_CHARACTER.search(token):
            return b""
        if unused.isdisjoint(token):
            return token
        return b"".join(_NO_JSON if byte in unused else bytes([byte]) for byte in token)

    return xgrammar.TokenizerInfo(
        [
            spelled.get(number, text_of(token))
            for number, token in enumerate(vocabulary.tokens[: vocabulary.size])
        ],
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=sorted(vocabulary.end_token_ids),
    )


def _behind(before: str, grammar: Grammar) -> str:
    """Return the structural tag of ``grammar`` behind the formats of ``before``."""
    source: Any = grammar.source
    match grammar.kind:
        case GrammarKind.JSON_OBJECT | GrammarKind.JSON_SCHEMA:
            schema = json.loads(source or '{"type": "object"}')
            last = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACES}
        case GrammarKind.REGEX:
            last = {"type": "regex", "pattern": source}
        case GrammarKind.EBNF:
            last = {"type": "grammar", "grammar": source}
        case GrammarKind.STRUCTURE | GrammarKind.TEXT_WITH_STRUCTURE:
            last = json.loads(source)["format"]
        case _:
            assert_never(grammar.kind)
    elements = [*json.loads(before), last]
    form = {"type": "sequence", "elements": elements}
    return json.dumps({"type": "structural_tag", "format": form})


def _compile(compiler: "xgrammar.GrammarCompiler", grammar: Grammar) -> "xgrammar.CompiledGrammar":
    if grammar.before:
        return compiler.compile_structural_tag(_behind(grammar.before, grammar))
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return compiler.compile_json_schema(
                '{"type": "object"}', max_whitespace_cnt=MOST_SPACES
            )
        case GrammarKind.JSON_SCHEMA:
            return compiler.compile_json_schema(grammar.source, max_whitespace_cnt=MOST_SPACES)
        case GrammarKind.REGEX:
            return compiler.compile_regex(grammar.source)
        case GrammarKind.EBNF:
            return compiler.compile_grammar(grammar.source)
        case GrammarKind.STRUCTURE | GrammarKind.TEXT_WITH_STRUCTURE:
            return compiler.compile_structural_tag(grammar.source)
        case _:
            assert_never(grammar.kind)
