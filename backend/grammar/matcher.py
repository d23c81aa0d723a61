"""What the next token of a sequence may be, under its grammar.

A matcher belongs to one sequence. It takes each token of its text once and gives a bitmask for the
next: one bit a token, least significant first, in words of 32 bits. Preemption does not touch it,
because a preempted sequence keeps its tokens.
"""

import time
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    import xgrammar

_SLOW_SECONDS = 0.05
MOST_SLOW_SECONDS = 2.0
"""The slow masks of one text may take so long: the whole batch waits for them."""


class GrammarError(ValueError):
    """Nothing can be generated under this grammar; the text says why."""


class CharacterTokens:
    """Which tokens go on with a character that another token begins.

    xgrammar's classes admit surrogates, and in JSON overlong forms, which are no UTF-8.
    """

    # The range of the second byte, where it is not 0x80 to 0xBF.
    _SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}  # noqa: RUF012 (never changed)

    def __init__(self, tokens: SequenceOf[bytes], vocab_size: int) -> None:
        """``tokens`` are the bytes of each."""
        self._tokens = tokens
        self._words = -(-vocab_size // 32)
        self._masks: dict[int, Tensor] = {}

    def behind(self, token: int) -> Tensor | None:
        """Return the bits [ceil(vocab_size / 32)] of what may follow ``token``; None: any."""
        text = self._tokens[token] if token < len(self._tokens) else b""
        if not text or text[-1] not in self._SECOND:
            return None
        if (mask := self._masks.get(text[-1])) is None:
            least, most = self._SECOND[text[-1]]
            bits = torch.zeros(self._words * 4, 8, dtype=torch.uint8)
            fitting = [bool(each) and least <= each[0] <= most for each in self._tokens]
            bits.view(-1)[: len(fitting)] = torch.tensor(fitting, dtype=torch.uint8)
            packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
            mask = self._masks[text[-1]] = packed.view(torch.int32)
        return mask


class CompiledGrammar(NamedTuple):
    """What xgrammar compiled, and the characters of its vocabulary."""

    grammar: "xgrammar.CompiledGrammar"
    characters: CharacterTokens


class GrammarMatcher:
    """Implements ``Matcher``."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        """Begin before the first token."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        self._matcher: Any = xgrammar.GrammarMatcher(compiled.grammar)
        self._characters = compiled.characters
        self._unfinished: Tensor | None = None
        """The bits of what goes on with the last character, where not all bytes do."""
        self._slow_seconds = 0.0
        self.num_accepted = 0
        """Tokens that were given to ``accept_tokens``."""
        self.failure: str | None = None
        """Why the text cannot go on; final."""

    def accept_text(self, text: str) -> None:
        """Advance by ``text``, which fits."""
        self._matcher.accept_string(text)

    def accept_tokens(self, tokens: SequenceOf[int]) -> None:
        """Advance by the tokens behind the last ones; set ``failure`` where one does not fit."""
        for token in tokens:
            if self.failure is None and not self._matcher.accept_token(token):
                self.failure = f"token {token} does not fit the grammar"
        self.num_accepted += len(tokens)
        if tokens:
            self._unfinished = self._characters.behind(tokens[-1])

    def fill_bitmask(self, bitmask: Tensor, row: int) -> None:
        """Write the bits of the next token into ``bitmask[row]`` of int32 on the CPU.

        All are set where there is a ``failure``, even a new one: what is chosen is not sent.
        """
        if self.failure is not None:
            bitmask[row] = -1
            return
        started = time.perf_counter()
        self._matcher.fill_next_token_bitmask(bitmask, row)
        if self._unfinished is not None:
            bitmask[row] &= self._unfinished
        seconds = time.perf_counter() - started
        self._slow_seconds += seconds if seconds > _SLOW_SECONDS else 0.0
        if self._slow_seconds > MOST_SLOW_SECONDS:
            self.failure = "the grammar is too ambiguous"
        elif not bool(bitmask[row].any()):
            self.failure = "no token of the model fits the grammar"
        if self.failure is not None:
            bitmask[row] = -1


def allocate_bitmask(num_rows: int, vocab_size: int) -> Tensor:
    """Return an int32 bitmask [num_rows, ceil(vocab_size / 32)] on the CPU that allows all."""
    return torch.full((num_rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def apply_bitmask_(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Set the logits [rows, vocab] of tokens without a bit to -inf, on the device of both.

    ``rows``, int64 on the same device, says which rows of ``logits`` the rows of ``bitmask`` are.
    Plain PyTorch: xgrammar's own kernel for CUDA would be compiled at its first use, in a step.
    """
    place = torch.arange(8, dtype=torch.uint8, device=bitmask.device)
    byte = torch.arange(256, dtype=torch.uint8, device=bitmask.device)
    unpacked = (byte.unsqueeze(-1) >> place) & 1 == 0
    # A table of bytes: on a CPU it takes half the time of shifting each word.
    excluded = unpacked.index_select(0, bitmask.view(torch.uint8).flatten().int())
    excluded = excluded.view(len(bitmask), -1)[:, : logits.shape[-1]]
    masked = logits.index_select(0, rows).masked_fill_(excluded, -torch.inf)
    logits.index_copy_(0, rows, masked)
