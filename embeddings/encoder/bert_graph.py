"""BERT as an ONNX graph, made in memory from weights in the layout of Hugging Face.

Two heads: a sentence encoder (mean of the tokens that count, unit length) and a cross-encoder (one
logit: what the tokens leave over that tell the two texts apart).

Laws: float weights give the reference's figures up to rounding; quantised weights are multiplied in
integers, with activations rounded anew at every product. One scale serves all rows of a product, so
only pairs that run alone have scores that do not depend on their company. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

_FUSED: Final = "com.microsoft"
_OPERATORS: Final = (helper.make_opsetid("", 20), helper.make_opsetid(_FUSED, 1))
# The format that came with operator set 20; newer ones would need a newer runtime.
_FORMAT: Final = 9
INPUTS: Final = ("ids", "types", "mask")
# The logit of a token that does not count.
_PADDING: Final = -1e4
# Processors with AVX2 and without VNNI add two products in 16 bits. Weights of seven bits cannot
# make them overflow, so a score does not depend on the machine.
_MOST: Final = 63
_LARGEST: Final = 127


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
    scale = np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32)
    return Quantised(np.round(weight / scale[:, None]).astype(np.int8), scale)


@dataclass(frozen=True, slots=True)
class Graph:
    """An ONNX model, and the constants that it names without holding them.

    Inside, ninety megabytes of weights would be copied six times before they are in use.
    """

    model: bytes
    constants: Mapping[str, NDArray[Any]]


Weight = NDArray[np.float32] | NDArray[np.float16] | Quantised
Weights = Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class BertShape:
    """What the weights do not tell of themselves."""

    layers: int
    heads: int
    epsilon: float


def bert_shape(config: Mapping[str, Any]) -> BertShape:
    """Return the shape that a config.json states. Raises ValueError for what is no plain BERT."""
    plain = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for setting, expected in plain.items():
        found = config.get(setting, None if setting == "model_type" else expected)
        if found != expected:
            raise ValueError(f"{setting} is {found!r}, expected {expected!r}")
    if config.get("is_decoder"):
        raise ValueError("a decoder, expected an encoder")
    try:
        shape = BertShape(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"incomplete configuration: {error}") from error
    if shape.layers < 1 or shape.heads < 1 or not 0 <= shape.epsilon < 1:
        raise ValueError(f"impossible configuration: {shape}")
    return shape


def sentence_encoder(shape: BertShape, weights: Weights) -> Graph:
    """Return the model `ids, types, mask -> vectors`: unit length, one row for each text.

    Raises KeyError for a weight that is missing.
    """
    graph = _Graph(weights, shape)
    tokens = graph.embedded()
    for layer in range(shape.layers):
        tokens = graph.layer(layer, tokens)
    mask = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    rows = graph.add("Unsqueeze", mask, graph.constant(1))
    # The sum has the direction of the mean, and only that is left of it.
    total = graph.add("Squeeze", graph.add("MatMul", rows, tokens), graph.constant(1))
    graph.add("LpNormalization", total, axis=-1, p=2, output="vectors")
    return graph.model("vectors")


def cross_encoder(shape: BertShape, weights: Weights) -> Graph:
    """Return the model `ids, types, mask -> logits`: one for each pair.

    The logit is `bias - logsumexp(tokens @ weight) + log(tokens)` over the tokens that count, with
    the head `classifier.weight`, shape (1, hidden), and `classifier.bias`, shape (1,). Raises
    KeyError for a weight that is missing.
    """
    graph = _Graph(weights, shape)
    tokens = graph.embedded()
    for layer in range(shape.layers):
        tokens = graph.layer(layer, tokens)
    differs = graph.add("Squeeze", graph.product(tokens, "classifier"), graph.constant(2))
    counts = graph.add("Cast", "mask", to=TensorProto.BOOL)
    differs = graph.add("Where", counts, differs, graph.float(_PADDING))
    total = graph.add("ReduceLogSumExp", differs, graph.constant(1), keepdims=0)
    mask = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    many = graph.add("Log", graph.add("ReduceSum", mask, graph.constant(1), keepdims=0))
    mean = graph.add("Sub", total, many)
    graph.add("Sub", graph.bias("classifier", ["classifier"]), mean, output="logits")
    return graph.model("logits")


class _Graph:
    """Nodes and constants as they are added; each `add` returns the name of the new value."""

    def __init__(self, weights: Weights, shape: BertShape) -> None:
        self._weights = weights
        self._shape = shape
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"value.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, *numbers: int) -> str:
        return self.add("Constant", value_ints=numbers)

    def float(self, number: float) -> str:
        return self.add("Constant", value_float=number)

    def product(self, value: str, module: str) -> str:
        """Add the product with a weight of few outputs, which stays a float."""
        weight = _floats(self._weights[f"{module}.weight"])
        return self.add("MatMul", value, self._array(f"{module}.weight", weight.T))

    def bias(self, name: str, modules: Sequence[str]) -> str:
        """Add the biases of all `modules` side by side."""
        parts = [_floats(self._weights[f"{module}.bias"]) for module in modules]
        return self._array(f"{name}.bias", np.concatenate(parts))

    def embedded(self) -> str:
        """Add the sum of token, type and position embeddings, normalised."""
        length = self.add("Shape", "ids", start=1)
        positions = self._floats("embeddings.position_embeddings.weight")
        total = self.add("Slice", positions, self.constant(0), length)
        for kind, indices in (("word", "ids"), ("token_type", "types")):
            rows = self._looked_up(f"embeddings.{kind}_embeddings.weight", indices)
            total = self.add("Add", total, rows)
        return self._norm("embeddings.LayerNorm", total)

    def layer(self, number: int, tokens: str) -> str:
        """Add a layer."""
        name = f"encoder.layer.{number}"
        attended = self._attention(f"{name}.attention.self", tokens)
        projected = self.linear(attended, [f"{name}.attention.output.dense"])
        tokens = self._normalised(f"{name}.attention.output.LayerNorm", projected, tokens)
        inner = self.linear(tokens, [f"{name}.intermediate.dense"], bias=False)
        bias = self._floats(f"{name}.intermediate.dense.bias")
        inner = self.add("BiasGelu", inner, bias, domain=_FUSED)
        outer = self.linear(inner, [f"{name}.output.dense"])
        return self._normalised(f"{name}.output.LayerNorm", outer, tokens)

    def linear(self, value: str, modules: Sequence[str], *, bias: bool = True) -> str:
        """Add one product with the weights of all `modules`, their outputs side by side."""
        name = "+".join(modules)
        parts = [self._weights[f"{module}.weight"] for module in modules]
        biases = [self.bias(name, modules)] if bias else []
        quantised = [part for part in parts if isinstance(part, Quantised)]
        if len(quantised) == len(parts):
            zero_point = [""] if biases else []
            inputs = [value, *self._seven_bits(name, quantised), *zero_point, *biases]
            return self.add("DynamicQuantizeMatMul", *inputs, domain=_FUSED)
        whole = np.concatenate([_floats(part) for part in parts])
        product = self.add("MatMul", value, self._array(name, whole.T))
        return self.add("Add", product, *biases) if bias else product

    def model(self, output: str) -> Graph:
        """Return the model whose result is `output`."""
        graph = helper.make_graph(
            self._nodes,
            "bert",
            [
                helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"])
                for name in INPUTS
            ],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [_declared(name, values) for name, values in self._constants.items()],
        )
        model = helper.make_model(graph, opset_imports=_OPERATORS, ir_version=_FORMAT)
        return Graph(bytes(model.SerializeToString()), self._constants)

    def _attention(self, name: str, tokens: str) -> str:
        modules = [f"{name}.{part}" for part in ("query", "key", "value")]
        joined = self.linear(tokens, modules, bias=False)
        parts = [f"{joined}.{place}" for place in range(len(modules))]
        split = [
            joined,
            self.constant(*(len(_floats(self._weights[f"{m}.bias"])) for m in modules)),
        ]
        self._nodes.append(helper.make_node("Split", split, parts, axis=-1))
        return self.add(
            "MultiHeadAttention",
            *(*parts, self.bias(name, modules), "mask"),
            domain=_FUSED,
            num_heads=self._shape.heads,
        )

    def _normalised(self, name: str, value: str, residual: str) -> str:
        # Not SkipLayerNormalization, which is one operator and takes three times as long.
        return self._norm(name, self.add("Add", value, residual))

    def _norm(self, name: str, value: str) -> str:
        scale, shift = self._floats(f"{name}.weight"), self._floats(f"{name}.bias")
        epsilon = self._shape.epsilon
        return self.add("LayerNormalization", value, scale, shift, axis=-1, epsilon=epsilon)

    def _looked_up(self, name: str, indices: str) -> str:
        table = self._weights[name]
        if not isinstance(table, Quantised):
            rows = self.add("Gather", self._array(name, table), indices)
            half = table.dtype == np.float16
            return self.add("Cast", rows, to=TensorProto.FLOAT) if half else rows
        rows = self.add("Gather", self._array(name, table.values), indices)
        scale = self.add("Gather", self._array(f"{name}.scale", table.scale[:, None]), indices)
        return self.add("Mul", self.add("Cast", rows, to=TensorProto.FLOAT), scale)

    def _seven_bits(self, name: str, parts: Sequence[Quantised]) -> list[str]:
        values = np.concatenate([part.values for part in parts]).T.astype(np.float32)
        scale = np.concatenate([part.scale for part in parts])
        narrow = np.round(values * (_MOST / _LARGEST)).astype(np.int8)
        wide = (scale * (_LARGEST / _MOST)).astype(np.float32)
        return [self._array(name, narrow), self._array(f"{name}.scale", wide)]

    def _floats(self, name: str) -> str:
        return self._array(name, _floats(self._weights[name]))

    def _array(self, name: str, values: NDArray[Any]) -> str:
        name = f"constant.{name}"
        if name not in self._constants:
            self._constants[name] = np.ascontiguousarray(values)
        return name


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
