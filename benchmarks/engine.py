"""The engine beside ``transformers`` ``generate``: tokens per second, alone and 16 at a time.

Both run the same weights in float32 on CPU with the same threads, warmed up, inference mode on,
greedy, and interleaved, so that other work on the machine hits both alike. The weights are the
bundled model's where it exists, else random ones of its shape.

    python benchmarks/engine.py [--repetitions N] [--threads N]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from backend.core.types import GenerationRequest, SamplingParams
from backend.runtime.loader import load_engine

PROMPT_TOKENS = 64
NEW_TOKENS = 128
BATCHES = (1, 16)
BUNDLED = Path(__file__).parent.parent / "backend" / "demo" / "model"


def write_random_model(directory: Path) -> None:
    """Write a checkpoint of the bundled model's shape."""
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


class EngineSide:
    """Requests to our engine as its callers make them."""

    def __init__(self, directory: Path, threads: int) -> None:
        self.engine, _ = load_engine(str(directory), device="cpu", threads=threads)
        self.engine.start()

    def run(self, prompts: list[list[int]]) -> list[str]:
        return asyncio.run(self._gather(prompts))

    async def _gather(self, prompts: list[list[int]]) -> list[str]:
        return await asyncio.gather(*(self._one(prompt) for prompt in prompts))

    async def _one(self, prompt: list[int]) -> str:
        sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        request = GenerationRequest("benchmark", tuple(prompt), sampling)
        return "".join([delta.text async for delta in self.engine.generate(request)])


class TransformersSide:
    """The peer: one static batch."""

    def __init__(self, directory: Path) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))

    def run(self, prompts: list[list[int]]) -> list[str]:
        batch = torch.tensor(prompts)
        with torch.inference_mode():
            output = self.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
            )
        return self.tokenizer.decode_batch(output[:, PROMPT_TOKENS:].tolist())


def rate(run: Callable[[list[list[int]]], list[str]], prompts: list[list[int]]) -> float:
    """Return generated tokens per second."""
    start = time.perf_counter()
    run(prompts)
    return len(prompts) * NEW_TOKENS / (time.perf_counter() - start)


def measure(directory: Path, threads: int, repetitions: int) -> dict[str, Any]:
    engine, peer = EngineSide(directory, threads), TransformersSide(directory)
    generator = torch.Generator().manual_seed(1)
    vocabulary = peer.model.config.vocab_size
    prompts = torch.randint(0, vocabulary, (max(BATCHES), PROMPT_TOKENS), generator=generator)
    result: dict[str, Any] = {}
    for size in BATCHES:
        batch = prompts[:size].tolist()
        # The first run of each warms it up, and shows that both compute the same.
        pairs = zip(engine.run(batch), peer.run(batch), strict=True)
        equal = sum(ours == theirs for ours, theirs in pairs)
        samples = [(rate(engine.run, batch), rate(peer.run, batch)) for _ in range(repetitions)]
        ratios = sorted(ours / theirs for ours, theirs in samples)
        result[f"batch_{size}"] = {
            "engine_tokens_per_s": round(statistics.median(ours for ours, _ in samples)),
            "transformers_tokens_per_s": round(statistics.median(theirs for _, theirs in samples)),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
            "equal_answers": f"{equal}/{size}",
        }
    engine.engine.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="engine beside transformers generate, on CPU")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    bundled = (BUNDLED / "model.safetensors").is_file()
    with tempfile.TemporaryDirectory() as scratch:
        directory = BUNDLED if bundled else Path(scratch)
        if not bundled:
            write_random_model(directory)
        result = measure(directory, options.threads, options.repetitions)
    weights = "bundled" if bundled else "random"
    print(f"{PROMPT_TOKENS} in, {NEW_TOKENS} out, greedy, float32, {weights} weights")
    print(f"{'batch':>5} {'engine':>9} {'transformers':>13} {'ratio':>6}  (tokens/s; medians)")
    for size in BATCHES:
        row = result[f"batch_{size}"]
        print(
            f"{size:>5} {row['engine_tokens_per_s']:>9} {row['transformers_tokens_per_s']:>13} "
            f"{row['ratio']:>6}  range {row['ratio_range']}, equal answers {row['equal_answers']}"
        )
    print(
        json.dumps({"benchmark": "engine", "threads": options.threads, "weights": weights} | result)
    )


if __name__ == "__main__":
    main()
