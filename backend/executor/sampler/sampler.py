"""From logits to tokens, on the device and without waiting for it.

In vLLM's order: end tokens that come too early, bias, penalties, grammar, temperature, min_p,
top_k, top_p.
Each row is drawn from its own logits, its seed and its token's number alone (``kernels.noise``), so
what else is in the batch changes nothing.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from backend.executor.attention.backend import Ints
from backend.executor.sampled import SampledTokens, on_device, raw_logprobs
from backend.executor.sampler.batch import DrawGroup, SamplingBatch, SlotSampling
from backend.executor.sampler.penalties import Penalties
from backend.grammar.matcher import apply_bitmask_
from backend.kernels.noise import Uint64s, log_exponential, vocabulary
from backend.models.cpu_decoder import SingleThreadIfSmall
from backend.scheduler.batch import NewSequence

# Nearly all of the probability is mostly in as many tokens; where it is not, all are sorted.
_NUCLEI = (128, 512, 4096)


Draw = Callable[[Tensor, DrawGroup, Tensor], Tensor]
"""From the logits [rows, vocab] of a group and its noise's keys to its tokens."""


@dataclass(frozen=True, slots=True)
class GrammarMask:
    """Which tokens may come next: bits, int32 [rows, ceil(vocab / 32)], and whose rows they are."""

    rows: tuple[int, ...]
    bits: Tensor


class Sampler:
    """Chooses tokens by what it was told of each slot."""

    def __init__(
        self, num_slots: int, vocab_size: int, device: torch.device, draw: Draw | None = None
    ) -> None:
        """``draw`` draws all rows in one call, greedy ones too; None: torch draws."""
        self._slots = SlotSampling(num_slots, vocab_size, one_group=draw is not None)
        self._penalties = Penalties(vocab_size, device)
        self._draw = _draw_in_torch if draw is None else draw

    def start(self, new: SequenceOf[NewSequence]) -> None:
        """Take in the sequences that take over slots."""
        self._slots.start(new)
        self._penalties.start(new)

    def sample(
        self, logits: Tensor, slots: Ints, positions: Ints, mask: GrammarMask | None = None
    ) -> SampledTokens:
        """Choose a token for each row of ``logits`` [rows, vocab].

        ``slots`` tells whose rows these are, ``positions`` where the chosen tokens will stand.
        """
        batch = self._slots.gather(slots, logits)
        with SingleThreadIfSmall(logits.nbytes):
            return self._sample(logits, batch, positions, mask)

    def count(self, slots: Ints, tokens: Tensor) -> None:
        """Count chosen ``tokens`` for penalties: the last thing that a step does.

        A step that finds no memory before comes again.
        """
        if penalised := self._slots.gather(slots, tokens).penalised:
            self._penalties.count(penalised, tokens)

    def _sample(
        self, logits: Tensor, batch: SamplingBatch, positions: Ints, mask: GrammarMask | None
    ) -> SampledTokens:
        tokens, finite = _largest(logits)
        # How many tokens each row's sequence has generated: the number of the one to come.
        numbers: Uint64s = np.zeros(0, np.uint64)
        if batch.bounded or batch.groups:
            numbers = (positions - batch.prompt_lengths).astype(np.uint64)
        adjusted = self._adjust(logits, batch, numbers, mask)
        if adjusted is not logits:
            tokens, _ = _largest(adjusted)
        for group in batch.groups:
            own = adjusted if group.index is None else adjusted.index_select(0, group.index)
            drawn = self._draw(own, group, group.keys(numbers, logits))
            tokens = drawn if group.index is None else tokens.index_copy_(0, group.index, drawn)
        logprobs = None
        if batch.reported:
            logprobs = raw_logprobs(logits, batch.reported_index, batch.reported, tokens)
        return SampledTokens(tokens, finite, logprobs)

    def _adjust(
        self, logits: Tensor, batch: SamplingBatch, numbers: Uint64s, mask: GrammarMask | None
    ) -> Tensor:
        """Return what tokens are chosen from: ``logits`` itself when nothing changes them."""
        early = [(row, ids) for row, least, ids in batch.bounded if numbers[row] < least]
        if not (early or batch.biased or batch.penalised or mask):
            return logits
        # Row after row: products on CPU come out otherwise, and what follows goes by places.
        adjusted = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for row, ids in early:
            adjusted[row].index_fill_(0, ids, -torch.inf)
        if batch.biased is not None:
            places, bias = batch.biased
            adjusted.view(-1).index_add_(0, places, bias)
        if batch.penalised:
            self._penalties.apply_(adjusted, batch.penalised)
        if mask is not None:
            rows = on_device(np.array(mask.rows, np.int64), adjusted)
            apply_bitmask_(adjusted, on_device(mask.bits.numpy(), adjusted), rows)
        return adjusted


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token with the largest logit of each row, and whether the row is finite.

    NaN is larger than all, and an overflow shows as inf. -inf elsewhere in a row is legitimate.
    """
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        # A fifth of the time of torch's max, which does not use vector instructions there.
        rows = logits.numpy()
        tokens = rows.argmax(axis=-1)
        top = rows[np.arange(len(rows)), tokens]
        return torch.from_numpy(tokens), torch.from_numpy(np.isfinite(top))
    best, places = logits.max(dim=-1)
    return places, best.abs() < torch.inf


def _scaled(logits: Tensor, group: DrawGroup) -> Tensor:
    """Apply temperature and min_p."""
    scaled = (logits.float() / group.temperature).contiguous()
    if group.has_min_p:
        least = scaled.amax(dim=-1, keepdim=True) + group.log_min_p
        scaled.masked_fill_(scaled < least, -torch.inf)
    return scaled


def _draw_in_torch(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    if group.filters:
        return _draw_best(logits, group, keys)
    noise = log_exponential(keys, vocabulary(logits.shape[-1], logits.device))
    return (_scaled(logits, group) - noise).argmax(dim=-1)


def _draw_best(logits: Tensor, group: DrawGroup, keys: Tensor) -> Tensor:
    """Draw where only the best tokens count, by number (top_k) or by probability (top_p)."""
    scaled = _scaled(logits, group)
    if group.most:
        best, ids = _best(scaled, group.most)
        ranks = torch.arange(group.most, device=logits.device)
        best = best.masked_fill(ranks >= group.top_k, -torch.inf)
        normaliser = best.logsumexp(dim=-1, keepdim=True)
    else:
        normaliser = scaled.logsumexp(dim=-1, keepdim=True)
        best, ids = _likely(scaled, group, normaliser)
    before = _mass_before(best, normaliser)
    dropped = before >= group.top_p
    dropped[:, 0] = False
    noise = log_exponential(keys, ids.int())
    place = (best.masked_fill(dropped, -torch.inf) - noise).argmax(dim=-1, keepdim=True)
    return ids.gather(1, place).squeeze(1)


def _mass_before(best: Tensor, normaliser: Tensor) -> Tensor:
    """Return the probability of all that are better; a token stays while that is below top_p."""
    # float64: with a large vocabulary a float32 running sum loses the small probabilities.
    probabilities = (best - normaliser).double().exp()
    return probabilities.cumsum(dim=-1) - probabilities


def _likely(scaled: Tensor, group: DrawGroup, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """Return enough of the best tokens to hold top_p of every row's probability."""
    vocab = scaled.shape[-1]
    # Looking whether few are enough is free on CPU alone: elsewhere it would wait for the device.
    nuclei = _NUCLEI if scaled.device.type == "cpu" else ()
    for count in nuclei:
        if count < vocab:
            best, ids = _best(scaled, count)
            if bool((_mass_before(best, normaliser)[:, -1:] >= group.top_p).all()):
                return best, ids
    return scaled.sort(dim=-1, descending=True, stable=True)


def _best(scaled: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest of each row, in order; of equal ones the lower ids."""
    vocab = scaled.shape[-1]
    # Integers in the order of the floats, the ids in their lower halves: no two are equal. Adding
    # 0 makes one of the two zeros.
    bits = (scaled + 0.0).view(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)
    order = bits.long()
    order <<= 32
    order |= _descending(vocab, scaled.device)
    ids = vocab - 1 - order.topk(count, dim=-1).values.bitwise_and_(0xFFFFFFFF)
    return scaled.gather(1, ids), ids


@cache
def _descending(vocab: int, device: torch.device) -> Tensor:
    return torch.arange(vocab - 1, -1, -1, device=device)
