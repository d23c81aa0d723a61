"""Part of a trace replayed through the real gateway on real engine processes.

Conversations are taken at random and whole, in the trace's order, several at a time and without its
pauses. A block of 512 tokens becomes 24 words made of its id, about 32 tokens. Shares are of prompt
tokens, from the engines' own ``cached_tokens``. All ways share the engines, whose caches are full
of the way before; salts keep them apart.
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from engine_sides import bundled_or_random
from routing_simulation import Traced
from servers import await_url, free_port

TOKENS_A_BLOCK = 32
TOKEN_BYTES = 4096
"""Keys and values of a token of the bundled model, 4 layers of 4 heads of 32 in float32."""

MOST_BLOCKS = 32
AT_A_TIME = 4
WORDS = """
    order parcel invoice refund account password delivery customer address payment shipping return
    warranty product store receipt email phone support question answer reply please
"""


@dataclass
class Replayed:
    """What came of one way; by upstream, where there are several."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def shortened(requests: Sequence[Traced], share: float) -> list[Traced]:
    """Return the requests of a share of the conversations, long prompts left out."""
    draw = random.Random(1)
    kept: dict[int, bool] = {}
    chosen = []
    for each in requests:
        if not 1 < len(each.blocks) <= MOST_BLOCKS:
            continue
        # Block 0 is what all of them begin with.
        if kept.setdefault(each.blocks[1], draw.random() < share):
            chosen.append(each)
    return chosen


def replay(
    requests: Sequence[Traced], *, engines: int, capacity: int, gateways: int
) -> dict[str, Replayed]:
    """Return what each way came to; ``capacity`` is blocks of each engine.

    Several ``gateways`` know nothing of one another, and each request goes to any of them.
    """
    ways: dict[str, Replayed] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = bundled_or_random(Path(scratch) / "model")
        with ExitStack() as stack:
            ports = _engines(stack, model, engines, capacity)
            for way, routing in (("least loaded", "load"), ("prefix-aware", "prefix")):
                with ExitStack() as serving:
                    before = [_gateway(serving, ports, routing) for _ in range(gateways)]
                    ways[way] = _run(before, requests, way)
        with ExitStack() as stack:
            ports = _engines(stack, model, 1, capacity * engines)
            ways["one engine"] = _run([_gateway(stack, ports, "prefix")], requests, "one engine")
    return ways


def _engines(stack: ExitStack, model: Path, count: int, capacity: int) -> list[int]:
    ports = [free_port() for _ in range(count)]
    for port in ports:
        options = ["--port", str(port), "--threads", "1", "--served-model-name", "m"]
        options += ["--kv-bytes", str(capacity * TOKENS_A_BLOCK * TOKEN_BYTES)]
        _start(stack, ["-m", "gateway.cli", "backend", "--model", str(model), *options])
        await_url(f"http://127.0.0.1:{port}/readyz")
    return ports


def _gateway(stack: ExitStack, engines: Sequence[int], routing: str) -> int:
    port = free_port()
    upstreams = [{"url": f"http://127.0.0.1:{engine}/v1"} for engine in engines]
    data = stack.enter_context(tempfile.TemporaryDirectory())
    settings = {"upstreams": upstreams, "upstream_routing": routing, "data_dir": data}
    _start(stack, ["gateway_alone.py", str(port), json.dumps(settings)])
    await_url(f"http://127.0.0.1:{port}/readyz")
    return port


def _start(stack: ExitStack, argv: Sequence[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent,
    )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def _run(ports: Sequence[int], requests: Sequence[Traced], salt: str) -> Replayed:
    replayed = Replayed()
    lock = threading.Lock()
    drawn = random.Random(2).choices(ports, k=len(requests))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        ask = partial(_ask, salt=salt, into=replayed, lock=lock)
        for _ in pool.map(ask, drawn, requests):
            pass
    return replayed


def _ask(port: int, traced: Traced, salt: str, into: Replayed, lock: threading.Lock) -> None:
    body = {
        "model": "m",
        "prompt": "\n".join(map(_text, traced.blocks)),
        "max_tokens": 1 + traced.new_tokens // 100,
        "temperature": 0,
        "cache_salt": salt,
    }
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as reply:
        usage = json.load(reply)["usage"]
        upstream = reply.headers.get("X-Refrain-Upstream", "")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    with lock:
        into.seconds.append(time.perf_counter() - began)
        into.prompt_tokens += usage["prompt_tokens"]
        into.cached_tokens += cached
        into.requests[upstream] += 1
        into.computed[upstream] += usage["prompt_tokens"] - cached


def _text(block: int) -> str:
    return " ".join(random.Random(block).choices(WORDS.split(), k=24))
