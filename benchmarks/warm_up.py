"""A restarted replica's first requests, with and without a warm-up before clients come.

Two real engines of the bundled model stand behind the real gateway, and several assistants, each
with a long system prompt, are used through it. Then one engine is started over and, once the
gateway has taken it back, the other is stopped: each assistant's next question is the first of it
there.
Shares are of prompt tokens, from the engine's own ``cached_tokens``; the time is that of a plain
request for one token, so about TTFT. The ceiling is the same question in other words once more.

    python benchmarks/warm_up.py [--assistants N]
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_sides import bundled_or_random
from servers import await_url, free_port

WORDS = """
    order parcel invoice refund account password delivery customer address payment shipping return
    warranty product store receipt email phone support question answer reply please
"""
SYSTEM_WORDS = 600
USES = 3
PATIENCE = 60.0


@dataclass
class First:
    """The first requests of all assistants."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.seconds) * 1000


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assistants", type=int, default=8)
    options = parser.parse_args()
    report: dict[str, Any] = {"assistants": options.assistants}
    with tempfile.TemporaryDirectory() as scratch:
        model = bundled_or_random(Path(scratch) / "model")
        for name, warm in (("cold", False), ("warm", True)):
            first, second = _measured(model, options.assistants, warm=warm)
            report[name] = {"share": first.share, "p50_ms": first.p50_ms}
            report["ceiling"] = {"share": second.share, "p50_ms": second.p50_ms}
    print(f"{'':<10}{'cached':>10}{'p50':>12}")
    for name in ("cold", "warm", "ceiling"):
        print(f"{name:<10}{report[name]['share']:>10.1%}{report[name]['p50_ms']:>9.1f} ms")
    print(json.dumps({"benchmark": "warm_up", **report}))


def _measured(model: Path, assistants: int, *, warm: bool) -> tuple[First, First]:
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        engines = [_engine(stack, model, port) for port in ports]
        gateway = _gateway(stack, ports, warm=warm)
        for use in range(USES):
            for number in range(assistants):
                _ask(gateway, number, f"{use}")
        engines[1].terminate()
        engines[1].wait(30)
        _ask_until(gateway, ports[1], {"open"})
        _engine(stack, model, ports[1])
        _ask_until(gateway, ports[1], {"trial", "up"})
        engines[0].terminate()
        engines[0].wait(30)
        _ask(gateway, assistants, "one that nobody has asked")  # and finds the first one gone
        return _asked(gateway, assistants, "now"), _asked(gateway, assistants, "then")


def _asked(gateway: int, assistants: int, question: str) -> First:
    first = First()
    for number in range(assistants):
        began = time.perf_counter()
        usage = _ask(gateway, number, question)["usage"]
        first.seconds.append(time.perf_counter() - began)
        first.prompt_tokens += usage["prompt_tokens"]
        first.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return first


def _engine(stack: ExitStack, model: Path, port: int) -> subprocess.Popen[bytes]:
    options = ["--port", str(port), "--threads", "1", "--served-model-name", "m"]
    argv = ["-m", "gateway.cli", "backend", "--model", str(model), *options]
    process = _start(stack, argv)
    await_url(f"http://127.0.0.1:{port}/readyz")
    return process


def _gateway(stack: ExitStack, engines: list[int], *, warm: bool) -> int:
    port = free_port()
    upstreams = [
        {"url": f"http://127.0.0.1:{engine}/v1", "name": str(engine)} for engine in engines
    ]
    data = stack.enter_context(tempfile.TemporaryDirectory())
    settings = {"upstreams": upstreams, "upstream_warm_up": warm, "data_dir": data}
    _start(stack, ["gateway_alone.py", str(port), json.dumps(settings)])
    await_url(f"http://127.0.0.1:{port}/readyz")
    return port


def _start(stack: ExitStack, argv: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent,
    )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process


def _ask_until(gateway: int, engine: int, states: set[str]) -> None:
    """Ask what belongs to nobody, until the gateway thinks so of an engine."""
    give_up = time.monotonic() + PATIENCE
    number = 1000
    while time.monotonic() < give_up:
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway}/readyz", timeout=10) as reply:
            if json.load(reply)["upstreams"][str(engine)]["state"] in states:
                return
        if "open" in states:
            number += 1
            _ask(gateway, number, "who is there?")
        time.sleep(0.05)
    raise SystemExit(f"the gateway never found the engine {' or '.join(sorted(states))}")


def _ask(gateway: int, assistant: int, question: str) -> Any:
    system = " ".join(random.Random(assistant).choices(WORDS.split(), k=SYSTEM_WORDS))
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"What of this, {question}?"},
        ],
        "max_tokens": 1,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{gateway}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


if __name__ == "__main__":
    main()
