"""What the next token of a sequence may be, under its grammar.

A matcher belongs to one sequence. It takes each token of its text once and gives a bitmask for the
next: one bit a token, least significant first, in words of 32 bits. Preemption does not touch it,
because a preempted sequence keeps its tokens.
"""

import time
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import xgrammar

_SLOW_SECONDS = 0.05
MOST_SLOW_SECONDS = 2.0
"""The slow masks of one text may take so long: the whole batch waits for them."""


class GrammarError(ValueError):
    """Nothing can be generated under this grammar; the text says why."""


class GrammarMatcher:
    """Implements ``Matcher``."""

    def __init__(self, compiled: "xgrammar.CompiledGrammar") -> None:
        """Begin before the first token."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        self._matcher: Any = xgrammar.GrammarMatcher(compiled)
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

    def fill_bitmask(self, bitmask: Tensor, row: int) -> None:
        """Write the bits of the next token into ``bitmask[row]`` of int32 on the CPU.

        All are set where there is a ``failure``, even a new one: what is chosen is not sent.
        """
        if self.failure is not None:
            bitmask[row] = -1
            return
        started = time.perf_counter()
        self._matcher.fill_next_token_bitmask(bitmask, row)
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
