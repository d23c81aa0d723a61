"""Texts that a grammar admits, chosen at random: what a model with any weights may generate."""

import random
import threading

import torch

from backend.core.types import Grammar
from backend.runtime.grammar import GrammarError, GrammarMatcher
from backend.runtime.grammar_compiler import CompilerLimits, GrammarCompiler, Vocabulary

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), 257, frozenset({END}))
# Taken rather than others, so that texts come to an end.
_CLOSING = frozenset(b'"}]') | {END}


class Walks:
    """Compiles grammars over single bytes, one at a time."""

    def __init__(self, limits: CompilerLimits | None = None) -> None:
        self._woken = threading.Event()
        self.compiler = GrammarCompiler(lambda: BYTES, limits)
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
