"""What a model asks of attention; the backends are in ``executor.attention``.

A model hands over what its projection gives, before norms and rotation, so that a backend can
fuse both with the write to the KV cache.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.models.layers import RMSNorm


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRules:
    """What becomes of attention scores beside scaling (Gemma 2, GPT-OSS).

    ``softcap`` bends scores into plus and minus that, before masks. ``sinks`` [heads] is a score
    of each head that takes its share of the softmax and has no value.
    """

    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLayer:
    """One layer: which KV it has, and how it attends.

    With a ``window`` a token attends to itself and the ``window - 1`` tokens before it.
    ``head_norm`` normalises queries and keys head by head before they are rotated.
    """

    index: int
    window: int | None = None
    head_norm: RMSNorm | None = None
    rules: ScoreRules | None = None


class Attention(Protocol):
    """Attention of one step: it knows whose token is whose."""

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        """Cache the new keys and values, then attend.

        ``qkv`` is [tokens, heads + 2 * kv_heads, head_dim] and may be changed. ``rotations`` is
        complex64 [tokens, 1, head_dim / 2]; None: queries and keys are rotated already. Returns
        [tokens, heads * head_dim].
        """


def ruled_decode(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rules: ScoreRules
) -> Tensor:
    """Attend with [sequences * kv_heads, group, head_dim].

    ``keys`` is [sequences * kv_heads, head_dim, keys], ``values`` the transpose of such a shape,
    ``mask`` [sequences * kv_heads, 1, keys] is added.
    """
    batch, group, head_dim = queries.shape
    sinks = rules.sinks
    if sinks is not None:
        per_sequence = sinks.view(-1, group, 1)
        sinks = per_sequence.repeat(batch // len(per_sequence), 1, 1)
    scores = torch.bmm(queries, keys).mul_(head_dim**-0.5)
    return torch.bmm(_weights(scores, mask, rules.softcap, sinks), values)


def ruled_prefill(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, rules: ScoreRules
) -> Tensor:
    """Attend with [tokens, heads, head_dim] to [kv_heads, keys, head_dim].

    ``seen`` [tokens, keys] says which key a token may see. Returns [tokens, heads * head_dim].
    """
    num_tokens, num_heads, head_dim = queries.shape
    grouped = queries.transpose(0, 1).reshape(len(keys), -1, num_tokens, head_dim)
    sinks = rules.sinks
    if sinks is not None:
        sinks = sinks.view(len(keys), -1, 1, 1).expand(-1, -1, num_tokens, 1)
    mask = torch.zeros(seen.shape, device=seen.device, dtype=queries.dtype)
    mask.masked_fill_(~seen, -torch.inf)
    scores = torch.matmul(grouped, keys.unsqueeze(1).transpose(2, 3)).mul_(head_dim**-0.5)
    attended = torch.matmul(_weights(scores, mask, rules.softcap, sinks), values.unsqueeze(1))
    return attended.view(num_heads, num_tokens, head_dim).transpose(0, 1).flatten(1)


def _weights(scores: Tensor, mask: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores + mask
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    joined = torch.cat((scores, sinks.to(scores.dtype)), dim=-1)
    return torch.softmax(joined, dim=-1, dtype=torch.float32)[..., :-1].to(scores.dtype)
