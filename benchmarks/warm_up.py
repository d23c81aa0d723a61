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
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.sides import bundled_or_random
from load import Client, post
from servers import start_engine, start_gateway

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
    with ExitStack() as stack:
        first, second = (stack.enter_context(ExitStack()) for _ in range(2))
        options = ("--threads", "1", "--served-model-name", "m")
        engines = [start_engine(of, model, *options).port for of in (first, second)]
        upstreams = [{"url": f"http://127.0.0.1:{port}/v1", "name": str(port)} for port in engines]
        settings = {"upstreams": upstreams, "upstream_warm_up": warm}
        port = start_gateway(stack, None, core=None, settings=settings).port
        gateway = stack.enter_context(Client(port))
        for use in range(USES):
            for number in range(assistants):
                _ask(gateway, number, f"{use}")
        second.close()
        _ask_until(port, gateway, engines[1], {"open"})
        start_engine(stack, model, *options, port=engines[1])
        _ask_until(port, gateway, engines[1], {"trial", "up"})
        first.close()
        _ask(gateway, assistants, "one that nobody has asked")  # and finds the first one gone
        return _asked(gateway, assistants, "now"), _asked(gateway, assistants, "then")


def _asked(gateway: Client, assistants: int, question: str) -> First:
    first = First()
    for number in range(assistants):
        began = time.perf_counter()
        usage = _ask(gateway, number, question)["usage"]
        first.seconds.append(time.perf_counter() - began)
        first.prompt_tokens += usage["prompt_tokens"]
        first.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return first


def _ask_until(port: int, gateway: Client, engine: int, states: set[str]) -> None:
    """Ask what belongs to nobody, until the gateway thinks so of an engine."""
    give_up = time.monotonic() + PATIENCE
    number = 1000
    while time.monotonic() < give_up:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as reply:
            if json.load(reply)["upstreams"][str(engine)]["state"] in states:
                return
        if "open" in states:
            number += 1
            _ask(gateway, number, "who is there?")
        time.sleep(0.05)
    raise SystemExit(f"the gateway never found the engine {' or '.join(sorted(states))}")


def _ask(gateway: Client, assistant: int, question: str) -> Any:
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
    request = post(json.dumps(body).encode(), headers="Cache-Control: no-cache\r\n")
    return json.loads(gateway.ask(request).body)


if __name__ == "__main__":
    main()
