"""Attention over the paged KV cache: the one place that reads and writes cached keys and values.

The layout of a layer's cache is [2, blocks * kv_heads, block, head_dim]: the block of one head is
contiguous, so gathering by block table yields keys and values that batched products read without
another copy. A kernel that reads blocks in place can replace ``paged_attention`` alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of similar length with one query token each: tokens ``start`` to ``stop``.

    ``cache_rows`` [sequences * kv_heads * blocks] picks their blocks, padded to the longest;
    ``mask`` [sequences * kv_heads, 1, blocks * block] is 0 where there is a key, else -inf.
    """

    start: int
    stop: int
    cache_rows: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several consecutive tokens of one sequence: tokens ``start`` to ``stop``.

    ``cache_rows`` [kv_heads * blocks] and ``mask`` (bool [stop - start, keys]) reach the tokens
    computed in earlier steps; both are None when the span begins the sequence.
    """

    start: int
    stop: int
    cache_rows: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How the tokens of one step attend; made once, used by every layer.

    ``write_rows`` [tokens * kv_heads] is where each new key and value goes in a cache seen as
    rows of head_dim. Decode groups cover the first tokens, prefill spans the rest.
    """

    write_rows: Tensor
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillSpan, ...]


def paged_attention(
    queries: Tensor, keys: Tensor, values: Tensor, cache: Tensor, plan: AttentionPlan
) -> Tensor:
    """Write the new keys and values to ``cache`` and attend.

    ``queries`` is [tokens, heads, head_dim], ``keys`` and ``values`` [tokens, kv_heads,
    head_dim]. Returns [tokens, heads * head_dim].
    """
    head_dim = queries.shape[-1]
    key_cache, value_cache = cache[0], cache[1]
    key_cache.view(-1, head_dim).index_copy_(0, plan.write_rows, keys.reshape(-1, head_dim))
    value_cache.view(-1, head_dim).index_copy_(0, plan.write_rows, values.reshape(-1, head_dim))
    parts = [_decode(queries, cache, group) for group in plan.decode]
    parts += [_prefill(queries, keys, values, cache, span) for span in plan.prefill]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(queries: Tensor, cache: Tensor, group: DecodeGroup) -> Tensor:
    # Query heads that share a KV head are the rows of one product, so KV is never repeated. On
    # CPU two batched products take 0.6 of the time of scaled_dot_product_attention here.
    num_sequences = group.stop - group.start
    batch, _, num_keys = group.mask.shape
    head_dim = queries.shape[-1]
    keys = cache[0].index_select(0, group.cache_rows).view(batch, num_keys, head_dim)
    values = cache[1].index_select(0, group.cache_rows).view(batch, num_keys, head_dim)
    scores = torch.baddbmm(
        group.mask,
        queries[group.start : group.stop].reshape(batch, -1, head_dim),
        keys.transpose(1, 2),
        alpha=head_dim**-0.5,
    )
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values).view(num_sequences, -1)


def _prefill(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cache: Tensor,
    span: PrefillSpan,
) -> Tensor:
    head_dim = queries.shape[-1]
    new = slice(span.start, span.stop)
    if span.cache_rows is None or span.mask is None:
        past_keys = keys[new].transpose(0, 1)
        past_values = values[new].transpose(0, 1)
    else:
        num_kv_heads, num_keys = keys.shape[1], span.mask.shape[1]
        shape = (num_kv_heads, -1, head_dim)
        past_keys = cache[0].index_select(0, span.cache_rows).view(shape)[:, :num_keys]
        past_values = cache[1].index_select(0, span.cache_rows).view(shape)[:, :num_keys]
    attended = functional.scaled_dot_product_attention(
        queries[new].transpose(0, 1).unsqueeze(0),
        past_keys.unsqueeze(0),
        past_values.unsqueeze(0),
        attn_mask=span.mask,
        is_causal=span.mask is None,
        enable_gqa=keys.shape[1] != queries.shape[1],
    )
    return attended[0].transpose(0, 1).reshape(span.stop - span.start, -1)
