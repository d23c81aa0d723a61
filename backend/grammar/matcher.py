"""Constrained decoding: what the next token of a text may be, under a grammar.

Grammars are compiled by xgrammar in threads of their own, which the engine's loop never waits for:
a sequence joins once its grammar is ready. A matcher belongs to one sequence, follows its tokens
and is asked once a step. It survives preemption, because tokens do.
"""

import re
import time
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from torch import Tensor

from backend.executor.token_counts import on_device
from backend.kernels.available import unavailable_reason
from backend.scheduler.sequence import Matcher, Sequence

if TYPE_CHECKING:
    import xgrammar

_SLOW_SECONDS = 0.05
MOST_SLOW_SECONDS = 2.0
"""In slow masks of one text: everybody waits for them, and ambiguous grammars ever longer."""

MOST_CHARACTERS = 300
"""Characters of a complaint that are passed on: some of xgrammar's repeat the whole grammar."""


class GrammarError(ValueError):
    """Nothing can be generated under this grammar; the text says why."""


class GrammarMatcher:
    """Implements ``Matcher``."""

    def __init__(self, compiled: "xgrammar.CompiledGrammar") -> None:
        """Begin before the first token."""
        import xgrammar  # noqa: PLC0415  # it takes seconds, so only who needs it waits

        self._matcher: Any = xgrammar.GrammarMatcher(compiled)
        self._num_followed = 0
        self._slow_seconds = 0.0
        self.failure: str | None = None
        """Why the text cannot go on; final."""

    def follow(self, tokens: list[int]) -> None:
        """See Matcher."""
        for token in tokens[self._num_followed :]:
            if self.failure is None and not self._matcher.accept_token(token):
                self.failure = f"token {token} does not fit the grammar"
        self._num_followed = len(tokens)

    def fill(self, masks: Tensor, row: int) -> None:
        """See Matcher."""
        if self.failure is not None:
            return
        started = time.perf_counter()
        self._matcher.fill_next_token_bitmask(masks, row)
        seconds = time.perf_counter() - started
        self._slow_seconds += seconds if seconds > _SLOW_SECONDS else 0.0
        if self._slow_seconds > MOST_SLOW_SECONDS:
            self.failure = "the grammar is too ambiguous"
        elif not bool(masks[row].any()):
            self.failure = "no token of the model fits the grammar"


def mask_(logits: Tensor, constrained: SequenceOf[tuple[int, Sequence, Matcher]]) -> None:
    """Make -inf of every token that may not come next, in the rows of ``constrained``.

    Rows whose matcher fails are left as they are; what is chosen from them is not to be told.
    """
    import xgrammar  # noqa: PLC0415  # loaded when the first matcher was made

    masks = xgrammar.allocate_token_bitmask(*logits.shape)
    for row, sequence, matcher in constrained:
        matcher.follow(sequence.tokens[sequence.num_prompt_tokens :])
        matcher.fill(masks, row)
    masked = [row for row, _, matcher in constrained if matcher.failure is None]
    if masked:
        # Its own choice on CUDA is a Triton kernel.
        without_triton = logits.is_cuda and unavailable_reason() is not None
        xgrammar.apply_token_bitmask_inplace(
            logits,
            on_device(masks.numpy(), logits),
            indices=masked,
            backend="torch_native" if without_triton else "auto",
        )


def explain(error: Exception) -> str:
    """Return xgrammar's complaint without the place in its source that made it."""
    text = re.sub(r"^(?:\[[\d:]+\] )?\S+\.cc:\d+: ", "", str(error)).strip()
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
