"""Texts that a grammar admits, chosen at random: what a model with any weights may generate."""

import queue
import random
import threading

from backend.grammar.compiler import CompilerLimits, GrammarCompiler
from backend.grammar.matcher import GrammarError, GrammarMatcher, allocate_bitmask
from backend.grammar.worker import GrammarLibrary, GrammarWorker, Vocabulary, WorkerError
from backend.scheduler.request import Grammar

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), 257, frozenset({END}))
# Taken rather than others, so that texts come to an end.
_CLOSING = frozenset(b'"}]') | {END}


class LocalWorker(GrammarWorker):
    """Compiles in this process."""

    def __init__(self, vocabulary: Vocabulary = BYTES, most_bytes: int = 2**26) -> None:
        super().__init__(lambda: vocabulary, most_bytes)
        self.library = GrammarLibrary(vocabulary, most_bytes)

    def compile(self, grammar, seconds):
        return self.library.compile(grammar)

    def restart(self):
        pass

    def close(self):
        pass


class HeldWorker(LocalWorker):
    """Compiles when a test says so."""

    def __init__(self):
        super().__init__()
        self._begun = queue.Queue()
        self._errors = queue.Queue()
        self.num_restarts = 0

    def compile(self, grammar, seconds):
        self._begun.put(grammar)
        error = self._errors.get(timeout=60)
        if error is not None:
            raise error
        return super().compile(grammar, seconds)

    def restart(self):
        self.num_restarts += 1

    def close(self):
        self.answer(WorkerError("it is closed"))

    def begun(self):
        """Wait for the next compilation and return its grammar."""
        return self._begun.get(timeout=60)

    @property
    def idle(self):
        return self._begun.empty()

    def answer(self, error=None):
        """Let the compilation under way go on, or fail."""
        self._errors.put(error)


class Walks:
    """Compiles grammars over single bytes, one at a time."""

    def __init__(self, limits: CompilerLimits | None = None) -> None:
        self._woken = threading.Event()
        worker = LocalWorker(BYTES, (limits or CompilerLimits()).cache_bytes)
        self.compiler = GrammarCompiler(lambda: BYTES, limits, worker)
        self.compiler.wake = self._woken.set

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        self._woken.clear()
        pending = self.compiler.compile(grammar)
        while not pending.done:  # the end of another's wait wakes too
            assert self._woken.wait(60)
            self._woken.clear()
        return pending.matcher()

    def text(self, grammar: Grammar, seed: int, *, most_tokens: int = 400) -> str | None:
        """One text, None if it did not end in time. Raises GrammarError."""
        matcher = self.matcher(grammar)
        draw = random.Random(seed)
        tokens: list[int] = []
        for _ in range(most_tokens):
            allowed = next_tokens(matcher, tokens)
            closing = [token for token in allowed if token in _CLOSING]
            token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
            if token == END:
                return bytes(tokens).decode()
            tokens.append(token)
        return None


def next_tokens(
    matcher: GrammarMatcher, tokens: list[int], vocab_size: int = BYTES.size
) -> list[int]:
    """The tokens that may follow ``tokens``."""
    matcher.accept_tokens(tokens[matcher.num_accepted :])
    bitmask = allocate_bitmask(1, vocab_size)
    matcher.fill_bitmask(bitmask, 0)
    if matcher.failure is not None:
        raise GrammarError(matcher.failure)
    words = bitmask[0].tolist()
    return [token for token in range(vocab_size) if words[token // 32] >> (token % 32) & 1]
