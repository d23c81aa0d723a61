"""A decoder's weights, fused: from a checkpoint, or random ones of the same shapes.

Tensors are read straight into the fused buffers: loading takes the memory of the weights and of
one tensor more.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from backend.models.checkpoint import FLOATS, Checkpoint, Slice, Span, Tensors
from backend.models.config import DecoderConfig, ExpertsConfig, ModelLoadError, read_json
from backend.models.decoder import MLP, DecoderLayer, DecoderWeights
from backend.models.layers import DenseLinear, Embedding, Linear, RMSNorm
from backend.models.moe import Experts
from backend.models.parallel import (
    ALONE,
    Communicator,
    Cut,
    RowParallel,
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
    sharded,
)
from backend.models.quantization.formats import CheckpointFormat, check_quantized, checkpoint_format
from backend.models.quantization.linears import quantized_embedding, quantized_linear
from backend.models.quantization.weight import QuantizedWeight, quantize
from backend.models.rope import interleave
from backend.models.wrappers import is_wrapper

logger = logging.getLogger(__name__)

_RANDOM_SCALE = 0.02
_LARGE_BYTES = 2 * 2**30


def load_weights(
    directory: Path,
    config: DecoderConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
    tell: Callable[[str], None] = logger.debug,
    ranks: Communicator = ALONE,
) -> DecoderWeights:
    """Read the tensors, or of each what ``ranks`` leave to this one. Raises ModelLoadError.

    They are cast and moved. ``int8`` makes embedding and matrices int8, one after the other.
    """
    source = directory / "config.json"
    values = read_json(source)
    held = checkpoint_format(values, str(source))
    checkpoint = Checkpoint(directory, is_wrapped=is_wrapper(values))
    if held is None:
        checkpoint.check_room(device, torch.int8 if int8 else dtype, ranks=ranks.size)
    else:
        check_quantized(checkpoint.names, str(source))
        code_bytes = held.code_bytes(device, dtype)
        checkpoint.check_room(device, dtype, held.bits, code_bytes, ranks=ranks.size)
    builder = Builder(config, checkpoint, device, dtype, tell, held=held, int8=int8, ranks=ranks)
    weights = builder.build()
    checkpoint.close()
    return weights


def random_weights(
    config: DecoderConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    int8: bool = False,
    seed: int = 0,
) -> DecoderWeights:
    """Make weights of the right shapes out of nothing, the same for the same ``seed``.

    For measurements: a model's real shapes without its checkpoint.
    """
    tensors = _RandomTensors(device, seed)
    return Builder(config, tensors, device, dtype, logger.debug, held=None, int8=int8).build()


class _RandomTensors:
    def __init__(self, device: torch.device, seed: int) -> None:
        self.source = "random weights"
        self._generator = torch.Generator(device).manual_seed(seed)

    def has(self, name: str) -> bool:  # noqa: ARG002 (of what is quantised there is nothing)
        return False

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        pass

    def read(
        self, name: str, shapes: Sequence[tuple[int, ...]], dtypes: Collection[torch.dtype]
    ) -> Tensor:
        raise NotImplementedError

    def read_part(self, name: str, part: Slice, dtypes: Collection[torch.dtype]) -> Tensor:
        raise NotImplementedError

    def read_into(self, name: str, out: Tensor, part: Slice | None = None) -> None:  # noqa: ARG002
        if name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, _RANDOM_SCALE, generator=self._generator)


Part = tuple[str, int, tuple[Span, ...]]
"""Name of a linear map in the checkpoint, its number of rows, and which of them are wanted."""


@dataclass(slots=True)
class Builder:
    """Allocates fused buffers and has them filled: with all, or with the part of one rank.

    ``config`` is of the whole model.
    """

    config: DecoderConfig
    tensors: Tensors
    device: torch.device
    dtype: torch.dtype
    tell: Callable[[str], None]
    held: CheckpointFormat | None
    int8: bool
    ranks: Communicator = ALONE
    num_bytes: int = 0
    own: DecoderConfig = field(init=False)
    cut: Cut = field(init=False)

    def __post_init__(self) -> None:
        self.own = sharded(self.config, self.ranks.size, self.tensors.source)
        self.cut = Cut(self.config, self.ranks.rank, self.ranks.size)

    def build(self) -> DecoderWeights:
        embedding, head = self._embedding()
        layers: list[DecoderLayer] = []
        source, total = self.tensors.source, self.config.num_layers
        for count in range(1, total + 1):
            layers.append(self._layer(count - 1))
            self.tell(f"{count} of {total} layers of {source}")
            if self.num_bytes > _LARGE_BYTES and count % max(total // 10, 1) == 0:
                gib = self.num_bytes / 2**30
                logger.info("%s: %d of %d layers, %.1f GiB", source, count, total, gib)
        if self.ranks.size == 1:
            return DecoderWeights(embedding, tuple(layers), self._norm("model.norm"), head)
        return DecoderWeights(
            VocabularyParallelEmbedding(embedding, self.cut.vocabulary, self.ranks),
            tuple(layers),
            self._norm("model.norm"),
            VocabularyParallelHead(head, self.config.vocab_size, self.ranks),
        )

    def _embedding(self) -> tuple[Embedding, Linear]:
        rows = self._vocabulary("model.embed_tokens.weight")
        tied, dtype, size = self._is_tied(rows), self.dtype, self.config.hidden_size
        if not self.int8:
            matrix = rows if tied else self._vocabulary("lm_head.weight")
            return Embedding(rows, dtype, size, shared=tied), self._dense(matrix)
        codes = quantize(rows)
        del rows
        if not tied:
            head = quantized_linear(quantize(self._vocabulary("lm_head.weight")), None, dtype)
            return quantized_embedding(codes, dtype), head
        head = quantized_linear(codes, None, dtype)
        return quantized_embedding(codes, dtype, head), head

    def _is_tied(self, rows: Tensor) -> bool:
        """Return whether ``rows`` of the embedding are the head's too."""
        name = "lm_head.weight"
        # transformers unties a head of other values, whatever the config says.
        return self.config.tied_embeddings and (
            not self.tensors.has(name) or torch.equal(self._vocabulary(name), rows)
        )

    def _vocabulary(self, name: str) -> Tensor:
        """Read this rank's rows of embedding or head."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        self.tensors.expect(name, shape)
        first, stop = self.cut.vocabulary
        matrix = self._empty(name, (self.cut.vocabulary_rows, shape[1]))
        part = Slice(shape, ((first, stop), (0, shape[1])))
        self.tensors.read_into(name, matrix[: stop - first], part)
        matrix[stop - first :] = 0
        return matrix

    def _layer(self, index: int) -> DecoderLayer:
        config, prefix = self.config, f"model.layers.{index}."
        attention = prefix + "self_attn."
        query_rows = config.num_heads * config.head_dim
        experts = config.experts
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}input_layernorm"),
            qkv=self._qkv(attention),
            head_norm=self._head_norm(attention) if config.qk_norm else None,
            output=self._row_parallel(f"{attention}o_proj", query_rows, bias=config.output_bias),
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm"),
            mlp=self._mlp(f"{prefix}mlp.")
            if experts is None or index not in experts.layers
            else self._experts(f"{prefix}{experts.module}.", experts),
            kv_scales=self._kv_scales(attention),
        )

    def _qkv(self, attention: str) -> Linear:
        config, own = self.config, self.own
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        query_rows, kv_rows = self.cut.query_rows, self.cut.kv_rows
        parts: tuple[Part, ...]
        if config.fused_projections:
            spans = (query_rows, _behind(queries, kv_rows), _behind(queries + keys, kv_rows))
            parts = ((f"{attention}qkv_proj", queries + 2 * keys, spans),)
        else:
            parts = (
                (f"{attention}q_proj", queries, (query_rows,)),
                (f"{attention}k_proj", keys, (kv_rows,)),
                (f"{attention}v_proj", keys, (kv_rows,)),
            )
        turned = (own.num_heads + own.num_kv_heads) * own.head_dim
        heads = torch.arange(turned + own.num_kv_heads * own.head_dim, device=self.device)
        turning = heads[:turned]
        turning.copy_(interleave(turning, config.head_dim, config.rotary.dim))
        return self._linear(parts, config.hidden_size, bias=config.qkv_bias, order=heads)

    def _head_norm(self, attention: str) -> RMSNorm:
        config, size = self.own, self.config.head_dim
        query, key = (
            interleave(self._single(f"{attention}{name}.weight", (size,)), size, config.rotary.dim)
            for name in ("q_norm", "k_norm")
        )
        each = [query] * config.num_heads + [key] * config.num_kv_heads
        return RMSNorm(torch.stack(each), config.rms_eps)

    def _kv_scales(self, attention: str) -> Tensor | None:
        heads = self.config.num_kv_heads
        scales = torch.ones(2, heads)
        names = [f"{attention}{each}_scale" for each in ("k", "v")]
        found = [name for name in names if self.tensors.has(name)]
        for name in found:
            shapes = ((1,), (), (heads,), (heads, 1, 1))
            read = self.tensors.read(name, shapes, FLOATS).float().flatten()
            if not bool((read > 0).all()):
                raise ModelLoadError(f"{self.tensors.source}: tensor {name} is not above 0")
            scales[names.index(name)] = read
        first, stop = self.cut.kv_heads
        return scales[:, first:stop].flatten().to(self.device) if found else None

    def _mlp(self, mlp: str, size: int | None = None) -> MLP:
        config = self.config
        inner = size or config.intermediate_size
        part = self.cut.part(inner)
        parts: tuple[Part, ...] = (
            ((f"{mlp}gate_up_proj", 2 * inner, (part, _behind(inner, part))),)
            if config.fused_projections
            else ((f"{mlp}gate_proj", inner, (part,)), (f"{mlp}up_proj", inner, (part,)))
        )
        return MLP(
            gate_up=self._linear(parts, config.hidden_size, bias=config.mlp_bias),
            down=self._row_parallel(f"{mlp}down_proj", inner, bias=config.mlp_bias),
        )

    def _experts(self, module: str, experts: ExpertsConfig) -> Experts:
        hidden, inner = self.config.hidden_size, experts.intermediate_size
        gate, up, down = experts.projections
        router = self._single(f"{module}gate.weight", (experts.num_experts, hidden))
        across = self.cut.part(inner)
        gate_ups: Tensor | tuple[Linear, ...]
        downs: Tensor | tuple[Linear, ...]
        if self._is_quantized(f"{module}experts.0.{gate}"):
            each = [f"{module}experts.{expert}." for expert in range(experts.num_experts)]
            gate_ups = tuple(
                self._linear(
                    ((name + gate, inner, (across,)), (name + up, inner, (across,))),
                    hidden,
                    bias=False,
                )
                for name in each
            )
            downs = tuple(
                self._linear(
                    ((name + down, hidden, ((0, hidden),)),), inner, across=across, bias=False
                )
                for name in each
            )
        else:
            gate_ups, downs = self._stacked(module, experts)
        return Experts(
            router,
            gate_ups,
            downs,
            top_k=experts.top_k,
            normalised=experts.normalised,
            ranks=self.ranks,
        )

    def _stacked(self, module: str, experts: ExpertsConfig) -> tuple[Tensor, Tensor]:
        """Read gate and up of all experts as one tensor, and down as another."""
        hidden, inner = self.config.hidden_size, experts.intermediate_size
        first, stop = self.cut.part(inner)
        rows = Slice((inner, hidden), ((first, stop), (0, hidden)))
        columns = Slice((hidden, inner), ((0, hidden), (first, stop)))
        parts = dict(zip(experts.projections, (rows, rows, columns), strict=True))
        last, size = f"{module}experts.{experts.num_experts - 1}.", stop - first
        for name, part in parts.items():
            self.tensors.expect(f"{last}{name}.weight", part.shape)
        gate, _, down = experts.projections
        gates_ups = self._empty(f"{last}{gate}.weight", (experts.num_experts, 2 * size, hidden))
        downs = self._empty(f"{last}{down}.weight", (experts.num_experts, hidden, size))
        for expert in range(experts.num_experts):
            buffers = (gates_ups[expert, :size], gates_ups[expert, size:], downs[expert])
            for (name, part), buffer in zip(parts.items(), buffers, strict=True):
                self.tensors.read_into(f"{module}experts.{expert}.{name}.weight", buffer, part)
        return gates_ups, downs

    def _is_quantized(self, name: str) -> bool:
        return self.int8 or (self.held is not None and self.held.holds(self.tensors, name))

    def _row_parallel(self, name: str, size: int, *, bias: bool) -> Linear:
        """Return a map to hidden states of which each rank has some of the ``size`` columns."""
        rows = self.config.hidden_size
        part: Part = (name, rows, ((0, rows),))
        if self.ranks.size == 1:
            return self._linear((part,), size, bias=bias)
        linear = self._linear((part,), size, across=self.cut.part(size), bias=False)
        return RowParallel(linear, self._fused((part,), "bias") if bias else None, self.ranks)

    def _linear(
        self,
        parts: Sequence[Part],
        size: int,
        *,
        bias: bool,
        across: Span | None = None,
        order: Tensor | None = None,
    ) -> Linear:
        """Join the linear maps ``parts`` of ``size`` columns, of which only ``across`` are wanted.

        ``order`` is that of the rows.
        """
        held, across = self.held, across or (0, size)
        weight: Tensor | QuantizedWeight
        if held is not None and held.holds(self.tensors, parts[0][0]):
            read = [
                held.read(self.tensors, name, (count, size), (span, across))
                for name, count, spans in parts
                for span in spans
            ]
            weight = QuantizedWeight.join(read).to(self.device)
            if order is not None:
                weight = weight.take(order)
        else:
            weight = self._fused(parts, "weight", (size, across))
            if order is not None:
                weight.copy_(weight.index_select(0, order))
            if self.int8:
                weight = quantize(weight)
        vector = self._fused(parts, "bias") if bias else None
        if vector is not None and order is not None:
            vector = vector.index_select(0, order)
        if isinstance(weight, Tensor):
            return self._dense(weight, vector)
        return quantized_linear(weight, vector, self.dtype)

    def _dense(self, weight: Tensor, bias: Tensor | None = None) -> DenseLinear:
        # A part of a weight has a copy where the whole would have one.
        return DenseLinear(weight, bias, self.ranks.size)

    def _fused(
        self, parts: Sequence[Part], kind: str, columns: tuple[int, Span] | None = None
    ) -> Tensor:
        """Join the weights or biases of ``parts``; ``columns``: how many, and which are wanted."""
        shape, at = ((columns[0],), (columns[1],)) if columns else ((), ())
        for name, count, _ in parts:
            self.tensors.expect(f"{name}.{kind}", (count, *shape))
        rows = sum(stop - first for _, _, spans in parts for first, stop in spans)
        fused = self._empty(f"{parts[0][0]}.{kind}", (rows, *(b - a for a, b in at)))
        start = 0
        for name, count, spans in parts:
            for span in spans:
                stop = start + span[1] - span[0]
                part = Slice((count, *shape), (span, *at))
                self.tensors.read_into(f"{name}.{kind}", fused[start:stop], part)
                start = stop
        return fused

    def _norm(self, name: str) -> RMSNorm:
        weight = self._single(f"{name}.weight", (self.config.hidden_size,))
        return RMSNorm(weight, self.config.rms_eps)

    def _single(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.tensors.expect(name, shape)
        tensor = self._empty(name, shape)
        self.tensors.read_into(name, tensor)
        return tensor

    def _empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Allocate what the tensor ``name`` is the first part of."""
        size = math.prod(shape) * self.dtype.itemsize
        try:
            buffer = torch.empty(shape, device=self.device, dtype=self.dtype)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on CPU there is no other
            raise ModelLoadError(
                f"{self.tensors.source}: tensor {name}: out of memory on {self.device}: "
                f"{size / 2**20:.0f} MiB more, after {self.num_bytes / 2**20:.0f} MiB of weights"
            ) from error
        self.num_bytes += size
        return buffer


def _behind(rows: int, span: Span) -> Span:
    return rows + span[0], rows + span[1]
