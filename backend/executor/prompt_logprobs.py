"""Log probabilities of a prompt's own tokens, gathered from the steps that compute it.

Of a prompt that asks for them every token is computed (``Sequence.reads_cache`` is False), in one
step or in several. What was gathered leaves with the first token that is chosen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from backend.executor.sampled import LogprobTensors, SampledToken, raw_logprobs
from backend.executor.token_counts import on_device
from backend.scheduler.request import TokenLogprobs
from backend.scheduler.sequence import ScheduledSequence, Sequence, SequenceStatus

# Logits of a long prompt at once would take more memory than the model.
_ROWS_AT_ONCE = 64

_ByPosition = dict[int, TokenLogprobs]


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Rows of a step whose next tokens the prompt knows: those at ``start`` to ``stop``."""

    sequence: Sequence
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SpanLogprobs:
    """What a step says of a span, on its way to the host."""

    span: ScoredSpan
    parts: tuple[LogprobTensors, ...]


def scored_span(scheduled: ScheduledSequence) -> ScoredSpan | None:
    """Return the span of ``scheduled``, None where nothing is to be reported.

    Its first row is that of token ``start - 1``, the first that the step computes.
    """
    sequence = scheduled.sequence
    # With tokens of its own, it was preempted: the prompt has been reported.
    if (
        sequence.sampling.prompt_logprobs is None
        or len(sequence.tokens) > sequence.num_prompt_tokens
    ):
        return None
    start = scheduled.start + 1
    stop = min(start + scheduled.num_tokens, sequence.num_prompt_tokens)
    return ScoredSpan(sequence, start, stop) if start < stop else None


def score(
    spans: Iterable[ScoredSpan], hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> tuple[SpanLogprobs, ...]:
    """Compare what each row of ``hidden`` says with the token that follows; nothing waits."""
    scored = []
    row = 0
    for span in spans:
        wanted = span.sequence.sampling.prompt_logprobs or 0
        parts = []
        for start in range(span.start, span.stop, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, span.stop)
            logits = logits_of(hidden[row : row + stop - start])
            following = np.array(span.sequence.tokens[start:stop], np.int64)
            rows = [(at, wanted) for at in range(stop - start)]
            tokens = on_device(following, logits)
            parts.append(raw_logprobs(logits, None, rows, tokens).copied())
            row += stop - start
        scored.append(SpanLogprobs(span, tuple(parts)))
    return tuple(scored)


class PromptLogprobs:
    """What was gathered so far, by sequence."""

    def __init__(self) -> None:
        self._gathered: dict[Sequence, _ByPosition] = {}

    def add(self, scored: Iterable[SpanLogprobs]) -> None:
        """Take what a step said, once its copies have arrived."""
        for each in scored:
            sequence, at = each.span.sequence, each.span.start
            known = self._gathered.setdefault(sequence, {})
            for part in each.parts:
                count = len(part.rows)
                read = part.read(sequence.tokens[at : at + count])
                known.update({at + row: logprobs for row, logprobs in read.items()})
                at += count

    def complete(self, sequence: Sequence, sampled: SampledToken | None) -> SampledToken | None:
        """Return the token of ``sequence`` with what was gathered for its prompt."""
        if not self._gathered:
            return sampled
        known = self._gathered.pop(sequence, {})
        self._forget_finished()
        if sampled is None or not known:
            return sampled
        return replace(sampled, prompt_logprobs=tuple(known[at] for at in sorted(known)))

    def _forget_finished(self) -> None:
        for sequence in list(self._gathered):
            if sequence.status is SequenceStatus.FINISHED:
                del self._gathered[sequence]
