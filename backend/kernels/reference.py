"""The plain torch oracle of every kernel: slow, obvious, on any device.

Arguments and results are the kernels'. Attention and norms compute in float64, so that a
difference is the kernel's rounding and not the oracle's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend.kernels.attention import BlockTables
from backend.kernels.noise import MIN_TEMPERATURE, log_exponential, vocabulary
from backend.kernels.prefill_attention import Span
from backend.kernels.quantized_matmul import PackedWeight
from backend.kernels.sampling import NOT_FINITE, SamplingRows


def write_kv(
    keys_values: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Write each token by its slot."""
    block_size = cache.shape[2]
    if scales is not None:
        keys_values = keys_values.float() / scales.view(-1, 1)
        if cache.dtype is torch.int8:
            keys_values = (keys_values.clamp(-127, 127) + 0.5).floor()
        else:
            keys_values = keys_values.clamp(-448, 448)
    for token, slot in enumerate(slots.tolist()):
        cache[slot // block_size, :, slot % block_size] = keys_values[token].to(cache.dtype)


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rows over their root mean square, times ``weight``."""
    exact = rows.double()
    scale = torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + eps)
    return (exact * scale * weight.double()).to(rows.dtype)


def add_rms_norm(rows: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add to ``residual`` in place and return the sum normalised."""
    residual.copy_((rows.float() + residual.float()).to(residual.dtype))
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return SiLU of the gates times the up projection."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def rotate_and_write(
    qkv: Tensor,
    rotations: Tensor,
    slots: Tensor,
    cache: Tensor,
    *,
    head_weights: Tensor | None,
    eps: float,
    keep_keys: bool = False,
    scales: Tensor | None = None,
) -> None:
    """Norm, rotate and write, one after another."""
    kv_heads = cache.shape[1] // 2
    query_heads = qkv.shape[1] - 2 * kv_heads
    turned = qkv[:, : query_heads + kv_heads].double()
    if head_weights is not None:
        scale = torch.rsqrt(turned.square().mean(dim=-1, keepdim=True) + eps)
        turned = turned * scale * head_weights.double()
    rotated = 2 * rotations.shape[1]
    turns = torch.view_as_complex(rotations.double()).unsqueeze(1)
    pairs = turned[..., :rotated].reshape(*turned.shape[:2], -1, 2).contiguous()
    turned = torch.cat(
        [
            torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2),
            turned[..., rotated:],
        ],
        dim=-1,
    ).to(qkv.dtype)
    values = qkv[:, query_heads + kv_heads :]
    write_kv(torch.cat([turned[:, query_heads:], values], dim=1), cache, slots, scales)
    kept = query_heads + kv_heads if keep_keys else query_heads
    qkv[:, :kept] = turned[:, :kept]


def decode_attention(
    queries: Tensor,
    cache: Tensor,
    tables: BlockTables,
    lengths: Tensor,
    **rules: Any,
) -> Tensor:
    """Attend with one token a sequence; window, softcap, sinks and scales are the kernel's."""
    spans = [
        Span(table, row, 1, length - 1)
        for row, (table, length) in enumerate(
            zip(tables.starts.tolist(), lengths.tolist(), strict=True)
        )
        if length
    ]
    return prefill_attention(queries, cache, tables.blocks, spans, **rules)


def prefill_attention(
    queries: Tensor,
    cache: Tensor,
    blocks: Tensor,
    spans: Sequence[Span],
    **rules: Any,
) -> Tensor:
    """Attend with the rows of ``spans``; other rows are zeros."""
    output = torch.zeros_like(queries, memory_format=torch.contiguous_format)
    for span in spans:
        rows = slice(span.start, span.start + span.num_tokens)
        table = blocks[span.table :]
        output[rows] = _attend(queries[rows], cache, table, span.prefix, **rules)
    return output


def _attend(
    queries: Tensor,
    cache: Tensor,
    table: Tensor,
    first: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Attend with tokens of one sequence, the first at position ``first``."""
    tokens, heads, head_dim = queries.shape
    kv_heads, block_size = cache.shape[1] // 2, cache.shape[2]
    num_keys = first + tokens
    blocks = cache[table[: -(-num_keys // block_size)].long()].double()
    if scales is not None:
        blocks *= scales.double().view(-1, 1, 1)
    rows = blocks.transpose(0, 1).reshape(2 * kv_heads, -1, head_dim)[:, :num_keys]
    keys, values = rows.repeat_interleave(heads // kv_heads, dim=0).chunk(2)
    scores = torch.einsum("thd,hkd->htk", queries.double(), keys) * head_dim**-0.5
    position = torch.arange(first, num_keys, device=queries.device).unsqueeze(1)
    key = torch.arange(num_keys, device=queries.device)
    seen = key <= position
    if window is not None:
        seen &= key > position - window
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sink = sinks.double().view(-1, 1, 1).expand(-1, tokens, 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :num_keys]
    return torch.einsum("htk,hkd->thd", weights, values).to(queries.dtype)


def sample_tokens(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Choose from sorted logits; ``sampling.sample_tokens`` has arguments and result."""
    best = logits.float().amax(dim=-1, keepdim=True)
    finite = torch.isfinite(best).squeeze(1) & ~torch.isnan(logits).any(dim=-1)
    sound = torch.where(finite.unsqueeze(1), logits.float(), 0.0)
    inverse = 1.0 / rows.temperature.clamp(min=MIN_TEMPERATURE).view(-1, 1)
    distances = (sound.amax(dim=-1, keepdim=True) - sound) * inverse
    noise = log_exponential(rows.keys, vocabulary(logits.shape[-1], logits.device))
    scores = (distances + noise).masked_fill(~kept_tokens(distances, rows), torch.inf)
    greedy = rows.temperature.flatten() < MIN_TEMPERATURE
    tokens = torch.where(greedy, sound.argmax(dim=-1), scores.argmin(dim=-1))
    return torch.where(finite, tokens, NOT_FINITE)


def kept_tokens(distances: Tensor, rows: SamplingRows) -> Tensor:
    """Return bool [rows, vocab]: what min_p, then top_k, then top_p leave; of equals lower ids.

    ``distances`` [rows, vocab] tell how far below the best a logit lies, over the temperature.
    """
    vocab = distances.shape[-1]
    allowed = distances.masked_fill(distances > -rows.log_min_p.view(-1, 1), torch.inf)
    ordered, ids = allowed.sort(dim=-1, stable=True)
    ranks = torch.arange(vocab, device=distances.device)
    ordered = ordered.masked_fill(ranks >= rows.top_k.view(-1, 1), torch.inf)
    weights = torch.softmax(-ordered.double(), dim=-1)
    dropped = weights.cumsum(dim=-1) - weights >= rows.top_p.double().view(-1, 1)
    dropped[:, 0] = False
    kept = ~dropped & (ordered < torch.inf)
    return torch.zeros_like(kept).scatter(1, ids, kept)


def quantized_matmul(rows: Tensor, weight: PackedWeight) -> Tensor:
    """See ``quantized_matmul``."""
    return (rows.double() @ weight.dequantized(torch.float64).t()).to(rows.dtype)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """See ``quantize_rows``."""
    scales = (rows.float().abs().amax(dim=1, keepdim=True) / 448).clamp(min=1e-12)
    return (rows.float() / scales).to(torch.float8_e4m3fn), scales


def grouped_matmul(pairs: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply the pairs of one expert after another."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    groups = zip(torch.split(pairs, counts), weights, strict=True)
    return torch.cat([rows.double() @ own.double().t() for rows, own in groups]).to(pairs.dtype)
