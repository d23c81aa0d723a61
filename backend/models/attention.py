"""Attention over the paged KV cache: the one place that reads and writes cached keys and values.

A layer's cache is [blocks, 2 * kv_heads, block, head_dim], the heads of the keys before those of
the values. What one head keeps in one block is contiguous, so gathering by block table yields
keys and values that batched products read without another copy. Of sequences that decode a
contiguous copy is kept where there is room (``executor.kv_mirror``), so that nothing is gathered
twice. Kernels that read blocks in place are another ``Attention``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from backend.models.score_rules import ScoreRules, ruled_decode, ruled_prefill
from backend.models.threads import ThreadsWorth


class Attention(Protocol):
    """Attention of one step, for every layer: it knows whose token is whose."""

    def __call__(
        self, layer: int, queries: Tensor, keys_values: Tensor, window: int | None
    ) -> Tensor:
        """Cache the new keys and values, then attend.

        ``queries`` is [tokens, heads, head_dim], ``keys_values`` [tokens, 2 * kv_heads, head_dim].
        With a ``window`` a token attends to itself and the ``window - 1`` tokens before it. Returns
        [tokens, heads * head_dim].
        """
        ...


@runtime_checkable
class RuledAttention(Protocol):
    """An ``Attention`` that can do more to scores than scale them."""

    def __call__(
        self, layer: int, queries: Tensor, keys_values: Tensor, window: int | None
    ) -> Tensor:
        """See Attention."""
        return self.ruled(layer, queries, keys_values, window, None)

    def ruled(
        self,
        layer: int,
        queries: Tensor,
        keys_values: Tensor,
        window: int | None,
        rules: ScoreRules | None,
    ) -> Tensor:
        """Do as ``Attention`` does, by ``rules``."""
        ...


@dataclass(frozen=True, slots=True)
class MirroredLayer:
    """One layer's contiguous copy of a group's KV.

    ``rows`` is all of it as rows of head_dim; ``keys`` [sequences * kv_heads, head_dim, keys] and
    ``values`` [sequences * kv_heads, keys, head_dim] are views of it.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Mirror:
    """Copies of a group's KV; ``write_rows`` [sequences * 2 * kv_heads] takes the new tokens'."""

    write_rows: Tensor
    layers: Sequence[MirroredLayer]


@dataclass(frozen=True, slots=True)
class Gather:
    """Where a group's KV lies in the cache, and room to bring it together.

    ``cache_rows`` [2 * sequences * kv_heads * blocks] picks the keys, then the values, of their
    blocks, padded to the longest table; rows count heads of blocks. ``buffer`` holds as many.
    """

    cache_rows: Tensor
    buffer: Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of similar length with one query token each: tokens ``start`` to ``stop``.

    ``mask`` [sequences * kv_heads, 1, keys] is 0 where there is a key, else -inf.
    """

    start: int
    stop: int
    mask: Tensor
    keys_values: Mirror | Gather


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several consecutive tokens of one sequence: tokens ``start`` to ``stop``.

    ``cache_rows`` [2 * kv_heads * blocks] reaches the ``done`` tokens that earlier steps computed;
    it is None when there are none.
    """

    start: int
    stop: int
    done: int = 0
    cache_rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How the tokens of one step attend; made once, used by every layer.

    ``write_rows`` [tokens * 2 * kv_heads] is where each new key and value goes in a cache seen as
    rows of head_dim. Decode groups cover the first tokens, prefill spans the rest.
    """

    write_rows: Tensor
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillSpan, ...]


@dataclass(slots=True)
class PagedAttention(RuledAttention):
    """``Attention`` in plain torch: a step's plan and the caches of all layers."""

    plan: AttentionPlan
    caches: Sequence[Tensor]
    _masks: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)
    """By first token of a group or span, and window."""

    def ruled(
        self,
        layer: int,
        queries: Tensor,
        keys_values: Tensor,
        window: int | None,
        rules: ScoreRules | None,
    ) -> Tensor:
        """See RuledAttention."""
        plan, cache = self.plan, self.caches[layer]
        num_tokens, _, head_dim = keys_values.shape
        rows = keys_values.reshape(-1, head_dim)
        cache.view(-1, head_dim).index_copy_(0, plan.write_rows, rows)
        if len(plan.decode) == 1 and not plan.prefill:
            return self._decode(plan.decode[0], layer, queries, rows, window, rules=rules)
        attended = queries.new_empty(num_tokens, queries.shape[1] * head_dim)
        for group in plan.decode:
            new = slice(group.start, group.stop)
            group_rows = keys_values[new].reshape(-1, head_dim)
            attended[new] = self._decode(
                group, layer, queries[new], group_rows, window, rules=rules
            )
        for span in plan.prefill:
            new = slice(span.start, span.stop)
            attended[new] = self._prefill(
                span, cache, queries[new], keys_values[new], window, rules=rules
            )
        return attended

    def _decode(
        self,
        group: DecodeGroup,
        layer: int,
        queries: Tensor,
        new_rows: Tensor,
        window: int | None,
        *,
        rules: ScoreRules | None,
    ) -> Tensor:
        # Query heads that share a KV head are the rows of one product, so KV is never repeated. On
        # CPU two batched products take 0.6 of the time of scaled_dot_product_attention here.
        num_tokens, _, head_dim = queries.shape
        batch, _, num_keys = group.mask.shape
        copies = group.keys_values
        if isinstance(copies, Mirror):
            mirrored = copies.layers[layer]
            mirrored.rows.index_copy_(0, copies.write_rows, new_rows)
            keys, values = mirrored.keys, mirrored.values
        else:
            blocks = self.caches[layer].flatten(0, 1)
            torch.index_select(blocks, 0, copies.cache_rows, out=copies.buffer)
            gathered, values = copies.buffer.view(2, batch, num_keys, head_dim).unbind(0)
            keys = gathered.transpose(1, 2)
        mask = group.mask if window is None else self._decode_mask(group, window)
        grouped = queries.reshape(batch, -1, head_dim)
        if rules is not None:
            return ruled_decode(grouped, keys, values, mask, rules).view(num_tokens, -1)
        with ThreadsWorth(2 * batch * num_keys * head_dim * queries.itemsize):
            scores = torch.baddbmm(mask, grouped, keys, alpha=head_dim**-0.5)
            weights = torch.softmax(scores, -1, dtype=torch.float32)
            if queries.dtype is not torch.float32:
                weights = weights.to(queries.dtype)
            return torch.bmm(weights, values).view(num_tokens, -1)

    def _prefill(
        self,
        span: PrefillSpan,
        cache: Tensor,
        queries: Tensor,
        keys_values: Tensor,
        window: int | None,
        *,
        rules: ScoreRules | None,
    ) -> Tensor:
        if span.cache_rows is None:
            keys, values = keys_values.transpose(0, 1).chunk(2)
        else:
            gathered = cache.flatten(0, 1).index_select(0, span.cache_rows)
            shape = (2, keys_values.shape[1] // 2, -1, queries.shape[-1])
            keys, values = gathered.view(shape)[:, :, : span.done + len(queries)].unbind(0)
        mask = self._prefill_mask(span, queries.device, window)
        if rules is not None:
            if mask is None:
                mask = torch.ones(len(queries), len(queries), device=queries.device).tril() > 0
            return ruled_prefill(queries, keys, values, mask, rules)
        num_scores = queries.shape[0] * queries.shape[1] * keys.shape[1]
        with ThreadsWorth(num_scores * queries.itemsize):
            attended = functional.scaled_dot_product_attention(
                queries.transpose(0, 1).unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=len(keys) != queries.shape[1],
            )
        return attended[0].transpose(0, 1).flatten(1)

    def _decode_mask(self, group: DecodeGroup, window: int) -> Tensor:
        """Hide from each sequence what lies before the window of its last token."""
        if group.mask.shape[-1] <= window:
            return group.mask
        place = (group.start, window)
        mask = self._masks.get(place)
        if mask is None:
            lengths = (group.mask == 0).sum(-1, keepdim=True)
            ages = lengths - torch.arange(group.mask.shape[-1], device=lengths.device)
            mask = self._masks[place] = group.mask.masked_fill(ages > window, -torch.inf)
        return mask

    def _prefill_mask(
        self, span: PrefillSpan, device: torch.device, window: int | None
    ) -> Tensor | None:
        """Return which keys each token sees, None when that is plainly causal."""
        place = (span.start, window)
        if place not in self._masks:
            num_keys = span.done + span.stop - span.start
            if span.done == 0 and (window is None or num_keys <= window):
                self._masks[place] = None
            else:
                keys = torch.arange(num_keys, device=device)
                ages = keys[span.done :].unsqueeze(1) - keys
                seen = ages >= 0
                self._masks[place] = seen if window is None else seen & (ages < window)
        return self._masks[place]
