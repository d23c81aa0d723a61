"""Prompt lookup beside the same engine without it: tokens per second, and processor time.

Copy-heavy work, with the bundled model, whose answers to its own FAQ are known word for word:

    quote   the question and its answer stand in the conversation, and it is asked again
    edit    the same, and a polite answer is asked for
    context the answer stands in the system message
    cycle   a random prompt, whose greedy continuation soon repeats itself

Other work must not become slower: ``plain`` are questions whose answers stand nowhere, ``sampled``
are random prompts at temperature 1, alone and 16 at a time. ``--shape qwen3-0.5b`` has random
weights of that size, which know no FAQ: ``cycle`` and ``sampled`` only. Greedy decoding of random
weights falls into a cycle, so it is copy-heavy by nature. Both sides take turns; ratios are medians
over rounds. The process's processor time is steadier than the clock on a machine that others use.

    python benchmarks/engine_speculation.py [--shape qwen3-0.5b] [--rounds N] [--threads N]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.sides import BUNDLED, EngineSide, Prompts, random_prompts, write_random_qwen3

from backend.tokenizer.tokenizer import Tokenizer
from tools.demo_model.knowledge import Topic, load_knowledge

REQUESTS = 8
NEW_TOKENS = {"bundled": 256, "qwen3-0.5b": 64}


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts, how many tokens each answer has, and how they are chosen."""

    prompts: Prompts
    new_tokens: Sequence[int]
    temperature: float = 0.0
    together: int = 1
    """How many are answered at a time."""


def faq_work() -> dict[str, Work]:
    """Return work that the bundled model can do."""
    tokenizer = Tokenizer.load(BUNDLED)
    topics = load_knowledge().faq[:REQUESTS]
    lengths = [len(tokenizer.encode(topic.answer)) for topic in topics]

    def prompt(*messages: tuple[str, str]) -> list[int]:
        text = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages]
        )
        return tokenizer.encode(text)

    def quote(topic: Topic, more: str = "") -> list[int]:
        return prompt(("user", topic.ask), ("assistant", topic.answer), ("user", topic.ask + more))

    return {
        "quote": Work([quote(topic) for topic in topics], lengths),
        "edit": Work([quote(topic, " Please say it politely.") for topic in topics], lengths),
        "context": Work(
            [prompt(("system", topic.answer), ("user", topic.ask)) for topic in topics], lengths
        ),
        "plain": Work([prompt(("user", topic.ask)) for topic in topics], lengths),
    }


def random_work(count: int, new_tokens: int) -> dict[str, Work]:
    """Return work for any weights."""
    prompts = random_prompts(count, 64, seed=30)
    return {
        "cycle": Work(prompts, [new_tokens] * count),
        "sampled": Work(prompts, [new_tokens] * count, temperature=1.0),
        "sampled 16": Work(
            random_prompts(16, 64, seed=31), [new_tokens] * 16, temperature=1.0, together=16
        ),
    }


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a side."""

    answers: Sequence[str]
    seconds: float
    processor_seconds: float


def run(side: EngineSide, work: Work) -> Sample:
    """Answer all requests of ``work``."""

    async def answers() -> list[str]:
        requests = list(zip(work.prompts, work.new_tokens, strict=True))
        texts: list[str] = []
        for first in range(0, len(requests), work.together):
            some = requests[first : first + work.together]
            texts += await asyncio.gather(
                *(side.answer(prompt, count, work.temperature) for prompt, count in some)
            )
        return texts

    start, processor_start = time.perf_counter(), time.process_time()
    texts = asyncio.run(answers())
    return Sample(texts, time.perf_counter() - start, time.process_time() - processor_start)


def compare(sides: Mapping[str, EngineSide], work: Work, rounds: int) -> dict[str, Any]:
    # The first run of each warms it up, and shows that both choose the same tokens. Its prompts
    # are in the prefix cache from then on, so that decoding alone is measured.
    with_, without = (run(side, work).answers for side in sides.values())
    samples = [{name: run(side, work) for name, side in sides.items()} for _ in range(rounds)]
    ratios = sorted(each["off"].seconds / each["lookup"].seconds for each in samples)
    processor = [
        each["off"].processor_seconds / each["lookup"].processor_seconds for each in samples
    ]
    tokens = sum(work.new_tokens)
    same = sum(ours == theirs for ours, theirs in zip(with_, without, strict=True))
    return {
        "tokens_per_s": round(
            tokens / statistics.median(each["lookup"].seconds for each in samples)
        ),
        "off_tokens_per_s": round(
            tokens / statistics.median(each["off"].seconds for each in samples)
        ),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "processor_ratio": round(statistics.median(processor), 2),
        "equal_answers": f"{same}/{len(with_)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="prompt lookup beside none, on CPU")
    parser.add_argument("--shape", choices=NEW_TOKENS, default="bundled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "engine_speculation", "shape": options.shape}
    with tempfile.TemporaryDirectory() as scratch:
        directory, new_tokens = BUNDLED, NEW_TOKENS[options.shape]
        if options.shape == "bundled":
            works = faq_work() | random_work(REQUESTS, new_tokens)
        else:
            directory = Path(scratch)
            write_random_qwen3(directory)
            works = random_work(2, new_tokens)
        threads = options.threads
        with (
            EngineSide(
                directory, threads=threads, dtype="float32", speculation="prompt-lookup"
            ) as lookup,
            EngineSide(directory, threads=threads, dtype="float32", speculation="off") as off,
        ):
            for name, work in works.items():
                result[name] = compare({"lookup": lookup, "off": off}, work, options.rounds)
    print(f"float32, {options.shape}, {options.threads} threads; medians")
    print(f"{'':10}{'tokens/s':>9}{'off':>7}{'ratio':>7}  range        processor  equal")
    for name in works:
        row = result[name]
        low, high = row["ratio_range"]
        print(
            f"{name:10}{row['tokens_per_s']:>9}{row['off_tokens_per_s']:>7}{row['ratio']:>7}  "
            f"{low:>4} to {high:<6} {row['processor_ratio']:>6}  {row['equal_answers']}"
        )
    print(json.dumps(result | {"threads": options.threads}))


if __name__ == "__main__":
    main()
