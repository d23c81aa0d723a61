"""The training loop. What it has done survives a stop: a checkpoint is written every few minutes.

Steps are in bfloat16 where the processor multiplies it in hardware (AMX, AVX512-BF16), which is
five times as fast as 32-bit floats there; the weights themselves stay 32-bit floats.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tools.verifier.material.pairs import Labelled
from tools.verifier.training.network import Features, PairNetwork, PairReader

_WARM_UP: Final = 0.03
_SORTED: Final = 3000
_REPORT_SECONDS: Final = 60.0
_SAVE_SECONDS: Final = 600.0
_GRADIENT: Final = 1.0
_FRESH: Final = 0.002
"""Weight of one pair in the mean of its part."""
_FALL: Final = 0.2
"""Share of the steps, the last ones, over which the rate falls to nothing."""
_AVERAGE: Final = get_ema_multi_avg_fn(0.995)  # type: ignore[no-untyped-call]
"""The mean weights are the mean of about the last 200 steps."""
_SCORED_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to learn. `tokens` are those of a step, padding included.

    `head` is how many times faster the parameters learn that start at random.
    """

    steps: int
    tokens: int
    rate: float
    head: float = 1.0


@dataclass(slots=True)
class Losses:
    """Running means for each part of the mixture."""

    means: dict[str, float] = field(default_factory=dict)

    def update(self, losses: Sequence[float], pairs: Sequence[Labelled]) -> None:
        for loss, pair in zip(losses, pairs, strict=True):
            before = self.means.setdefault(pair.part, loss)
            self.means[pair.part] = before + _FRESH * (loss - before)

    def __str__(self) -> str:
        return ", ".join(f"{part} {mean:.3f}" for part, mean in sorted(self.means.items()))


def fit(
    network: PairNetwork,
    pairs: Callable[[Random], Iterator[Labelled]],
    reader: PairReader,
    plan: Plan,
    *,
    seed: str,
    checkpoint: Path,
    report: Callable[[str], None],
) -> None:
    """Train for `plan.steps` steps; go on from `checkpoint` if it exists.

    The network ends with the mean of the last weights. The rate falls over the last steps alone. So
    a stopped training goes on for as many steps as a later plan says, and the mean weights in the
    checkpoint are of use before it ends.
    """
    fresh = {id(parameter) for parameter in network.new_parameters()}
    trained = [each for each in network.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [each for each in trained if id(each) not in fresh], "factor": 1.0},
        {"params": [each for each in trained if id(each) in fresh], "factor": plan.head},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=plan.rate, weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    run = _Run(network, AveragedModel(network, multi_avg_fn=_AVERAGE), optimizer)
    first = run.resume(checkpoint)
    if first >= plan.steps:
        network.load_state_dict(run.average.module.state_dict())
        return
    # After a stop other pairs are drawn: those of the first steps would come a second time.
    rng = Random(f"{seed} {first}")
    losses, seen, began = Losses(), 0, time.monotonic()
    reported = saved = began
    network.train()
    steps = range(first, plan.steps)
    for step, batch in zip(steps, _batches(pairs(rng), reader, plan.tokens, rng), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * group["factor"] * _schedule(step / plan.steps)
        losses.update(_step(network, trained, optimizer, reader, batch), [p for _, p in batch])
        run.average.update_parameters(network)
        seen += len(batch)
        now = time.monotonic()
        if now - reported > _REPORT_SECONDS:
            reported = now
            rate = seen / (now - began)
            report(f"step {step + 1:,} of {plan.steps:,}, {rate:.1f} pairs/s, loss: {losses}")
        if now - saved > _SAVE_SECONDS:
            saved = now
            run.save(step + 1, checkpoint)
    run.save(plan.steps, checkpoint)
    network.load_state_dict(run.average.module.state_dict())


@dataclass(frozen=True, slots=True)
class _Run:
    """All that a checkpoint holds."""

    network: PairNetwork
    average: AveragedModel
    optimizer: torch.optim.Optimizer

    def resume(self, checkpoint: Path) -> int:
        """Load a checkpoint if there is one; return the number of steps done."""
        if not checkpoint.exists():
            return 0
        state = torch.load(checkpoint, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average.module.load_state_dict(state["mean"])
        self.average.n_averaged.fill_(state["steps"])
        factors = [group["factor"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):
            group["factor"] = factor
        return int(state["steps"])

    def save(self, steps: int, checkpoint: Path) -> None:
        state = {
            "network": self.network.state_dict(),
            "mean": self.average.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": steps,
        }
        fresh = checkpoint.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(checkpoint)


def steps_done(checkpoint: Path) -> int:
    """Return the steps of a checkpoint, 0 if there is none."""
    if not checkpoint.exists():
        return 0
    return int(torch.load(checkpoint, weights_only=True, mmap=True)["steps"])


def scores(
    network: PairNetwork, reader: PairReader, pairs: Sequence[tuple[str, str]]
) -> NDArray[np.float32]:
    """Return the logits of pairs, shape (pairs,)."""
    network.eval()
    features = [reader.features(a, b) for a, b in pairs]
    order = sorted(range(len(pairs)), key=lambda place: len(features[place][0]))
    logits = np.zeros(len(pairs), dtype=np.float32)
    with torch.inference_mode(), _autocast():
        for start in range(0, len(order), _SCORED_AT_ONCE):
            places = order[start : start + _SCORED_AT_ONCE]
            some = network(*reader.collate([features[place] for place in places]))
            logits[places] = some.float().numpy()
    network.train()
    return logits


def _autocast() -> torch.autocast:
    can = torch.cpu.get_capabilities()
    fast = bool(can.get("amx_bf16") or can.get("avx512_bf16"))
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=fast)


def _schedule(done: float) -> float:
    """Return the share of the rate: up over the first steps, down to nearly nothing at the end."""
    return min(1.0, done / _WARM_UP, (1 - done) / _FALL) + 1e-3


def _step(
    network: PairNetwork,
    trained: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    reader: PairReader,
    batch: Sequence[tuple[Features, Labelled]],
) -> list[float]:
    """Learn one batch; return the loss of each pair."""
    wanted = torch.tensor([pair.target for _, pair in batch])
    weights = torch.tensor([pair.weight for _, pair in batch])
    with _autocast():
        logits = network(*reader.collate([features for features, _ in batch]))
    losses = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    optimizer.zero_grad()
    (losses @ weights / weights.sum()).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(trained, _GRADIENT)
    optimizer.step()
    said: list[float] = losses.tolist()
    return said


def _batches(
    pairs: Iterator[Labelled], reader: PairReader, tokens: int, rng: Random
) -> Iterator[list[tuple[Features, Labelled]]]:
    """Yield batches of pairs of about one length, in random order."""
    while some := list(islice(pairs, _SORTED)):
        read = [(reader.features(pair.a, pair.b), pair) for pair in some]
        read.sort(key=lambda each: len(each[0][0]) + 3 * rng.random())
        batches: list[list[tuple[Features, Labelled]]] = [[]]
        for each in read:
            if batches[-1] and (len(batches[-1]) + 1) * len(each[0][0]) > tokens:
                batches.append([])
            batches[-1].append(each)
        rng.shuffle(batches)
        yield from batches
