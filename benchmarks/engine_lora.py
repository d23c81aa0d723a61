"""LoRA adapters: a batch over 8 of them beside the base model, and texts beside merged weights.

``speed``: random weights in the shape of Qwen2-0.5B, and 8 random adapters of rank 16 for all
linear maps. 16 sequences decode, with a runner for each case, in turn within a round; ratios are
medians over rounds, base over case, so 1 is as fast. Times are processor time of the process, which
is steadier than the clock on a machine that others use. ``one row``: one sequence decodes.
``prefill``: 8 prompts of 64 tokens are computed in one step.

    base      the base model, without adapters: the peer
    idle      8 adapters are loaded, all rows are the base's
    one       all rows have one adapter
    eight     rows have adapters 1 to 8 in turn
    mixed     half of the rows have adapters, each another

``texts``: a tiny random Llama. The texts of 8 adapters and of the base in one batch, greedy and
sampled, are compared with those of models that have an adapter merged into their weights. Their
weights are random and far apart, so that another adapter gives another text. With ``--peft`` the
adapters are made and merged by the library of that name, which must be installed.

    python benchmarks/engine_lora.py [--rounds N] [--steps N] [--threads N] [--dtype TYPE] [--peft]
"""

import argparse
import asyncio
import json
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from backend.engine.loading import load_engine
from backend.executor.factory import NO_KERNELS, make_runner
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.models.adapters import LowRank
from backend.models.families import parse_config
from backend.models.lora import adaptable_modules, stack_adapters
from backend.models.model import Network, network_of
from backend.models.weights import random_weights
from backend.scheduler.batch import AppendedBlocks, NewSequence, Row, StepBatch
from backend.scheduler.block_pool import blocks_for
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.scheduler.scheduler import slots_for
from backend.settings import AdapterSource

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from lora_adapters import merge, write_adapter
from tiny_checkpoints import _model, _spelling_tokenizer

ADAPTERS, RANK, ROWS, PROMPT, LENGTH = 8, 16, 16, 64, 512
TARGET = 0.8
SHAPE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
CASES: dict[str, Callable[[int], int]] = {
    "base": lambda _: 0,
    "idle": lambda _: 0,
    "one": lambda _: 1,
    "eight": lambda row: row % ADAPTERS + 1,
    "mixed": lambda row: row // 2 % ADAPTERS + 1 if row % 2 else 0,
}
_GREEDY = SamplingParams(temperature=0.0)


def networks(dtype: torch.dtype) -> tuple[Network, Network]:
    """Return the model without and with adapters; both have the same weights."""
    config = parse_config(SHAPE, "config")
    weights = random_weights(config, device=torch.device("cpu"), dtype=dtype)
    modules = adaptable_modules(config)
    generator = torch.Generator().manual_seed(1)

    def low_rank(shape: tuple[int, int]) -> LowRank:
        a = torch.randn(RANK, shape[1], generator=generator) * 0.02
        return LowRank(a, torch.randn(shape[0], RANK, generator=generator) * 0.02)

    adapters = [{name: low_rank(shape) for name, shape in modules.items()} for _ in range(ADAPTERS)]
    stacked = stack_adapters(config, weights, adapters, dtype)
    return network_of(config, weights, dtype), network_of(config, weights, dtype, stacked)


class Sequences:
    """As many sequences as ``rows``, which decode one token a step or compute their prompts."""

    def __init__(self, network: Network, rows: int, adapter: Callable[[int], int]) -> None:
        """Compute the prompts; ``adapter`` says by which one each row is computed."""
        limits = BatchLimits(slots_for(ROWS), ROWS, 512, LENGTH)
        self._width = blocks_for(LENGTH)
        cache = KVCache(
            network.shape, rows * self._width, device=torch.device("cpu"), dtype=network.dtype
        )
        self._runner = make_runner(network, cache, limits, kernels=NO_KERNELS)
        self._rows, self._adapter = rows, adapter
        for first in range(0, rows, ADAPTERS):
            self.prefill(range(first, min(first + ADAPTERS, rows)))

    def prefill(self, slots: Sequence[int] = range(ADAPTERS)) -> float:
        """Compute the prompts of ``slots`` in one step and return its seconds."""
        new, blocks = [], []
        for slot in slots:
            prompt = tuple(1 + (slot * PROMPT + at) * 31 % 1000 for at in range(PROMPT))
            new.append(
                NewSequence(slot, prompt, PROMPT, _GREEDY, 0, frozenset(), self._adapter(slot))
            )
            first = 1 + slot * self._width
            blocks.append(AppendedBlocks(slot, 0, tuple(range(first, first + self._width))))
        rows = tuple(Row(slot, 0, PROMPT, samples=True) for slot in slots)
        self._at = PROMPT
        return self._run(StepBatch(tuple(new), tuple(blocks), rows))

    def decode(self) -> float:
        """Take a step and return its seconds."""
        rows = tuple(Row(slot, self._at, 1, samples=True) for slot in range(self._rows))
        self._at += 1
        return self._run(StepBatch((), (), rows))

    def _run(self, step: StepBatch) -> float:
        start = time.process_time()
        self._runner.collect(self._runner.sample(self._runner.launch(step)))
        return time.process_time() - start


def speeds(dtype: torch.dtype, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of the base, and base over case for all cases."""
    plain, adapted = networks(dtype)
    found: dict[str, dict[str, float]] = {}
    for kind, count in (("batch of 16", ROWS), ("one row", 1), ("prefill", ADAPTERS)):
        runs = {
            name: Sequences(plain if name == "base" else adapted, count, adapter)
            for name, adapter in CASES.items()
            if count > 1 or name in {"base", "idle", "one"}
        }
        # Half of a round's steps come before the other cases', half behind them.
        order = [*runs, *reversed(runs)]
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(max(rounds // 3, 2) if kind == "prefill" else rounds):
            own: dict[str, list[float]] = {name: [] for name in runs}
            for name in order:
                some = 1 if kind == "prefill" else steps
                step = runs[name].prefill if kind == "prefill" else runs[name].decode
                own[name] += [step() for _ in range(some)]
            for name, each in own.items():
                times[name].append(statistics.median(each))
        found[kind] = {"base_ms": round(statistics.median(times["base"]) * 1e3, 1)} | {
            name: round(statistics.median(map(operator.truediv, times["base"], each)), 3)
            for name, each in times.items()
            if name != "base"
        }
    return found


async def _tokens(engine: Any, request: GenerationRequest) -> list[str]:
    return [word async for delta in engine.generate(request) for word in delta.text.split()]


def texts(model: Path, adapters: Sequence[Path], requests: Sequence[GenerationRequest]) -> Any:
    """Return the tokens of all ``requests``, which run together."""
    sources = tuple(AdapterSource(each.name, str(each)) for each in adapters)
    engine, _ = load_engine(str(model), device="cpu", lora=sources)
    engine.start()

    async def answers() -> list[list[str]]:
        return await asyncio.gather(*(_tokens(engine, each) for each in requests))

    try:
        return asyncio.run(answers())
    finally:
        engine.stop()


def with_peft(base: Path, scratch: Path) -> tuple[list[Path], list[Path]]:
    """Return adapters and merged checkpoints, made by PEFT itself."""
    import peft  # noqa: PLC0415 (it is installed for this alone)

    adapters, merged = [], []
    for number in range(ADAPTERS):
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        torch.manual_seed(number)
        config = peft.LoraConfig(
            r=2 + number,
            lora_alpha=16,
            use_rslora=number % 3 == 0,
            target_modules="all-linear" if number % 2 else ["q_proj", "v_proj", "down_proj"],
            rank_pattern={"q_proj": 3} if number % 4 == 0 else {},
            task_type="CAUSAL_LM",
        )
        tuned = peft.get_peft_model(model, config)
        for name, parameter in tuned.named_parameters():
            if ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        adapters.append(scratch / f"adapter{number}")
        tuned.save_pretrained(adapters[-1])
        merged.append(scratch / f"merged{number}")
        tuned.merge_and_unload().save_pretrained(merged[-1])
        (merged[-1] / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    return adapters, merged


def compare_texts(*, peft: bool) -> dict[str, int]:
    """Return how many of the texts equal those of merged weights."""
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        base = scratch / "base"
        torch.manual_seed(5)
        _model("llama").save_pretrained(base)
        _spelling_tokenizer().save(str(base / "tokenizer.json"))
        if peft:
            adapters, merged = with_peft(base, scratch)
        else:
            adapters = [
                write_adapter(scratch / f"adapter{each}", base, seed=each, rank=2 + each)
                for each in range(ADAPTERS)
            ]
            merged = [
                merge(base, each, scratch / f"merged{number}")
                for number, each in enumerate(adapters)
            ]
        generator = torch.Generator().manual_seed(0)
        requests = [
            GenerationRequest(
                "r",
                tuple(torch.randint(320, (10 + 7 * number,), generator=generator).tolist()),
                SamplingParams(
                    temperature=temperature, seed=number, max_tokens=32, ignore_eos=True
                ),
                adapter=number % (ADAPTERS + 1),
            )
            for number in range(ADAPTERS + 1)
            for temperature in (0.0, 0.9)
        ]
        together = texts(base, adapters, requests)
        models = [base, *merged]
        equal = differs = 0
        for request, text in zip(requests, together, strict=True):
            [alone] = texts(models[request.adapter], (), [replace(request, adapter=0)])
            equal += text == alone
            [by_base] = texts(base, (), [replace(request, adapter=0)])
            differs += text != by_base
    return {"texts": len(requests), "equal_to_merged": equal, "other_than_base": differs}


def main() -> None:
    parser = argparse.ArgumentParser(description="LoRA adapters beside the base model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peft", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {"texts": compare_texts(peft=options.peft)}
    print(f"texts of {ADAPTERS} adapters and the base in one batch: {found['texts']}")
    found |= speeds(getattr(torch, options.dtype), options.rounds, options.steps)
    for kind in ("batch of 16", "one row", "prefill"):
        print(f"{kind}: {found[kind]}")
    met = found["batch of 16"]["eight"] >= TARGET
    print(
        json.dumps(
            {
                "benchmark": "engine_lora",
                "threads": options.threads,
                "dtype": options.dtype,
                "made_by": "peft" if options.peft else "tests",
                **found,
                "target": TARGET,
                "met": met,
            }
        )
    )


if __name__ == "__main__":
    main()
