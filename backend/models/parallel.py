"""Tensor parallelism: which part of each weight a rank has, and how the parts' results meet.

As in Megatron-LM: q, k, v, gate and up are cut by columns of the product (rows of the weight), o
and down by rows of the product, with a sum over ranks behind them. Embedding and head are cut by
vocabulary. What a rank has of a cut weight is an ordinary linear map; only o, down, embedding and
head know of other ranks. Norms and routers are whole on every rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from backend.models.checkpoint import Span
from backend.models.config import DecoderConfig, ModelLoadError
from backend.models.families import FAMILIES, native_family, parse_config
from backend.models.layers import Embedding, Linear


class Communicator(Protocol):
    """What the ranks of one model do together; every rank calls it in the same order."""

    rank: int
    size: int

    def all_reduce(self, part: Tensor) -> Tensor:
        """Return the sum over ranks, with the same bits on each; ``part`` may be overwritten."""

    def all_gather(self, part: Tensor) -> Tensor:
        """Return [rows, size * columns] of [rows, columns] from each rank, in their order."""


class Alone:
    """One rank, which has everything."""

    rank = 0
    size = 1

    def all_reduce(self, part: Tensor) -> Tensor:
        return part

    def all_gather(self, part: Tensor) -> Tensor:
        return part


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of ``rank``, of ``size`` equal ones, in the weights of ``whole``."""

    whole: DecoderConfig
    rank: int
    size: int

    def part(self, total: int) -> Span:
        """Return the span of ``total`` rows or columns; they divide, see ``sharded``."""
        each = total // self.size
        return self.rank * each, (self.rank + 1) * each

    @property
    def query_rows(self) -> Span:
        """The rows of the queries' heads."""
        return self.part(self.whole.num_heads * self.whole.head_dim)

    @property
    def kv_heads(self) -> Span:
        """The KV heads: a share of them, or one that ranks share where those are more."""
        heads = self.whole.num_kv_heads
        if heads >= self.size:
            return self.part(heads)
        head = self.rank * heads // self.size
        return head, head + 1

    @property
    def kv_rows(self) -> Span:
        """The rows of these heads in the keys' weights, and in those of the values."""
        first, stop = self.kv_heads
        return first * self.whole.head_dim, stop * self.whole.head_dim

    @property
    def vocabulary(self) -> Span:
        """The tokens whose rows of embedding and head a rank has; the last may have fewer."""
        total, each = self.whole.vocab_size, self.vocabulary_rows
        return min(self.rank * each, total), min((self.rank + 1) * each, total)

    @property
    def vocabulary_rows(self) -> int:
        """The rows of embedding and head on every rank; zeros fill up the last."""
        return -(-self.whole.vocab_size // self.size)


def sharded(config: DecoderConfig, size: int, source: str) -> DecoderConfig:
    """Return the shape of one rank of ``size``. Raises ModelLoadError for what does not divide.

    The vocabulary stays whole: every rank has all logits.
    """
    if size == 1:
        return config
    numbers = {"num_attention_heads": config.num_heads}
    experts = config.experts
    if experts is None or len(experts.layers) < config.num_layers:
        numbers["intermediate_size"] = config.intermediate_size
    if experts is not None:
        numbers["the experts' intermediate size"] = experts.intermediate_size
        experts = replace(experts, intermediate_size=experts.intermediate_size // size)
    for key, number in numbers.items():
        if number % size:
            raise ModelLoadError(
                f"{source}: {key}: {number} does not divide by tensor-parallel-size {size}"
            )
    kv_heads = config.num_kv_heads
    if kv_heads % size and size % kv_heads:
        raise ModelLoadError(
            f"{source}: num_key_value_heads: {kv_heads} KV heads can be neither divided among "
            f"tensor-parallel-size {size} ranks nor shared by equally many of them"
        )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(kv_heads // size, 1),
        intermediate_size=config.intermediate_size // size,
        experts=experts,
    )


def check_sharded(values: Mapping[str, Any], source: str, size: int) -> None:
    """Raise ModelLoadError unless the model of a parsed ``config.json`` runs on ``size`` ranks."""
    if native_family(values) is None:
        raise ModelLoadError(
            f"{source}: architectures: {values.get('architectures') or []}: transformers' code "
            f"computes it, which tensor-parallel-size {size} cannot divide; {', '.join(FAMILIES)} "
            "can be"
        )
    sharded(parse_config(values, source), size, source)


class RowParallel:
    """A linear map whose input is cut: each rank has some columns of the weight, results add up.

    The bias is added to the sum, as one process does.
    """

    def __init__(self, linear: Linear, bias: Tensor | None, ranks: Communicator) -> None:
        self.linear = linear
        self._bias = bias
        self._ranks = ranks

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""
        return self.linear.num_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, in / size] to [rows, out]."""
        total = self._ranks.all_reduce(self.linear(rows))
        return total if self._bias is None else total + self._bias


class VocabularyParallelHead:
    """The head, cut by vocabulary: every rank gets the logits of all."""

    def __init__(self, linear: Linear, vocab_size: int, ranks: Communicator) -> None:
        self.linear = linear
        self._vocab_size = vocab_size
        self._ranks = ranks

    @property
    def num_bytes(self) -> int:
        """What the weights take in memory."""
        return self.linear.num_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, vocab]."""
        return self._ranks.all_gather(self.linear(rows))[:, : self._vocab_size]


class VocabularyParallelEmbedding:
    """The embedding, cut by vocabulary: a token is looked up where its row is, and added to 0."""

    def __init__(self, embedding: Embedding, tokens: Span, ranks: Communicator) -> None:
        """``embedding`` has the rows of ``tokens``, and perhaps some of zeros behind them."""
        self.rows = embedding.rows
        self.num_bytes = embedding.num_bytes
        self._embedding = embedding
        self._first, self._stop = tokens
        self._ranks = ranks

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return [tokens, hidden] in new memory."""
        elsewhere = (tokens < self._first) | (tokens >= self._stop)
        rows = self._embedding((tokens - self._first).masked_fill_(elsewhere, 0))
        return self._ranks.all_reduce(rows.masked_fill_(elsewhere.unsqueeze(1), 0))
