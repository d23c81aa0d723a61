"""How long ``refrain serve`` with an exact-only policy takes until it is ready, and its memory.

Ready is the first 200 of ``/readyz``. Floor: a bare aiohttp handler, from its start to its first
reply. Memory is resident memory of supervisor and worker, at the start and after requests, as the
sum of both (RSS) and with shared pages counted once for all that have them (PSS).
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
from load import post, run_load
from servers import EXACT_ONLY, free_port, processes, role, start, start_upstream

MAX_SECONDS = 1.0
MAX_MB = 110


def await_ready(url: str) -> None:
    """Ask every few milliseconds until it is ready. Raises SystemExit after a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code != 503:  # the bare handler has no such page
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise SystemExit(f"{url} was not ready within a minute")


def memory(leader: int, field: str) -> float:
    """Return a figure of the kernel's, in MB, of a supervisor and its workers together."""
    total = 0.0
    for process in processes(leader):
        if process == leader or role(process) == "worker":
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            [line] = (line for line in lines if line.startswith(f"{field}:"))
            total += int(line.split()[1]) * 1024 / 1e6
    return total


def requests(count: int) -> Iterator[bytes]:
    """Yield requests, half of them for what was asked before."""
    for number in range(count):
        text = f"What is number {number // 2} of the list?"
        yield post(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}))


def main() -> None:
    """Print the figures and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000)
    options = parser.parse_args()
    ready, bare, mb = [], [], {}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        for _ in range(options.rounds):
            with ExitStack() as one:
                port, began = free_port(), time.monotonic()
                start(one, ["programs/bare_handler.py", str(port), "1000", "parse"], None)
                await_ready(f"http://127.0.0.1:{port}/")
                bare.append(time.monotonic() - began)
            with ExitStack() as one:
                folder = Path(one.enter_context(tempfile.TemporaryDirectory()))
                (folder / "policy.yaml").write_text(EXACT_ONLY)
                port, began = free_port(), time.monotonic()
                argv = ["-m", "gateway.cli", "serve", "--port", str(port)]
                argv += ["--upstream", f"http://127.0.0.1:{upstream}/v1"]
                argv += ["--data-dir", str(folder), "--policy", str(folder / "policy.yaml")]
                supervisor = start(one, argv, None)
                await_ready(f"http://127.0.0.1:{port}/readyz")
                ready.append(time.monotonic() - began)
                for field in ("Rss", "Pss"):
                    mb[f"{field.upper()} at the start"] = memory(supervisor, field)
                run_load(port, requests(options.requests), connections=4)
                for field in ("Rss", "Pss"):
                    name = f"{field.upper()} after {options.requests:,} requests"
                    mb[name] = memory(supervisor, field)
    seconds, floor = statistics.median(ready), statistics.median(bare)
    verdict = "kept" if seconds <= MAX_SECONDS else "missed"
    print(f"ready: {seconds:.2f} s (aim {MAX_SECONDS} s: {verdict})  floor: {floor:.2f} s")
    for name, value in mb.items():
        print(f"supervisor and worker, {name}: {value:.0f} MB")
    largest = max(value for name, value in mb.items() if name.startswith("RSS"))
    print(f"aim {MAX_MB} MB: {'kept' if largest <= MAX_MB else 'missed'}")
    report = {"ready_s": round(seconds, 3), "floor_s": round(floor, 3), "rss_mb": round(largest, 1)}
    print(json.dumps({"benchmark": "start", **report}))


if __name__ == "__main__":
    main()
