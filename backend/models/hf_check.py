"""Proves before the first request that a generic model computes here what it computes alone.

Two short sequences are computed as a step of the engine would, packed in one row and in pieces, and
their logits compared with the model's own for each by itself. Sliding windows are made short for
that time, so that they matter. Attention is a plain one: what is tested is that everything between
two attentions treats tokens one by one, and that attention is told all that it needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from backend.models.attention import AttentionLayer, ScoreRules, ruled_prefill
from backend.models.config import ModelLoadError, ModelShape, first_line
from backend.models.hf import GenericModel

# Greatest difference of a logit, in standard deviations of all logits.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
_LENGTHS = (24, 17)
# Tokens of each sequence in each step: prefill, a decode beside a prefill, a second chunk.
_STEPS = (((0, 10), (1, 7)), ((0, 1), (1, 10)), ((0, 13),))
_SHORT_WINDOW = 5


class _PlainAttention:
    """An ``Attention`` over everything that each sequence has had so far."""

    def __init__(self, num_heads: int) -> None:
        self.spans: tuple[tuple[int, int], ...] = ()
        self._num_heads = num_heads
        self._past: dict[tuple[int, int], Tensor] = {}

    def forward(self, layer: AttentionLayer, qkv: Tensor, rotations: Tensor | None) -> Tensor:
        del rotations
        queries, keys_values = qkv[:, : self._num_heads], qkv[:, self._num_heads :]
        attended = []
        start = 0
        for sequence, count in self.spans:
            new = slice(start, start + count)
            past = self._past.get((layer.index, sequence), keys_values[:0])
            known = torch.cat((past, keys_values[new]))
            self._past[layer.index, sequence] = known
            keys, values = known.transpose(0, 1).chunk(2)
            at = torch.arange(len(known), device=known.device)
            ages = at[len(past) :].unsqueeze(1) - at
            seen = (ages >= 0) & (ages < (len(known) if layer.window is None else layer.window))
            rules = layer.rules or ScoreRules()
            attended.append(ruled_prefill(queries[new], keys, values, seen, rules))
            start += count
        return torch.cat(attended)


@torch.inference_mode()
def verify(model: GenericModel, checkpoint_dtype: str) -> ModelShape:
    """Give ``model`` our attention and find its shape. Raises ModelLoadError.

    The refusal names the greatest difference that was measured.
    """
    name = f"{model.source}: {model.config.model_type}"
    vocab_size = int(model.config.vocab_size)
    prompts = [
        torch.arange(length, device=model.device) * 37 % (min(vocab_size, 500) - number)
        for number, length in enumerate(_LENGTHS)
    ]
    try:
        with _short_windows(model):
            expected = [model.own_logits(prompt) for prompt in prompts]
        model.take_over()
        shape = _shape(model, vocab_size, checkpoint_dtype)
        with _short_windows(model):
            computed = _in_steps(model, prompts, shape.num_heads)
    except ModelLoadError as error:
        raise ModelLoadError(f"{name}: {error}") from error
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        problem = f"does not run with paged attention: {first_line(error)}"
        raise ModelLoadError(f"{name} {problem}") from error
    alone, packed = torch.cat(expected).float(), torch.cat(computed).float()
    tolerance = _TOLERANCE[model.dtype]
    difference = float((alone - packed).abs().max() / alone.std())
    if not difference <= tolerance:  # NaN is refused too
        raise ModelLoadError(
            f"{name} computes something else with paged attention: logits "
            f"differ by {difference:.3g} standard deviations, {tolerance:g} are allowed"
        )
    return shape


def _shape(model: GenericModel, vocab_size: int, checkpoint_dtype: str) -> ModelShape:
    attentions = model.attentions()
    num_layers = int(model.config.num_hidden_layers)
    if sorted(each.layer for each in attentions) != list(range(num_layers)):
        raise ModelLoadError(
            f"{len(attentions)} attentions in {num_layers} layers: state-space layers, shared "
            "layers and attention beside transformers' AttentionInterface are not supported"
        )
    shapes = {each.shape for each in attentions}
    num_heads, num_kv_heads, head_dim = map(max, zip(*shapes, strict=True))
    if any(heads != num_heads or num_kv_heads % kv_heads for heads, kv_heads, _ in shapes):
        raise ModelLoadError(f"layers of different numbers of heads: {sorted(shapes)}")
    # One shape for all takes more memory, and caches and kernels need not know of layers.
    model.widen(num_kv_heads, head_dim)
    return ModelShape(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=int(model.config.max_position_embeddings),
        windows=tuple(each.window for each in attentions),
        checkpoint_dtype=checkpoint_dtype,
    )


def _in_steps(model: GenericModel, prompts: list[Tensor], num_heads: int) -> list[Tensor]:
    attention = _PlainAttention(num_heads)
    done = [0] * len(prompts)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for spans in _STEPS:
        attention.spans = spans
        ranges = [range(done[which], done[which] + count) for which, count in spans]
        tokens = [
            prompts[which][at.start : at.stop] for (which, _), at in zip(spans, ranges, strict=True)
        ]
        positions = torch.tensor([at for each in ranges for at in each], device=model.device)
        hidden = model.forward(torch.cat(tokens), positions, attention, None)
        parts = torch.split(model.logits(hidden), [count for _, count in spans])
        for (which, count), part in zip(spans, parts, strict=True):
            logits[which].append(part)
            done[which] += count
    return [torch.cat(parts) for parts in logits]


@contextmanager
def _short_windows(model: GenericModel) -> Iterator[None]:
    """Set every sliding window that the model knows of to a few tokens."""
    holders: dict[int, Any] = {id(each): each for each in (model.config, *model.modules())}
    before = [
        (holder, holder.sliding_window)
        for holder in holders.values()
        if isinstance(getattr(holder, "sliding_window", None), int)
    ]
    for holder, _ in before:
        holder.sliding_window = _SHORT_WINDOW
    try:
        yield
    finally:
        for holder, window in before:
            holder.sliding_window = window
