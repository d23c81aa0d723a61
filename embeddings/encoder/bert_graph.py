"""BERT as an ONNX graph, made in memory from weights in the layout of Hugging Face.

With a table of distances among the weights, attention also sees how far apart two tokens are, as
MPNet's does (Song et al. 2020, after T5); all else of the two networks is equal.

Two heads: a sentence encoder (mean of the tokens that count, unit length) and a cross-encoder (one
logit: what the tokens leave over that tell the two texts apart).

Laws: float weights give the reference's figures up to rounding; quantised weights are multiplied in
integers, with activations rounded anew at every product. One scale serves all rows of a product, so
only pairs that run alone have scores that do not depend on their company. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from embeddings.encoder.plain_bert import BertShape

INPUTS: Final = ("ids", "types", "mask")
DISTANCES: Final = "encoder.relative_attention_bias.weight"
"""The table among a network's weights, shape (buckets, heads)."""
_FARTHEST: Final = 128
"""Tokens; all that is farther is one bucket."""

_FUSED: Final = "com.microsoft"
_OPERATORS: Final = (helper.make_opsetid("", 20), helper.make_opsetid(_FUSED, 1))
# The format that came with operator set 20; newer ones would need a newer runtime.
_FORMAT: Final = 9
# The logit of a token that does not count.
_PADDING: Final = -1e4
# Processors with AVX2 and without VNNI add two products in 16 bits. Weights of seven bits cannot
# make them overflow, so a score does not depend on the machine.
_SEVEN_BITS: Final = 63
_EIGHT_BITS: Final = 127
_POSITIONS: Final = "embeddings.position_embeddings.weight"


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight of `values * scale`: int8 of shape (out, in), one scale for each output."""

    values: NDArray[np.int8]
    scale: NDArray[np.float32]

    def floats(self) -> NDArray[np.float32]:
        """Return the weight as floats."""
        whole: NDArray[np.float32] = self.values.astype(np.float32) * self.scale[:, None]
        return whole


def quantised(weight: NDArray[np.float32]) -> Quantised:
    """Return a matrix in eight bits. A row of zeros keeps a scale that is not zero."""
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest / _EIGHT_BITS, 1).astype(np.float32)
    return Quantised(np.round(weight / scale[:, None]).astype(np.int8), scale)


def seven_bits(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return what a product multiplies for weights in eight bits."""
    narrow = values.astype(np.float32) * (_SEVEN_BITS / _EIGHT_BITS)
    whole: NDArray[np.int8] = np.round(narrow).astype(np.int8)
    return whole


def compressible(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return weights in eight bits with the same product, one for each that it can tell apart.

    Half of all values do not occur, so a wheel needs a bit less for each weight.
    """
    wide = seven_bits(values).astype(np.float32) * (_EIGHT_BITS / _SEVEN_BITS)
    whole: NDArray[np.int8] = np.round(wide).astype(np.int8)
    return whole


@dataclass(frozen=True, slots=True)
class Graph:
    """An ONNX model, and the constants that it names without holding them.

    Inside, ninety megabytes of weights would be copied six times before they are in use.
    """

    model: bytes
    constants: Mapping[str, NDArray[Any]]


Weight = NDArray[np.float32] | NDArray[np.float16] | Quantised
Weights = Mapping[str, Weight]


def sentence_encoder(shape: BertShape, weights: Weights) -> Graph:
    """Return the model `ids, types, mask -> vectors`: unit length, one row for each text.

    Raises KeyError for a weight that is missing.
    """
    graph = _Graph(shape, weights)
    rows = graph.add("Unsqueeze", graph.mask(TensorProto.FLOAT), graph.whole(1))
    # The sum has the direction of the mean, and only that is left of it.
    total = graph.add("Squeeze", graph.add("MatMul", rows, graph.tokens()), graph.whole(1))
    return graph.ending_in("vectors", "LpNormalization", total, axis=-1, p=2)


def cross_encoder(shape: BertShape, weights: Weights) -> Graph:
    """Return the model `ids, types, mask -> logits`: one for each pair.

    The logit is `bias - logsumexp(tokens @ weight) + log(tokens)` over the tokens that count, with
    the head `classifier.weight`, shape (1, hidden), and `classifier.bias`, shape (1,). Raises
    KeyError for a weight that is missing.
    """
    graph = _Graph(shape, weights)
    weight = graph.constant("classifier.weight", _floats(weights["classifier.weight"]).T)
    differs = graph.add("Squeeze", graph.add("MatMul", graph.tokens(), weight), graph.whole(2))
    padding = graph.add("Constant", value_float=_PADDING)
    counted = graph.add("Where", graph.mask(TensorProto.BOOL), differs, padding)
    total = graph.add("ReduceLogSumExp", counted, graph.whole(1), keepdims=0)
    count = graph.add("ReduceSum", graph.mask(TensorProto.FLOAT), graph.whole(1), keepdims=0)
    mean = graph.add("Sub", total, graph.add("Log", count))
    return graph.ending_in("logits", "Sub", graph.floats("classifier.bias"), mean)


class _Graph:
    """Nodes and constants as they are added; what adds one returns the name of its value."""

    def __init__(self, shape: BertShape, weights: Weights) -> None:
        self._shape = shape
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._distances: str | None = None

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"value.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def whole(self, *numbers: int) -> str:
        return self.add("Constant", value_ints=numbers)

    def mask(self, kind: int) -> str:
        return self.add("Cast", "mask", to=kind)

    def constant(self, name: str, values: NDArray[Any]) -> str:
        name = f"constant.{name}"
        self._constants[name] = np.ascontiguousarray(values)
        return name

    def floats(self, *names: str) -> str:
        """Add weights as floats, side by side."""
        whole = np.concatenate([_floats(self._weights[name]) for name in names])
        return self.constant("+".join(names), whole)

    def tokens(self) -> str:
        """Add the model without a head: one row for each token."""
        length = self.add("Shape", "ids", start=1)
        positions = self.floats(_POSITIONS)
        tokens = self.add("Slice", positions, self.whole(0), length)
        if DISTANCES in self._weights:
            self._distances = self._between_tokens(length)
        for kind, indices in (("word", "ids"), ("token_type", "types")):
            rows = self._looked_up(f"embeddings.{kind}_embeddings.weight", indices)
            tokens = self.add("Add", tokens, rows)
        tokens = self._norm("embeddings.LayerNorm", tokens)
        for number in range(self._shape.layers):
            tokens = self._layer(f"encoder.layer.{number}", tokens)
        return tokens

    def ending_in(self, output: str, operator: str, *inputs: str, **attributes: Any) -> Graph:
        """Add the last node, and return the graph whose result it is."""
        self.add(operator, *inputs, output=output, **attributes)
        shape = ("batch", "length")
        graph = helper.make_graph(
            self._nodes,
            "bert",
            [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name in INPUTS],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [_declared(name, values) for name, values in self._constants.items()],
        )
        model = helper.make_model(graph, opset_imports=_OPERATORS, ir_version=_FORMAT)
        return Graph(bytes(model.SerializeToString()), self._constants)

    def _layer(self, name: str, tokens: str) -> str:
        attended = self._attention(f"{name}.attention.self", tokens)
        projected = self._product(attended, f"{name}.attention.output.dense", bias=True)
        # Not SkipLayerNormalization, which is one operator and takes three times as long.
        total = self.add("Add", projected, tokens)
        tokens = self._norm(f"{name}.attention.output.LayerNorm", total)
        inner = self._product(tokens, f"{name}.intermediate.dense")
        bias = self.floats(f"{name}.intermediate.dense.bias")
        inner = self.add("BiasGelu", inner, bias, domain=_FUSED)
        outer = self._product(inner, f"{name}.output.dense", bias=True)
        return self._norm(f"{name}.output.LayerNorm", self.add("Add", outer, tokens))

    def _attention(self, name: str, tokens: str) -> str:
        modules = [f"{name}.{part}" for part in ("query", "key", "value")]
        joined = self._product(tokens, *modules)
        parts = [f"{joined}.{place}" for place in range(len(modules))]
        biases = [f"{module}.bias" for module in modules]
        widths = self.whole(*(len(_floats(self._weights[bias])) for bias in biases))
        self._nodes.append(helper.make_node("Split", [joined, widths], parts, axis=-1))
        inputs = [*parts, self.floats(*biases), "mask"]
        if self._distances is not None:
            inputs.append(self._distances)
        heads = self._shape.heads
        return self.add("MultiHeadAttention", *inputs, domain=_FUSED, num_heads=heads)

    def _between_tokens(self, length: str) -> str:
        """Add what attention adds for each distance: shape (1, heads, length, length)."""
        most = len(_floats(self._weights[_POSITIONS]))
        whole = _distance_bias(_floats(self._weights[DISTANCES]), most)
        ends = self.add("Concat", length, length, axis=0)
        named = self.constant(DISTANCES, whole[None])
        return self.add("Slice", named, self.whole(0, 0), ends, self.whole(2, 3))

    def _product(self, value: str, *modules: str, bias: bool = False) -> str:
        """Add one product with the weights of all `modules`, their outputs side by side."""
        name = "+".join(modules)
        biases = [self.floats(*(f"{module}.bias" for module in modules))] if bias else []
        parts = [self._weights[f"{module}.weight"] for module in modules]
        eight = [part for part in parts if isinstance(part, Quantised)]
        if len(eight) < len(parts):
            whole = np.concatenate([_floats(part) for part in parts])
            product = self.add("MatMul", value, self.constant(name, whole.T))
            return self.add("Add", product, *biases) if bias else product
        narrow = seven_bits(np.concatenate([part.values for part in eight]).T)
        scale = np.concatenate([part.scale for part in eight])
        wide = (scale * (_EIGHT_BITS / _SEVEN_BITS)).astype(np.float32)
        weight = self.constant(name, narrow), self.constant(f"{name}.scale", wide)
        zero_point = [""] if bias else []
        inputs = (value, *weight, *zero_point, *biases)
        return self.add("DynamicQuantizeMatMul", *inputs, domain=_FUSED)

    def _norm(self, name: str, value: str) -> str:
        scale, shift = self.floats(f"{name}.weight"), self.floats(f"{name}.bias")
        epsilon = self._shape.epsilon
        return self.add("LayerNormalization", value, scale, shift, axis=-1, epsilon=epsilon)

    def _looked_up(self, name: str, indices: str) -> str:
        table = self._weights[name]
        values = table.values if isinstance(table, Quantised) else table
        rows = self.add("Gather", self.constant(name, values), indices)
        rows = self.add("Cast", rows, to=TensorProto.FLOAT)
        if not isinstance(table, Quantised):
            return rows
        scales = self.constant(f"{name}.scale", table.scale[:, None])
        return self.add("Mul", rows, self.add("Gather", scales, indices))


def _declared(name: str, values: NDArray[Any]) -> TensorProto:
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    declared = TensorProto(name=name, data_type=kind, dims=values.shape)
    declared.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", "0"), ("length", str(values.nbytes))):
        declared.external_data.add(key=key, value=value)
    return declared


def _floats(weight: Weight) -> NDArray[np.float32]:
    return (
        weight.floats() if isinstance(weight, Quantised) else weight.astype(np.float32, copy=False)
    )


def _distance_bias(table: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Return what a table adds to attention, shape (heads, length, length): from row to column."""
    places = np.arange(length)
    found: NDArray[np.float32] = table[_buckets(places[None, :] - places[:, None], len(table))]
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def _buckets(distance: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the bucket of each distance: one each near by, then ever wider ones."""
    half, near = count // 2, count // 4
    away = np.abs(distance)
    steps = np.log(np.maximum(away, near) / near) / np.log(_FARTHEST / near)
    wide = np.minimum(near + (steps * (half - near)).astype(np.int64), half - 1)
    after: NDArray[np.int64] = np.where(distance > 0, half, 0)
    return after + np.where(away < near, away, wide)
