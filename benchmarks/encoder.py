"""The sentence encoder on ONNX Runtime, beside the same model in sentence-transformers.

One thread each, in this process, in turn; the figure is the median of a round's ratios. A row of
eight-bit weights shows what they would gain and what they do to the vectors. Starting is measured
in processes of their own, from their start to the first vector.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from safetensors.numpy import load_file

from embeddings.encoder.bert_graph import Weight, quantised, sentence_encoder
from embeddings.encoder.encoder import Encoder, SentenceModel
from embeddings.encoder.model_files import DEFAULT_MODEL, locate
from embeddings.encoder.onnx import OnnxSentenceModel, OnnxSession
from embeddings.encoder.plain_bert import plain_bert
from embeddings.encoder.torch import load_torch_model

WORDS = (
    "how",
    "do",
    "i",
    "change",
    "the",
    "address",
    "of",
    "an",
    "order",
    "sent",
    "to",
    "my",
    "flat",
)
WORKLOADS = {
    "a text of 12 words": (1, 12),
    "16 texts of 12 words": (16, 12),
    "a text of 100 words": (1, 100),
}
START = {
    "onnx": "from embeddings.encoder.encoder import *;"
    "load_encoder(EncoderSettings({!r}, 'cpu', 1))",
    "torch": "from embeddings.encoder.encoder import Encoder;"
    "from embeddings.encoder.torch import load_torch_model;"
    "from embeddings.encoder.model_files import locate;"
    "Encoder('', '', load_torch_model(locate({!r}).directory, 'cpu', 1)).encode(['warm'])",
}


@dataclass(frozen=True)
class Workload:
    """Seconds of each round and runtime."""

    seconds: dict[str, list[float]]

    def median_ms(self, runtime: str) -> float:
        """Return the median of a runtime in milliseconds."""
        return 1e3 * statistics.median(self.seconds[runtime])

    def ratio(self, runtime: str) -> float:
        """Return how many times the reference's time is that of a runtime, the median of rounds."""
        pairs = zip(self.seconds["torch"], self.seconds[runtime], strict=True)
        return statistics.median(reference / found for reference, found in pairs)


def models() -> dict[str, Encoder]:
    """Return the reference, what is served, and the same in eight bits."""
    directory = locate(DEFAULT_MODEL).directory
    plain = plain_bert(directory)
    eight = OnnxSentenceModel(plain, 1)
    weights: dict[str, Weight] = dict(load_file(plain.weights))
    for name, weight in load_file(plain.weights).items():
        if ".layer." in name and weight.ndim == 2:
            weights[name] = quantised(weight)
    eight._session = OnnxSession(sentence_encoder(plain.shape, weights), 1)  # noqa: SLF001
    found: dict[str, SentenceModel] = {
        "torch": load_torch_model(directory, "cpu", 1),
        "onnx": OnnxSentenceModel(plain, 1),
        "eight bits": eight,
    }
    return {runtime: Encoder(runtime, "", model) for runtime, model in found.items()}


def texts(count: int, words: int) -> list[str]:
    """Return texts of so many words, no two alike."""
    return [" ".join(WORDS[(n + at) % len(WORDS)] for at in range(words)) for n in range(count)]


def seconds(run: Callable[[], object]) -> float:
    """Return the time of one run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(runtimes: dict[str, Encoder], rounds: int) -> dict[str, Workload]:
    """Run the workloads, the runtimes in turn."""
    measured = {}
    for name, (count, words) in WORKLOADS.items():
        wanted = texts(count, words)
        times: dict[str, list[float]] = {runtime: [] for runtime in runtimes}
        for number in range(rounds + 3):
            for runtime, model in runtimes.items():
                took = seconds(partial(model.encode, wanted))
                if number >= 3:
                    times[runtime].append(took)
        measured[name] = Workload(times)
    return measured


def least_cosines(runtimes: dict[str, Encoder]) -> dict[str, float]:
    """Return each runtime's least cosine to the reference over texts of many kinds."""
    wanted = [text for words in (1, 3, 12, 40, 150) for text in texts(8, words)]
    reference = np.array(runtimes["torch"].encode(wanted))
    return {
        runtime: float(np.min(np.sum(reference * np.array(model.encode(wanted)), axis=1)))
        for runtime, model in runtimes.items()
    }


def start_seconds(rounds: int) -> dict[str, float]:
    """Return how long a process takes until its first vector; the least of the rounds."""
    found: dict[str, list[float]] = {runtime: [] for runtime in START}
    for _ in range(rounds):
        for runtime, program in START.items():
            argv = [sys.executable, "-c", program.format(DEFAULT_MODEL)]
            found[runtime].append(seconds(partial(subprocess.run, argv, check=True)))
    return {runtime: min(times) for runtime, times in found.items()}


def main(argv: Sequence[str]) -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--starts", type=int, default=2)
    options = parser.parse_args(argv)
    runtimes = models()
    measured = measure(runtimes, options.rounds)
    cosines = least_cosines(runtimes)
    starts = start_seconds(options.starts)
    load = os.getloadavg()[0]
    print(f"{DEFAULT_MODEL}, one thread, p50 ms and times the reference; load {load:.1f}")
    print(f"{'':24}{'torch':>10}{'onnx':>10}{'':>8}{'eight bits':>12}{'':>8}")
    figures: dict[str, float] = {}
    for name, work in measured.items():
        print(
            f"{name:24}{work.median_ms('torch'):>10.1f}{work.median_ms('onnx'):>10.1f}"
            f"{work.ratio('onnx'):>7.2f}x{work.median_ms('eight bits'):>12.1f}"
            f"{work.ratio('eight bits'):>7.2f}x"
        )
        figures |= {f"{name}, ratio": work.ratio("onnx"), f"{name}, ms": work.median_ms("onnx")}
    print(
        f"{'least cosine':24}{'':>10}{cosines['onnx']:>10.6f}{'':>8}{cosines['eight bits']:>12.6f}"
    )
    print(f"{'start to first vector':24}{starts['torch']:>8.1f} s{starts['onnx']:>8.1f} s")
    figures |= {"cosine": cosines["onnx"], "cosine_eight_bits": cosines["eight bits"]}
    figures |= {f"start_{runtime}_s": took for runtime, took in starts.items()}
    print(json.dumps({"benchmark": "encoder", **{k: round(v, 6) for k, v in figures.items()}}))


if __name__ == "__main__":
    main(sys.argv[1:])
