"""What a step chose, and log probabilities, on their way from the device to the host.

Of a prompt whose log probabilities are wanted every token is computed, in one step or in several.
What was gathered for it leaves with the first token that is chosen.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.scheduler.request import TokenLogprobs

# Logits of a long prompt at once would take more memory than the model.
_ROWS_AT_ONCE = 64


class Sampled(NamedTuple):
    """The next tokens of a sequence: one, and one more for each draft that was accepted.

    ``logprobs`` is empty or as long. The first token brings ``prompt_logprobs``, where wanted.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """For some rows of a step: ``rows`` says which, and how many of the likeliest each wants.

    ``chosen`` is [rows]; ``top_tokens`` and ``top`` are [rows, most wanted].
    """

    rows: tuple[tuple[int, int], ...]
    chosen: Tensor
    top_tokens: Tensor
    top: Tensor

    def to_host(self) -> "LogprobTensors":
        """Start copying to the host."""
        return LogprobTensors(
            self.rows, _to_host(self.chosen), _to_host(self.top_tokens), _to_host(self.top)
        )

    def read(self, tokens: SequenceOf[int]) -> dict[int, TokenLogprobs]:
        """Return what each row asked for; the copies must have arrived."""
        chosen, top_tokens, top = self.chosen.tolist(), self.top_tokens.tolist(), self.top.tolist()
        return {
            row: TokenLogprobs(
                tokens[row],
                chosen[place],
                tuple(zip(top_tokens[place][:wanted], top[place][:wanted], strict=True)),
            )
            for place, (row, wanted) in enumerate(self.rows)
        }


class SampledTokens:
    """The chosen tokens of one step's logit rows.

    ``tokens`` [rows] stays on the device, where the next step reads it before the host does.
    """

    def __init__(
        self, tokens: Tensor, finite: Tensor, logprobs: LogprobTensors | None = None
    ) -> None:
        """Begin to copy to the host, without waiting. ``finite`` tells which rows are valid."""
        self.tokens = tokens
        self._tokens = _to_host(tokens)
        self._finite = _to_host(finite)
        self._logprobs = None if logprobs is None else logprobs.to_host()
        self._arrived: Any = None
        if tokens.device.type == "cuda":
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def fetch(self) -> tuple[list[int], list[bool], dict[int, TokenLogprobs]]:
        """Wait for the copy; return tokens, whether each row was finite, and log probabilities."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens: list[int] = self._tokens.tolist()
        finite: list[bool] = self._finite.tolist()
        return tokens, finite, {} if self._logprobs is None else self._logprobs.read(tokens)


def raw_logprobs(
    logits: Tensor, index: Tensor | None, rows: SequenceOf[tuple[int, int]], tokens: Tensor
) -> LogprobTensors:
    """Return log probabilities of ``tokens`` under the model's own distribution.

    That is the softmax of ``logits`` as the model made them: before bias, penalties, temperature
    and filters. ``index`` holds the row numbers of ``rows``, None when it is every row.
    """
    if index is not None:
        logits, tokens = logits.index_select(0, index), tokens.index_select(0, index)
    logits = logits.float()
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, tokens.unsqueeze(1)).sub_(normaliser).squeeze(1)
    top, top_tokens = logits.topk(max(wanted for _, wanted in rows), dim=-1)
    return LogprobTensors(tuple(rows), chosen, top_tokens, top - normaliser)


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Rows whose next tokens the prompt of ``slot`` knows: ``following``, from ``start`` on.

    Of each row the ``wanted`` likeliest are reported.
    """

    slot: int
    start: int
    following: NDArray[np.int32]
    wanted: int


@dataclass(frozen=True, slots=True)
class SpanLogprobs:
    """What a step says of a span, on its way to the host."""

    span: ScoredSpan
    parts: tuple[LogprobTensors, ...]


def score(
    spans: Iterable[ScoredSpan], hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> tuple[SpanLogprobs, ...]:
    """Compare what each row of ``hidden`` says with the token that follows; nothing waits."""
    scored = []
    row = 0
    for span in spans:
        parts = []
        for start in range(0, len(span.following), _ROWS_AT_ONCE):
            following = span.following[start : start + _ROWS_AT_ONCE].astype(np.int64)
            logits = logits_of(hidden[row : row + len(following)])
            rows = [(at, span.wanted) for at in range(len(following))]
            tokens = on_device(following, logits)
            parts.append(raw_logprobs(logits, None, rows, tokens).to_host())
            row += len(following)
        scored.append(SpanLogprobs(span, tuple(parts)))
    return tuple(scored)


class PromptLogprobs:
    """What was gathered so far, by slot and position."""

    def __init__(self) -> None:
        self._gathered: dict[int, dict[int, TokenLogprobs]] = {}

    def start(self, slot: int) -> None:
        """Forget the sequence that had ``slot`` before."""
        self._gathered.pop(slot, None)

    def add(self, scored: Iterable[SpanLogprobs]) -> None:
        """Take what a step said, once its copies have arrived."""
        for each in scored:
            span, at = each.span, 0
            known = self._gathered.setdefault(span.slot, {})
            for part in each.parts:
                count = len(part.rows)
                read = part.read(span.following[at : at + count].tolist())
                known.update({span.start + at + row: found for row, found in read.items()})
                at += count

    def __bool__(self) -> bool:
        return bool(self._gathered)

    def take(self, slot: int) -> tuple[TokenLogprobs, ...]:
        """Return what was gathered for the prompt of ``slot``, once."""
        known = self._gathered.pop(slot, {})
        return tuple(known[at] for at in sorted(known))


def on_device(values: NDArray[np.generic], like: Tensor) -> Tensor:
    """Return ``values`` where ``like`` is, without waiting for the device."""
    tensor = torch.from_numpy(values)
    if like.device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(like.device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    # Into pinned memory, where it comes from a GPU.
    return tensor.to("cpu", non_blocking=True)
