"""Texts that a grammar admits, chosen at random: what a model with any weights may generate."""

import queue
import random
import threading

import torch

from backend.grammar.compiler import CompilerLimits, GrammarCompiler
from backend.grammar.jobs import Tried
from backend.grammar.library import Vocabulary
from backend.grammar.matcher import GrammarError, GrammarMatcher
from backend.scheduler.request import Grammar

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), 257, frozenset({END}))
# Taken rather than others, so that texts come to an end.
_CLOSING = frozenset(b'"}]') | {END}


class NoTrials:
    """Finds every grammar quick, so that it is compiled in this process alone."""

    def start(self):
        pass

    def close(self):
        pass

    def begin(self, job):
        return self

    def result(self):
        return Tried(None)

    def cancel(self):
        pass


class HeldTrials:
    """Trials that end when a test says so."""

    def __init__(self):
        self._begun = queue.Queue()

    def start(self):
        pass

    def close(self):
        pass

    def begin(self, job):
        trial = HeldTrial(job)
        self._begun.put(trial)
        return trial

    def next(self):
        return self._begun.get(timeout=60)

    @property
    def idle(self):
        return self._begun.empty()


class HeldTrial:
    def __init__(self, job):
        self.job = job
        self.cancelled = threading.Event()
        self._outcomes = queue.Queue()

    def result(self):
        outcome = self._outcomes.get(timeout=60)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def cancel(self):
        self.cancelled.set()
        self._outcomes.put(None)

    def answer(self, outcome):
        self._outcomes.put(outcome)


class Walks:
    """Compiles grammars over single bytes, one at a time."""

    def __init__(self, limits: CompilerLimits | None = None) -> None:
        self._woken = threading.Event()
        self.compiler = GrammarCompiler(lambda: BYTES, limits, NoTrials())
        self.compiler.wake = self._woken.set

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        self._woken.clear()
        pending = self.compiler.compile(grammar)
        if not pending.done:
            assert self._woken.wait(60)
        return pending.matcher()

    def text(self, grammar: Grammar, seed: int, *, most_tokens: int = 400) -> str | None:
        """One text, None if it did not end in time. Raises GrammarError."""
        matcher = self.matcher(grammar)
        draw = random.Random(seed)
        tokens: list[int] = []
        for _ in range(most_tokens):
            # xgrammar admits bytes that would be surrogates; detokenizers replace them.
            allowed = [token for token in next_tokens(matcher, tokens) if token != 0xED]
            closing = [token for token in allowed if token in _CLOSING]
            token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
            if token == END:
                return bytes(tokens).decode()
            tokens.append(token)
        return None


def next_tokens(matcher: GrammarMatcher, tokens: list[int]) -> list[int]:
    """The tokens that may follow ``tokens``."""
    matcher.follow(tokens)
    masks = torch.full((1, 9), -1, dtype=torch.int32)
    matcher.fill(masks, 0)
    if matcher.failure is not None:
        raise GrammarError(matcher.failure)
    words = masks[0].tolist()
    return [token for token in range(257) if words[token // 32] >> (token % 32) & 1]
