"""Exact hits while semantic lookups keep the encoder busy, beside the same hits without.

The gateway is the real one, started by its command with the default policy and the real encoder; it
has all cores. Exact hits come over one connection, one at a time; the lookups over as many as it
takes to keep the encoder busy, each with a question of its own: encoded, not found, forwarded,
stored. Rounds alternate; the figure is the median of the rounds' ratios of p99.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson
from exact_hits import question as exact_question
from load import LoadResult, post, run_load
from servers import await_url, free_port

HERE = Path(__file__).resolve().parent
SUBJECTS = (
    "order",
    "invoice",
    "phone",
    "account",
    "address",
    "garden",
    "recipe",
    "bicycle",
    "holiday",
)
VERBS = ("change", "cancel", "find", "repair", "improve", "describe", "compare", "plan", "explain")
TICKS = os.sysconf("SC_CLK_TCK")


def question(number: int) -> bytes:
    """Return a request that nobody made before, of some twelve words."""
    words = random.Random(number)
    first, second = words.sample(SUBJECTS, 2)
    text = f"How do I {words.choice(VERBS)} the {first} of my {second} {chr(97 + number % 26)}"
    text += "".join(f" and {chr(97 + int(digit))}" for digit in str(number)) + "?"
    body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
    return post("/v1/chat/completions", orjson.dumps(body))


async def ask_for_ever(port: int, connections: int) -> None:
    """Ask new questions over so many connections."""
    numbers = itertools.count(int(time.time()) * 1000)

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            writer.write(question(next(numbers)))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(connection())


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def asking(port: int, connections: int) -> Iterator[None]:
    """Have another process ask new questions meanwhile."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--ask", str(port), "--connections", str(connections)]
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def embeddings_of(gateway: int) -> int:
    """Return the embeddings process of a gateway."""
    for child in children(gateway):
        if b"embeddings" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            return child
    raise SystemExit("the gateway has no embeddings process")


def measure(rounds: int, seconds: float, connections: int) -> dict[str, float]:
    """Run the rounds and return the figures."""
    gateway, upstream = free_port(), free_port()
    exact = post("/v1/chat/completions", exact_question(1))
    results: dict[str, list[LoadResult]] = {"quiet": [], "busy": []}
    busy_shares = []
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        started(stack, ["fake_upstream.py", str(upstream)])
        argv = ["--upstream", f"http://127.0.0.1:{upstream}/v1", "--port", str(gateway)]
        argv += ["--data-dir", data, "--log-level", "warning"]
        pid = started(stack, ["-m", "gateway.cli", "serve", *argv])
        await_url(f"http://127.0.0.1:{gateway}/readyz")
        encoder = embeddings_of(pid)
        run_load(gateway, exact, connections=1, seconds=0.3)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            results["quiet"].append(run_load(gateway, exact, connections=1, seconds=seconds))
            with asking(gateway, connections):
                time.sleep(1.0)  # until its interpreter has started and all connections ask
                used, began = cpu_seconds(encoder), time.monotonic()
                results["busy"].append(run_load(gateway, exact, connections=1, seconds=seconds))
                took = time.monotonic() - began
                busy_shares.append((cpu_seconds(encoder) - used) / took)
    figures = {
        "p99_ratio": statistics.median(
            b.percentile(0.99) / q.percentile(0.99)
            for q, b in zip(results["quiet"], results["busy"], strict=True)
        ),
        "encoder_cores": statistics.median(busy_shares),
    }
    for name, found in results.items():
        for share in (0.5, 0.99):
            figures[f"{name}_p{share * 100:.0f}_ms"] = 1e3 * statistics.median(
                result.percentile(share) for result in found
            )
    return figures


def started(stack: ExitStack, argv: Sequence[str]) -> int:
    """Start `python argv...`, return its process id; leaving the stack ends it."""
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, cwd=HERE)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process.pid


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in each round")
    parser.add_argument("--connections", type=int, default=8, help="that ask new questions")
    parser.add_argument("--ask", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask is not None:
        asyncio.run(ask_for_ever(options.ask, options.connections))
    figures = measure(options.rounds, options.seconds, options.connections)
    print(f"exact hits on one connection; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34}{'p50 ms':>10}{'p99 ms':>10}")
    for name, label in (("quiet", "nothing else asked (floor)"), ("busy", "encoder kept busy")):
        print(f"{label:34}{figures[f'{name}_p50_ms']:>10.2f}{figures[f'{name}_p99_ms']:>10.2f}")
    print(f"p99 ratio {figures['p99_ratio']:.2f} (target 2); ", end="")
    print(f"cores used by the encoder {figures['encoder_cores']:.2f}")
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"benchmark": "exact_hits_encoding", **rounded}))


if __name__ == "__main__":
    main()
