"""From logits to tokens on the device, without a sort and without waiting for the host.

A token is drawn by Gumbel noise that is a pure function of a key and the token's id (``noise``).
Tokens are ranked by distance: how far they lie below the best logit, divided by the temperature;
of equal ones the lower id comes first. What top_k, top_p and min_p keep is a prefix of this order.
So the kernel draws from a prefix that surely holds all that is kept, and checks the token: the best
scored token of a larger prefix is that of the smaller one too, if it lies there. The check is one
pass over the logits. It counts the tokens before the drawn one and sums their weights, does the
same for a few pivots that narrow the prefix, and draws the next candidate from what lies before.
Most tokens are chosen in two or three passes over the logits, the one that finds the best included.

The idea of drawing first and moving pivots after is that of FlashInfer's sampling kernels
(https://flashinfer.ai/2025/03/10/sampling.html).
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

# Noise lifts a token over the best one by less than 25 (see ``noise``): what lies further down is
# never drawn, and its weight is too small to move top_p. These are the bits of 32.0.
_FURTHEST = 0x42000000
_PIVOTS = 8
_BLOCK = 1024


@triton.jit
def _load(logits, row, column, VOCAB):
    return tl.load(logits + row + column, mask=column < VOCAB, other=-float("inf")).to(tl.float32)


@triton.jit
def _bits(distance):
    """Return the bits of floats that are not negative: ordered as they are."""
    return distance.to(tl.int32, bitcast=True)


@triton.jit
def _find_best(logits, row, VOCAB, BLOCK: tl.constexpr):
    """Return the largest logit, its lowest id, and whether no logit is NaN."""
    lane = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    damaged = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCAB, BLOCK):
        values = _load(logits, row, start + lane, VOCAB)
        damaged = damaged | (values != values).to(tl.int32)  # noqa: PLR0124 (NaN)
        better = values > highest
        highest = tl.where(better, values, highest)
        where = tl.where(better, start + lane, where)
    best = tl.max(highest, axis=0)
    first = tl.min(tl.where(highest == best, where, VOCAB), axis=0)
    return best, first, tl.max(damaged, axis=0) == 0


@triton.jit
def _measure(
    logits,
    row,
    best,
    inverse,
    first_key,
    second_key,
    pivots,
    limit,
    limit_id,
    low,
    high,
    VOCAB,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Pass once over the logits.

    Returns count and weight of the tokens up to each pivot, count and weight of those before
    ``(limit, limit_id)`` and the best scored of them, and of the distances above ``low`` the
    smallest, of those up to ``high`` the largest. Sums over lanes are made once, at the end.
    """
    lane = tl.arange(0, BLOCK)
    counts = ()
    masses = ()
    for _ in tl.static_range(PIVOTS):
        counts += (tl.zeros((BLOCK,), tl.int32),)
        masses += (tl.zeros((BLOCK,), tl.float32),)
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    lowest = tl.full((BLOCK,), float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    above = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    below = tl.full((BLOCK,), -1, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        column = start + lane
        distance = (best - _load(logits, row, column, VOCAB)) * inverse
        bits = _bits(distance)
        weight = tl.exp(-distance)
        more_counts = ()
        more_masses = ()
        for pivot in tl.static_range(PIVOTS):
            upto = bits <= pivots[pivot]
            more_counts += (counts[pivot] + upto.to(tl.int32),)
            more_masses += (masses[pivot] + tl.where(upto, weight, 0.0),)
        counts = more_counts
        masses = more_masses
        before = (bits < limit) | ((bits == limit) & (column < limit_id))
        count += before.to(tl.int32)
        mass += tl.where(before, weight, 0.0)
        score = tl.where(before, distance + _noise(column, first_key, second_key), float("inf"))
        lower = score < lowest
        lowest = tl.where(lower, score, lowest)
        where = tl.where(lower, column, where)
        above = tl.minimum(above, tl.where(bits > low, bits, 0x7FFFFFFF))
        below = tl.maximum(below, tl.where(bits <= high, bits, -1))
    all_counts = ()
    all_masses = ()
    for pivot in tl.static_range(PIVOTS):
        all_counts += (tl.sum(counts[pivot], axis=0),)
        all_masses += (tl.sum(masses[pivot], axis=0),)
    token = tl.min(tl.where(lowest == tl.min(lowest, axis=0), where, VOCAB), axis=0)
    return (
        all_counts,
        all_masses,
        tl.sum(count, axis=0),
        tl.sum(mass, axis=0),
        token,
        tl.min(above, axis=0),
        tl.max(below, axis=0),
    )


@triton.jit
def _reach_of_top_k(
    reach, top_k, pivots, counts, masses, start, end, above, below, PIVOTS: tl.constexpr
):
    """Narrow how far top_k reaches, and the weight of what it keeps.

    ``reach`` holds: a distance whose tokens top_k surely keeps, their count and weight; a distance
    beyond which it keeps none; the least and the most that all it keeps may weigh.
    """
    low, low_count, low_mass, high, least, most = reach
    for pivot in tl.static_range(PIVOTS):
        if counts[pivot] <= top_k:
            low = tl.maximum(low, pivots[pivot])
            low_count = tl.maximum(low_count, counts[pivot])
            low_mass = tl.maximum(low_mass, masses[pivot])
        if counts[pivot] >= top_k:
            high = tl.minimum(high, pivots[pivot])
            most = tl.minimum(most, masses[pivot])
    # No distance lies between the bounds that were searched and those that were met.
    low = tl.where(start <= low, tl.maximum(low, above - 1), low)
    high = tl.where(high <= end, tl.minimum(high, below), high)
    least = tl.maximum(least, low_mass)
    if (high - low <= 1) & (least < most):
        # The others that top_k keeps are as far away as each other.
        weight = tl.exp(-high.to(tl.float32, bitcast=True))
        most = tl.minimum(most, low_mass + (top_k - low_count) * weight)
        least = most
    return low, low_count, low_mass, high, least, most


@triton.jit
def _reach(
    low,
    high,
    top_k,
    lightest,
    heaviest,
    pivots,
    counts,
    masses,
    start,
    end,
    above,
    below,
    PIVOTS: tl.constexpr,
):
    """Narrow how far top_k and top_p reach together.

    The weight at which top_p ends lies between ``lightest`` and ``heaviest``. Returns a distance
    whose tokens are surely kept, and one beyond which none is.
    """
    next_high = tl.where(high <= end, tl.minimum(high, below), high)
    for pivot in tl.static_range(PIVOTS):
        if (counts[pivot] <= top_k) & (masses[pivot] <= lightest):
            low = tl.maximum(low, pivots[pivot])
        if (counts[pivot] >= top_k) | (masses[pivot] >= heaviest):
            next_high = tl.minimum(next_high, pivots[pivot])
    return tl.where(start <= low, tl.maximum(low, above - 1), low), next_high


@triton.jit
def _draw(
    logits,
    row,
    best,
    inverse,
    furthest,
    top_k,
    top_p,
    first_key,
    second_key,
    VOCAB,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Return the best scored token of those that are kept.

    Two or three turns are the rule. After 64 turns the last candidate is returned: a wrong
    compilation must not hang the device.
    ``furthest`` are the bits of the largest distance that min_p allows. What is kept ends between
    ``low`` and ``(high, high_id)``.
    """
    by_mass = top_p < 1.0
    share = tl.where(by_mass, tl.maximum(top_p, 1e-30), float("inf"))  # the best always stays
    low = tl.where(by_mass | (top_k < VOCAB), -1, furthest)
    high, high_id = furthest, VOCAB
    limit, limit_id = high, high_id
    reach = (-1, 0, 0.0, furthest, 1.0, float("inf"))
    token = -1
    pivots = ()
    for pivot in tl.static_range(PIVOTS):  # distances 0.25, 0.75, 1.5, 2.5, 3.75, 5.25, 7, 9
        pivots += (tl.minimum(_bits(furthest * 0 + 0.125 * (pivot + 1) * (pivot + 2)), furthest),)
    start, end = -1, furthest
    checked = False
    searching = True
    turn = 0
    while searching & (turn < 64):
        turn += 1
        counts, masses, count, mass, candidate, above, below = _measure(
            logits,
            row,
            best,
            inverse,
            first_key,
            second_key,
            pivots,
            limit,
            limit_id,
            start,
            end,
            VOCAB,
            BLOCK,
            PIVOTS,
        )
        k_low, k_low_count, k_low_mass, k_high, least, most = reach
        most = tl.where((count >= top_k) | (token < 0), tl.minimum(most, mass), most)
        least = tl.where(count <= top_k, tl.maximum(least, mass), least)
        reach = _reach_of_top_k(
            (k_low, k_low_count, k_low_mass, k_high, least, most),
            top_k,
            pivots,
            counts,
            masses,
            start,
            end,
            above,
            below,
            PIVOTS,
        )
        k_low, k_low_count, k_low_mass, k_high, least, most = reach
        low, next_high = _reach(
            low,
            high,
            top_k,
            share * least,
            share * most,
            pivots,
            counts,
            masses,
            start,
            end,
            above,
            below,
            PIVOTS,
        )
        high_id = tl.where(next_high < high, VOCAB, high_id)
        high = next_high
        if checked & (count < top_k) & (mass < share * least):
            searching = False
        elif (not checked) | (count >= top_k) | (mass >= share * most):
            if checked & ((limit < high) | ((limit == high) & (limit_id < high_id))):
                high, high_id = limit, limit_id
            token = candidate
            value = tl.load(logits + row + token).to(tl.float32)
            bits = _bits((best - value) * inverse)
            searching = bits > low
            checked = (bits < high) | ((bits == high) & (token < high_id))
            limit = tl.where(checked, bits, high)
            limit_id = tl.where(checked, token, high_id)
        # What top_k keeps must be known before its share is.
        by_count = by_mass & (least < most)
        start = tl.where(by_count, k_low, low)
        end = tl.where(by_count, k_high, high)
        step = tl.maximum((end - start) // (PIVOTS + 1), 1)
        pivots = ()
        for pivot in tl.static_range(PIVOTS):
            pivots += (tl.minimum(start + step * (pivot + 1), end),)
    return token


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
    best, token, sound = _find_best(logits, row, VOCAB, BLOCK)
    finite = sound & (best > -float("inf")) & (best < float("inf"))
    temperature = tl.load(temperatures + at)
    if finite & (temperature >= MIN_TEMPERATURE):
        furthest = tl.minimum(_bits(0.0 - tl.load(log_min_ps + at)), FURTHEST)
        token = _draw(
            logits,
            row,
            best,
            tl.div_rn(1.0, temperature),
            furthest,
            tl.load(top_ks + at).to(tl.int32),
            tl.load(top_ps + at),
            tl.load(keys + 2 * at),
            tl.load(keys + 2 * at + 1),
            VOCAB,
            BLOCK,
            PIVOTS,
        )
    tl.store(tokens + at, tl.where(finite, token, NOT_FINITE).to(tl.int64))


@triton.jit
def _noise(token, first_key, second_key):
    """Return the logarithm of exponential noise, as ``noise.log_exponential`` defines it."""
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
    # -log1p(-share), and what was lost when 1 - share was rounded.
    rest = 1.0 - share
    return tl.log((share - (1.0 - rest)) - tl.log(rest))


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row samples, on the device.

    All float32 of ``rows`` elements, ``top_k`` too: what is as large as the vocabulary is no limit,
    and minus infinity no least probability. ``keys`` is int32 [rows, 2], by ``noise.draw_keys``.
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
        BLOCK=_BLOCK,
        PIVOTS=_PIVOTS,
        FURTHEST=_FURTHEST,
        MIN_TEMPERATURE=MIN_TEMPERATURE,
        NOT_FINITE=NOT_FINITE,
        num_warps=16,
    )
    return tokens
