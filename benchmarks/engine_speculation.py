"""Speculation beside the same engine without it: tokens per second, and processor time.

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

With ``--pair DIR`` a draft model guesses in place of prompt lookup. ``python -m
tools.demo_model.draft --out DIR`` makes the pair in a few minutes: a target of 40 million
parameters and a draft of 0.9 million. ``own`` are questions of the corpus that both know;
``foreign`` are random prompts at temperature 1, of which the draft knows nothing.

    python benchmarks/engine_speculation.py [--shape qwen3-0.5b | --pair DIR] [--rounds N]
        [--threads N]
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


def pair_work() -> dict[str, Work]:
    """Return work for a target and its draft."""
    tokenizer = Tokenizer.load(BUNDLED)
    topics = load_knowledge().faq[:REQUESTS]
    lengths = [len(tokenizer.encode(topic.answer)) for topic in topics]
    own = [
        tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": topic.ask}]))
        for topic in topics
    ]
    foreign = random_prompts(4, 64, seed=32)
    return {
        "own": Work(own, lengths),
        "own sampled": Work(own, lengths, temperature=1.0),
        "own 4": Work(own, lengths, together=4),
        "foreign": Work(foreign, [128] * len(foreign), temperature=1.0),
    }


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a side."""

    answers: Sequence[str]
    seconds: float
    processor_seconds: float
    parts: Sequence[float]
    """Seconds of those requests that were answered together."""


def run(side: EngineSide, work: Work) -> Sample:
    """Answer all requests of ``work``."""

    parts: list[float] = []

    async def answers() -> list[str]:
        requests = list(zip(work.prompts, work.new_tokens, strict=True))
        texts: list[str] = []
        for first in range(0, len(requests), work.together):
            some = requests[first : first + work.together]
            began = time.perf_counter()
            texts += await asyncio.gather(
                *(side.answer(prompt, count, work.temperature) for prompt, count in some)
            )
            parts.append(time.perf_counter() - began)
        return texts

    start, processor_start = time.perf_counter(), time.process_time()
    texts = asyncio.run(answers())
    return Sample(texts, time.perf_counter() - start, time.process_time() - processor_start, parts)


def compare(sides: Mapping[str, EngineSide], work: Work, rounds: int) -> dict[str, Any]:
    # The first run of each warms it up, and shows that both choose the same tokens. Its prompts
    # are in the prefix cache from then on, so that decoding alone is measured.
    mine, _ = sides
    before = sides[mine].engine.stats()
    with_, without = (run(side, work).answers for side in sides.values())
    samples = []
    for turn in range(rounds):
        order = list(sides.items())[:: 1 if turn % 2 else -1]
        samples.append({name: run(side, work) for name, side in order})
    after = sides[mine].engine.stats()
    drafts = after.draft_tokens - before.draft_tokens
    accepted = after.accepted_draft_tokens - before.accepted_draft_tokens
    ratios = sorted(each["off"].seconds / each[mine].seconds for each in samples)
    processor = [each["off"].processor_seconds / each[mine].processor_seconds for each in samples]
    # Other work makes a run longer only: the fastest of each request tell most of a busy machine.
    fastest = {
        name: sum(map(min, zip(*(each[name].parts for each in samples), strict=True)))
        for name in sides
    }
    tokens = sum(work.new_tokens)
    same = sum(ours == theirs for ours, theirs in zip(with_, without, strict=True))
    return {
        "tokens_per_s": round(tokens / statistics.median(each[mine].seconds for each in samples)),
        "off_tokens_per_s": round(
            tokens / statistics.median(each["off"].seconds for each in samples)
        ),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "ratio_of_fastest": round(fastest["off"] / fastest[mine], 2),
        "processor_ratio": round(statistics.median(processor), 2),
        "drafts": drafts,
        "accepted_share": round(accepted / drafts, 3) if drafts else None,
        "equal_answers": f"{same}/{len(with_)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="speculation beside none, on CPU")
    parser.add_argument("--shape", choices=NEW_TOKENS, default="bundled")
    parser.add_argument("--pair", type=Path, help="of tools.demo_model.draft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "engine_speculation", "shape": options.shape}
    with tempfile.TemporaryDirectory() as scratch:
        directory, new_tokens = BUNDLED, NEW_TOKENS[options.shape]
        mine, how = "lookup", {"speculation": "prompt-lookup"}
        if options.pair is not None:
            directory, works, mine = options.pair / "target", pair_work(), "draft"
            how = {"speculation": "off", "speculative_model": str(options.pair / "draft")}
            result["shape"] = "pair"
        elif options.shape == "bundled":
            works = faq_work() | random_work(REQUESTS, new_tokens)
        else:
            directory = Path(scratch)
            write_random_qwen3(directory)
            works = random_work(2, new_tokens)
        threads = options.threads
        with (
            EngineSide(directory, threads=threads, dtype="float32", **how) as speculating,
            EngineSide(directory, threads=threads, dtype="float32", speculation="off") as off,
        ):
            for name, work in works.items():
                result[name] = compare({mine: speculating, "off": off}, work, options.rounds)
    print(f"float32, {result['shape']}, {options.threads} threads; medians")
    columns = "range        fastest  processor  equal accepted"
    print(f"{'':12}{'tokens/s':>9}{'off':>7}{'ratio':>7}  {columns}")
    for name in works:
        row = result[name]
        low, high = row["ratio_range"]
        print(
            f"{name:12}{row['tokens_per_s']:>9}{row['off_tokens_per_s']:>7}{row['ratio']:>7}  "
            f"{low:>4} to {high:<6} {row['ratio_of_fastest']:>6} {row['processor_ratio']:>10}  "
            f"{row['equal_answers']}  {row['accepted_share']} of {row['drafts']}"
        )
    print(json.dumps(result | {"threads": options.threads}))


if __name__ == "__main__":
    main()
