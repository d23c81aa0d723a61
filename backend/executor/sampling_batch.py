"""How the rows of a batch sample, as tensors: made when the batch changes, used until then."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from backend.executor.token_counts import TokenCounts, on_device
from backend.kernels.noise import MIN_TEMPERATURE, Uint64s, draw_keys
from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import Matcher, Sequence


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """Rows that are drawn in one way; columns are [rows, 1].

    ``index`` holds their row numbers, None when it is every row. ``log_min_p`` is None where no
    row has a min_p; ``top_k`` and ``top_p`` are neutral where a row has none.
    """

    rows: tuple[int, ...]
    index: Tensor | None
    seeds: Uint64s
    temperature: Tensor
    log_min_p: Tensor | None
    top_k: Tensor
    top_p: Tensor
    most: int
    """The largest top_k; 0 where no row has one."""
    filters: bool
    """Whether any row has a top_k or a top_p."""

    def keys(self, numbers: Uint64s, like: Tensor) -> Tensor:
        """Return the noise's keys; ``numbers`` are those of all the batch's tokens."""
        return on_device(draw_keys(self.seeds, numbers[list(self.rows)]), like)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What a batch needs beyond the largest logit of each row.

    ``biased`` are places in the flattened logits and what is added there; ``bounded`` are rows
    with a least number of tokens, and the end tokens they may not choose before; ``constrained``
    have a grammar, and no least number of tokens: it knows when its text is over; ``reported`` are
    rows whose log probabilities are asked for (see ``LogprobTensors``).
    """

    sequences: tuple[Sequence, ...]
    wide: DrawGroup | None
    top_k: DrawGroup | None
    nucleus: DrawGroup | None
    biased: tuple[Tensor, Tensor] | None
    bounded: tuple[tuple[int, int, Tensor], ...]
    penalised: tuple[tuple[int, TokenCounts], ...]
    constrained: tuple[tuple[int, Sequence, Matcher], ...]
    reported: tuple[tuple[int, int], ...]
    reported_index: Tensor | None

    @property
    def groups(self) -> tuple[DrawGroup, ...]:
        """The rows that are drawn; all others take their largest logit."""
        return tuple(group for group in (self.wide, self.top_k, self.nucleus) if group)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the largest logit is taken."""
    return params.temperature < MIN_TEMPERATURE


def is_penalised(params: SamplingParams) -> bool:
    """Whether what was said before counts."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def build_batch(
    sequences: tuple[Sequence, ...], before: SamplingBatch | None, like: Tensor
) -> SamplingBatch:
    """Describe ``sequences`` for ``like``, logits [rows, vocab]; counts go over from ``before``."""
    params = [sequence.sampling for sequence in sequences]
    vocab = like.shape[-1]
    counts = dict(_counts(before))
    reported = tuple(
        (row, min(each.logprobs, vocab))
        for row, each in enumerate(params)
        if each.logprobs is not None
    )
    return SamplingBatch(
        sequences=sequences,
        wide=_group(sequences, like, lambda each: not (each.top_k or each.top_p < 1.0)),
        top_k=_group(sequences, like, lambda each: each.top_k > 0),
        nucleus=_group(sequences, like, lambda each: not each.top_k and each.top_p < 1.0),
        biased=_biases(params, like),
        bounded=tuple(
            (row, each.min_tokens, _ids(sequences[row].end_token_ids, like))
            for row, each in enumerate(params)
            if each.min_tokens and sequences[row].end_token_ids and each.grammar is None
        ),
        constrained=tuple(
            (row, sequence, sequence.matcher)
            for row, sequence in enumerate(sequences)
            if sequence.matcher is not None
        ),
        penalised=tuple(
            (row, counts.get(sequence) or _new_counts(sequence))
            for row, sequence in enumerate(sequences)
            if is_penalised(sequence.sampling)
        ),
        reported=reported,
        reported_index=_index([row for row, _ in reported], len(sequences), like),
    )


def _counts(batch: SamplingBatch | None) -> list[tuple[Sequence, TokenCounts]]:
    if batch is None:
        return []
    return [(batch.sequences[row], counts) for row, counts in batch.penalised]


def _new_counts(sequence: Sequence) -> TokenCounts:
    return TokenCounts(sequence.sampling, sequence.tokens[: sequence.num_prompt_tokens])


def _group(
    sequences: SequenceOf[Sequence], like: Tensor, belongs: Callable[[SamplingParams], bool]
) -> DrawGroup | None:
    rows = [
        row
        for row, sequence in enumerate(sequences)
        if not is_greedy(sequence.sampling) and belongs(sequence.sampling)
    ]
    if not rows:
        return None
    vocab = like.shape[-1]
    params = [sequences[row].sampling for row in rows]
    min_p = _column([each.min_p for each in params], like)
    return DrawGroup(
        rows=tuple(rows),
        index=_index(rows, len(sequences), like),
        seeds=np.array([sequences[row].seed for row in rows], np.uint64),
        temperature=_column([each.temperature for each in params], like),
        log_min_p=min_p.log() if any(each.min_p for each in params) else None,
        top_k=_column([each.top_k or vocab for each in params], like),
        top_p=_column([each.top_p for each in params], like),
        most=min(vocab, max(each.top_k for each in params)),
        filters=any(each.top_k or each.top_p < 1.0 for each in params),
    )


def _biases(params: SequenceOf[SamplingParams], like: Tensor) -> tuple[Tensor, Tensor] | None:
    vocab = like.shape[-1]
    rows = [(row, np.array(each.logit_bias)) for row, each in enumerate(params) if each.logit_bias]
    if not rows:
        return None
    tokens = np.concatenate([biases[:, 0] for _, biases in rows]).astype(np.int64)
    bias = np.concatenate([biases[:, 1] for _, biases in rows]).astype(np.float32)
    offsets = np.repeat([row * vocab for row, _ in rows], [len(biases) for _, biases in rows])
    known = tokens < vocab  # a tokenizer may know more than the model
    return on_device((offsets + tokens)[known], like), on_device(bias[known], like)


def _column(values: list[float], like: Tensor) -> Tensor:
    return on_device(np.array(values, np.float32).reshape(-1, 1), like)


def _ids(tokens: frozenset[int], like: Tensor) -> Tensor:
    vocab = like.shape[-1]
    return on_device(np.array([token for token in tokens if token < vocab], np.int64), like)


def _index(rows: list[int], num_rows: int, like: Tensor) -> Tensor | None:
    return None if len(rows) == num_rows else on_device(np.array(rows, np.int64), like)
