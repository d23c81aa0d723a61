"""From logits to tokens on the device, without a sort and without waiting for the host.

A token is drawn by Gumbel noise that is a pure function of a key and the token's id (the same as
``kernels.noise``). What top_k, top_p and min_p leave is found as a threshold: how far below the
best logit a token may lie, in bits of that distance, because the bits of floats that are not
negative are ordered like the floats; among equal ones, up to which id. Four pivots a pass find the
two in a dozen passes and half as many more, over logits that the L2 cache holds.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton import language as tl

from backend.kernels.launch import launch
from backend.kernels.noise import MIN_TEMPERATURE

NOT_FINITE = -1
"""Stands for a token where the logits are NaN, reach infinity, or are all minus infinity."""

_BLOCK = 4096
# exp(-104) is 0 in float32: what lies further down is never drawn. These are the bits of 104.0.
_FURTHEST = 0x42D00000
_PIVOTS = 4


@triton.jit
def _scaled(logits, row, temperature, column, VOCAB):
    values = tl.load(logits + row + column, mask=column < VOCAB, other=-float("inf"))
    return values.to(tl.float32) / temperature


@triton.jit
def _distance_bits(scaled, best, FURTHEST: tl.constexpr):
    return tl.minimum((best - scaled).to(tl.int32, bitcast=True), FURTHEST)


@triton.jit
def _measure(
    logits,
    row,
    temperature,
    best,
    bits_pivots,
    id_pivots,
    VOCAB,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
    FURTHEST: tl.constexpr,
):
    """Return how many tokens rank up to each pivot, and their summed weight."""
    counts = tl.zeros((PIVOTS,), tl.float32)
    masses = tl.zeros((PIVOTS,), tl.float32)
    for start in range(0, VOCAB, BLOCK):
        column = start + tl.arange(0, BLOCK)
        scaled = _scaled(logits, row, temperature, column, VOCAB)
        bits = _distance_bits(scaled, best, FURTHEST)[None, :]
        nearer = bits < bits_pivots[:, None]
        equal = (bits == bits_pivots[:, None]) & (column[None, :] <= id_pivots[:, None])
        within = (nearer | equal) & (column < VOCAB)[None, :]
        counts += tl.sum(within.to(tl.float32), axis=1)
        masses += tl.sum(tl.where(within, tl.exp(scaled - best)[None, :], 0.0), axis=1)
    return counts, masses


@triton.jit
def _search(
    logits,
    row,
    temperature,
    best,
    bits_limit,
    id_limit,
    needed,
    VOCAB,
    BY_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
    FURTHEST: tl.constexpr,
):
    """Return the first rank, of those up to the limit, by which ``needed`` has gathered."""
    step = tl.arange(0, PIVOTS) + 1
    low = bits_limit * 0
    high = bits_limit
    while low < high:
        pivots = low + ((high - low).to(tl.int64) * step // (PIVOTS + 1)).to(tl.int32)
        counts, masses = _measure(
            logits, row, temperature, best, pivots, step * 0 + VOCAB, VOCAB, BLOCK, PIVOTS, FURTHEST
        )
        enough = (counts if BY_COUNT else masses) >= needed
        next_high = tl.min(tl.where(enough, pivots, high), axis=0)
        low = tl.max(tl.where(enough, low, pivots + 1), axis=0)
        high = next_high
    # Of tokens at the same distance, the lower ids.
    id_low = high * 0
    id_high = tl.where(high == bits_limit, id_limit, VOCAB - 1)
    while id_low < id_high:
        pivots = id_low + ((id_high - id_low).to(tl.int64) * step // (PIVOTS + 1)).to(tl.int32)
        counts, masses = _measure(
            logits, row, temperature, best, step * 0 + high, pivots, VOCAB, BLOCK, PIVOTS, FURTHEST
        )
        enough = (counts if BY_COUNT else masses) >= needed
        next_high = tl.min(tl.where(enough, pivots, id_high), axis=0)
        id_low = tl.max(tl.where(enough, id_low, pivots + 1), axis=0)
        id_high = next_high
    return high, id_high


@triton.jit
def _sample(
    logits,
    temperatures,
    top_ks,
    top_ps,
    log_min_ps,
    keys,
    tokens,
    row_stride,
    VOCAB,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
    FURTHEST: tl.constexpr,
    MIN_TEMPERATURE: tl.constexpr,
    NOT_FINITE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    row = at * row_stride
    lane = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    damaged = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCAB, BLOCK):
        column = start + lane
        values = _scaled(logits, row, 1.0, column, VOCAB)
        damaged = damaged | (values != values).to(tl.int32)  # noqa: PLR0124 (NaN)
        better = values > highest
        highest = tl.where(better, values, highest)
        where = tl.where(better, column, where)
    best = tl.max(highest, axis=0)
    chosen = tl.min(tl.where(highest == best, where, VOCAB), axis=0)
    finite = (best > -float("inf")) & (best < float("inf")) & (tl.max(damaged, axis=0) == 0)
    temperature = tl.load(temperatures + at)
    if finite & (temperature >= MIN_TEMPERATURE):
        best = best / temperature
        top_k = tl.load(top_ks + at)
        top_p = tl.load(top_ps + at)
        least = best + tl.load(log_min_ps + at)
        bits_limit = tl.minimum((best - least).to(tl.int32, bitcast=True), FURTHEST)
        id_limit = bits_limit * 0 + VOCAB - 1
        if top_k < VOCAB:
            bits_limit, id_limit = _search(
                logits,
                row,
                temperature,
                best,
                bits_limit,
                id_limit,
                top_k,
                VOCAB,
                True,
                BLOCK,
                PIVOTS,
                FURTHEST,
            )
        if top_p < 1.0:
            every = tl.zeros((PIVOTS,), tl.int32)
            _, masses = _measure(
                logits,
                row,
                temperature,
                best,
                every + bits_limit,
                every + id_limit,
                VOCAB,
                BLOCK,
                PIVOTS,
                FURTHEST,
            )
            bits_limit, id_limit = _search(
                logits,
                row,
                temperature,
                best,
                bits_limit,
                id_limit,
                tl.maximum(tl.max(masses, axis=0) * top_p, 1e-30),  # the best always stays
                VOCAB,
                False,
                BLOCK,
                PIVOTS,
                FURTHEST,
            )
        first_key = tl.load(keys + 2 * at)
        second_key = tl.load(keys + 2 * at + 1)
        highest = tl.full((BLOCK,), -float("inf"), tl.float32)
        for start in range(0, VOCAB, BLOCK):
            column = start + lane
            scaled = _scaled(logits, row, temperature, column, VOCAB)
            bits = _distance_bits(scaled, best, FURTHEST)
            within = (bits < bits_limit) | ((bits == bits_limit) & (column <= id_limit))
            kept = within & (scaled >= least) & (column < VOCAB)
            score = tl.where(kept, scaled - _noise(column, first_key, second_key), -float("inf"))
            better = score > highest
            highest = tl.where(better, score, highest)
            where = tl.where(better, column, where)
        best_score = tl.max(highest, axis=0)
        chosen = tl.min(tl.where(highest == best_score, where, VOCAB), axis=0)
    tl.store(tokens + at, tl.where(finite, chosen, NOT_FINITE).to(tl.int64))


@triton.jit
def _noise(token, first_key, second_key):
    """Return the logarithm of exponential noise, see ``noise.log_exponential``."""
    words = (token + first_key).to(tl.uint32, bitcast=True)
    words = words ^ (words >> 16)
    words = words * 0x7FEB352D
    words = words ^ second_key.to(tl.uint32, bitcast=True)
    words = words ^ (words >> 15)
    words = words * 0x846CA68B
    words = (words ^ (words >> 16)) | 1
    share = tl.abs(words.to(tl.int32, bitcast=True).to(tl.float32)) * (
        0.99999988079071044921875 / 2147483648
    )
    # log1p(-share): what rounding takes from 1 - share is given back.
    rest = 1.0 - share
    exact = tl.log(rest) * (share / (1.0 - rest))
    return tl.log(-tl.where(rest == 1.0, -share, exact))


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row samples, on the device.

    All float32 of ``rows`` elements, ``top_k`` too: what is as large as the vocabulary is no limit,
    and minus infinity no least probability. ``keys`` is int32 [rows, 2] (see ``kernels.noise``).
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    keys: Tensor


def sample_tokens(logits: Tensor, rows: SamplingRows, tokens: Tensor | None = None) -> Tensor:
    """Choose a token for each row of ``logits`` [rows, vocab]; NOT_FINITE where there is none.

    Returns int64 [rows], ``tokens`` where it is given.
    """
    count, vocab = logits.shape
    if tokens is None:
        tokens = torch.empty(count, device=logits.device, dtype=torch.int64)
    launch(
        _sample,
        (count,),
        logits,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.log_min_p,
        rows.keys,
        tokens,
        logits.stride(0),
        vocab,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)),
        PIVOTS=_PIVOTS,
        FURTHEST=_FURTHEST,
        MIN_TEMPERATURE=MIN_TEMPERATURE,
        NOT_FINITE=NOT_FINITE,
        num_warps=16,
    )
    return tokens
