"""Part of a trace replayed through the real gateway on real engine processes.

Conversations are taken at random and whole, in the trace's order, several at a time and without its
pauses. A block of 512 tokens becomes 24 words made of its id, about 32 tokens. Shares are of prompt
tokens, from the engines' own ``cached_tokens``. All ways share the engines, whose caches are full
of the way before; salts keep them apart.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from engines.sides import bundled_or_random
from load import Reply, post, run_load
from servers import start_engine, start_gateway

from routing.simulation import Traced

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

    def note(self, reply: Reply) -> None:
        usage = json.loads(reply.body)["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        upstream = reply.header("X-Refrain-Upstream")
        self.seconds.append(reply.seconds)
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += cached
        self.requests[upstream] += 1
        self.computed[upstream] += usage["prompt_tokens"] - cached


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
    options = ["--threads", "1", "--served-model-name", "m"]
    options += ["--kv-bytes", str(capacity * TOKENS_A_BLOCK * TOKEN_BYTES)]
    return [start_engine(stack, model, *options).port for _ in range(count)]


def _gateway(stack: ExitStack, engines: Sequence[int], routing: str) -> int:
    upstreams = [{"url": f"http://127.0.0.1:{engine}/v1"} for engine in engines]
    settings = {"upstreams": upstreams, "upstream_routing": routing}
    return start_gateway(stack, None, core=None, settings=settings).port


def _run(ports: Sequence[int], requests: Sequence[Traced], salt: str) -> Replayed:
    replayed = Replayed()
    bodies = (_request(each, salt) for each in requests)
    connections = max(AT_A_TIME, len(ports))
    run_load(ports, bodies, connections=connections, report=replayed.note)
    return replayed


def _request(traced: Traced, salt: str) -> bytes:
    body = {
        "model": "m",
        "prompt": "\n".join(map(_text, traced.blocks)),
        "max_tokens": 1 + traced.new_tokens // 100,
        "temperature": 0,
        "cache_salt": salt,
    }
    data = json.dumps(body).encode()
    return post(data, "/v1/completions", "Cache-Control: no-store\r\n")


def _text(block: int) -> str:
    return " ".join(random.Random(block).choices(WORDS.split(), k=24))
