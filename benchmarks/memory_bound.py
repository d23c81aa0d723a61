"""Resident memory of a gateway worker beside the bound of its entries (``memory_bytes``).

Distinct questions come one after another until their entries are several times the bound, a fifth
of the requests streamed, another fifth asked again. What grows is compared with the bound.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from aiohttp import ClientSession, TCPConnector
from servers import await_url, free_port, start

STEPS = 10
CONNECTIONS = 16


def resident(process: int) -> float:
    """Return a process's resident memory in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def worker_of(supervisor: int) -> int:
    """Return the process id of the worker that a supervisor runs."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for child in children:
        if "gateway.cli.worker" in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    raise SystemExit("the gateway has no worker")


async def ask(url: str, numbers: Iterator[int], session: ClientSession) -> None:
    """Ask questions until there are no more."""
    for number in numbers:
        asked = number - 7 if number % 5 == 0 and number > 7 else number
        body = {
            "model": "bench",
            "messages": [{"role": "user", "content": f"What is number {asked} of the list?"}],
            "stream": number % 5 == 1,
        }
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            await reply.read()
            if reply.status != 200:
                raise SystemExit(f"a request was answered {reply.status}")


async def measure(url: str, process: int, requests: int) -> list[tuple[int, float]]:
    """Return pairs of requests done and MiB, the first before any."""
    figures = []
    async with ClientSession(connector=TCPConnector(limit=CONNECTIONS)) as session:
        await ask(url, iter(range(-200, 0)), session)
        figures.append((0, resident(process)))
        for step in range(STEPS):
            first = step * requests // STEPS
            numbers = iter(range(first, (step + 1) * requests // STEPS))
            await asyncio.gather(*(ask(url, numbers, session) for _ in range(CONNECTIONS)))
            figures.append(((step + 1) * requests // STEPS, resident(process)))
    return figures


def main() -> None:
    """Run it, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bound-mib", type=int, default=32, help="memory_bytes (default: 32)")
    parser.add_argument("--requests", type=int, default=50_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        upstream, port = free_port(), free_port()
        start(stack, ["fake_upstream.py", str(upstream)], 1)
        data = stack.enter_context(tempfile.TemporaryDirectory())
        config = Path(data) / "refrain.yaml"
        config.write_text(f"memory_bytes: {options.bound_mib}MiB\n")
        argv = ["-m", "gateway.cli", "serve", "--upstream", f"http://127.0.0.1:{upstream}/v1"]
        argv += ["--port", str(port), "--data-dir", data, "--config", str(config)]
        supervisor = start(stack, argv, 0)
        url = f"http://127.0.0.1:{port}"
        await_url(f"{url}/readyz")
        figures = asyncio.run(measure(url, worker_of(supervisor), options.requests))
    before = figures[0][1]
    print(f"{'requests':>10} {'resident MiB':>13} {'grown by':>9} {'bound':>6}")
    for done, mib in figures:
        print(f"{done:>10,} {mib:>13.0f} {mib - before:>9.0f} {options.bound_mib:>6}")
    grown = figures[-1][1] - before
    print(
        json.dumps(
            {"benchmark": "memory_bound", "bound_mib": options.bound_mib, "grown_mib": grown}
        )
    )


if __name__ == "__main__":
    main()
