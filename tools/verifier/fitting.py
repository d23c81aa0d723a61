"""The training loop: one process a core, gradients averaged after each step.

Two processes of one thread each take 1.6 times the pairs that one of two threads does: at these
sizes a product of matrices is too small to be shared.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from embeddings.verify.features import SPECIAL_TOKENS, pair_features
from tools.verifier.mixture import Labelled
from tools.verifier.network import PairNetwork

BATCH_TOKENS: Final = 512
"""A process and step."""
RATE: Final = 3e-4
_WARMING: Final = 0.05
_SORTED: Final = 1500
_REPORT_SECONDS: Final = 60.0
_GRADIENT: Final = 1.0

Features = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads pairs as the verifier does; ``tokenizer`` must know ``[CLS]`` and ``[SEP]``."""

    tokenizer: Tokenizer
    max_tokens: int

    def features(self, a: str, b: str) -> Features:
        """Return ids and types; of texts that are too long, of their beginnings."""
        most = (self.max_tokens - SPECIAL_TOKENS) // 2
        cls, sep = (int(self.tokenizer.token_to_id(token) or 0) for token in ("[CLS]", "[SEP]"))
        one, two = (self.tokenizer.encode(text, add_special_tokens=False).ids for text in (a, b))
        return pair_features(one[:most], two[:most], cls, sep)


def collated(features: Sequence[Features]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, types and mask, shape (pairs, longest)."""
    longest = max(len(ids) for ids, _ in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (tokens, kinds) in enumerate(features):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        types[row, : len(tokens)] = torch.tensor(kinds)
        mask[row, : len(tokens)] = 1
    return ids, types, mask


@dataclass(slots=True)
class Losses:
    """Running means, of hand-written pairs and of made ones."""

    written: float = 0.69
    made: float = 0.69

    def take(self, each: Tensor, made: Tensor) -> None:
        """Take the losses of a batch."""
        if (~made).any():
            self.written += 0.01 * (float(each[~made].mean()) - self.written)
        if made.any():
            self.made += 0.01 * (float(each[made].mean()) - self.made)


def fit(
    network: PairNetwork,
    pairs: Iterator[Labelled],
    reader: Reader,
    minutes: float,
    *,
    report: Callable[[str], None],
    rate: float = RATE,
) -> None:
    """Train for so long. All processes of the group call it; the first one reports."""
    rank = dist.get_rank()
    torch.set_num_threads(1)
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    losses, rng = Losses(), Random(rank)
    began, reported, seen = time.monotonic(), 0.0, 0
    network.train()
    for batch in _batches(pairs, reader, rng):
        spent = _agreed(time.monotonic() - began)
        if spent > minutes * 60:
            return
        done = spent / (minutes * 60)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, done / _WARMING) * (1 - done) + rate / 1000
        losses.take(*_step(network, trained, optimizer, batch))
        seen += len(batch) * dist.get_world_size()
        if rank == 0 and spent - reported > _REPORT_SECONDS:
            reported = spent
            shown = f"loss {losses.written:.3f} written, {losses.made:.3f} made"
            report(f"{spent / 60:5.1f} min  {seen:7d} pairs  {shown}")


def _step(
    network: PairNetwork,
    trained: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    batch: Sequence[tuple[Features, Labelled]],
) -> tuple[Tensor, Tensor]:
    wanted = torch.tensor([float(pair.same) for _, pair in batch])
    logits = network(*collated([features for features, _ in batch]))
    each = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    optimizer.zero_grad()
    each.mean().backward()  # type: ignore[no-untyped-call]
    _average([parameter.grad for parameter in trained])
    torch.nn.utils.clip_grad_norm_(trained, _GRADIENT)
    optimizer.step()
    return each.detach(), torch.tensor([pair.made for _, pair in batch])


def _average(gradients: Sequence[Tensor | None]) -> None:
    present = [gradient for gradient in gradients if gradient is not None]
    flat = torch.cat([gradient.view(-1) for gradient in present])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [gradient.numel() for gradient in present]
    for gradient, part in zip(present, torch.split(flat, sizes), strict=True):
        gradient.copy_(part.view_as(gradient))


def _agreed(seconds: float) -> float:
    """Return the first process's clock to all, so that they end at the same step."""
    clock = torch.tensor([seconds], dtype=torch.float64)
    dist.broadcast(clock, 0)
    return float(clock)


def _batches(
    pairs: Iterator[Labelled], reader: Reader, rng: Random
) -> Iterator[list[tuple[Features, Labelled]]]:
    """Yield batches of pairs of about one length, in random order."""
    while True:
        some = [next(pairs) for _ in range(_SORTED)]
        read = [(reader.features(pair.a, pair.b), pair) for pair in some]
        read.sort(key=lambda each: len(each[0][0]) + 3 * rng.random())
        batches: list[list[tuple[Features, Labelled]]] = [[]]
        for each in read:
            if batches[-1] and (len(batches[-1]) + 1) * len(each[0][0]) > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(each)
        rng.shuffle(batches)
        yield from batches


def joined(rank: int, processes: int, port: int) -> Any:
    """Join the group of processes; leave it with ``dist.destroy_process_group``."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=processes)
