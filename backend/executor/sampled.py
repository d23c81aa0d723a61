"""What a step chose: on the device for the next step, and on its way to the host."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a sequence; ``logprobs`` where they were asked for.

    The first token brings ``prompt_logprobs``, where they were.
    """

    token: int
    logprobs: TokenLogprobs | None = None
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

    def copied(self) -> "LogprobTensors":
        """Start copying to the host."""
        return LogprobTensors(
            self.rows, _copy(self.chosen), _copy(self.top_tokens), _copy(self.top)
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
    """The chosen tokens of one step.

    ``tokens`` [rows] stays on the device, where the next step may read it before the host does.
    """

    def __init__(
        self, tokens: Tensor, finite: Tensor, logprobs: LogprobTensors | None = None
    ) -> None:
        """Begin to copy to the host, without waiting. ``finite`` tells which rows are valid."""
        self.tokens = tokens
        self._tokens = _copy(tokens)
        self._finite = _copy(finite)
        self._logprobs = None if logprobs is None else logprobs.copied()
        self._arrived = _mark(tokens)

    def fetch(self) -> list[SampledToken | None]:
        """Wait for the copy. None marks a row whose logits were not finite."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens: list[int] = self._tokens.tolist()
        finite: list[bool] = self._finite.tolist()
        logprobs = {} if self._logprobs is None else self._logprobs.read(tokens)
        return [
            SampledToken(token, logprobs.get(row)) if valid else None
            for row, (token, valid) in enumerate(zip(tokens, finite, strict=True))
        ]


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


def _copy(tensor: Tensor) -> Tensor:
    # Into pinned memory, where it comes from a GPU.
    return tensor.to("cpu", non_blocking=True)


def _mark(tensor: Tensor) -> Any:
    if tensor.device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
