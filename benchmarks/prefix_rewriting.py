"""An agent's prompts as they come and rewritten by policy: what the prefix cache makes of them.

Conversations of an agent (``agent_workload``: 40 tools in shifting order, a time and an id in the
system prompt, documents in random order, 30 turns) go through the real gateway to real engines, one
fresh engine each for raw and rewritten prompts, the bundled model with a template that knows tools.
Shares are of prompt tokens, from the engine's own ``cached_tokens``. What a perfect order could
give is all that an earlier request of the conversation has held, in whatever order: the prompt less
the tokens that are new in it.

    python benchmarks/prefix_rewriting.py [--turns N] [--conversations N] [--record FILE]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_workload import BEGIN, END, NUM_TOOLS, Turn, Workload, body_of
from engine_sides import bundled_or_random
from servers import await_url, free_port

CONTEXT = 16_384
MODEL = "agent"
TEMPLATE = (
    "{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>"
    "{% endif %}{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)
POLICY = """\
version: 1
default:
  exact: on
  semantic: off
  freshness: 1h
  scope: tenant
  pii: bypass
"""
REWRITTEN = f"""\
  prefix:
    tools: sorted
    volatile: [timestamps, request_ids]
    documents: {{begin: "{BEGIN}", end: "{END}", order: content}}
"""


@dataclass
class Side:
    """What one gateway measured."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of all prompt tokens, those that the prefix cache had."""
        return self.cached_tokens / self.prompt_tokens


def write_model(directory: Path) -> None:
    """Write the bundled model with a longer context, and a template that shows tools."""
    source = bundled_or_random(directory)
    if source != directory:
        shutil.copytree(source, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_bytes())
    config["max_position_embeddings"] = CONTEXT
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": TEMPLATE,
                "model_max_length": CONTEXT,
            }
        )
    )


def start_pair(stack: ExitStack, directory: Path, policy: str) -> tuple[int, int]:
    """Start an engine and a gateway before it; return their ports."""
    engine, gateway = free_port(), free_port()
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (scratch / "policy.yaml").write_text(policy)
    serve = [
        "backend",
        "--model",
        str(directory),
        "--served-model-name",
        MODEL,
        "--tool-call-parser",
        "qwen",
    ]
    front = ["serve", "--policy", str(scratch / "policy.yaml"), "--data-dir", str(scratch / "data")]
    front += ["--upstream", f"http://127.0.0.1:{engine}/v1", "--log-level", "warning"]
    for argv in ([*serve, "--port", str(engine)], [*front, "--port", str(gateway)]):
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *argv], stdout=subprocess.DEVNULL
        )
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
    await_url(f"http://127.0.0.1:{engine}/readyz")
    await_url(f"http://127.0.0.1:{gateway}/readyz")
    return engine, gateway


def opened(request: urllib.request.Request) -> Any:
    """Send a request; an error's body is told."""
    try:
        return urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{request.full_url}: {error.code} {error.read().decode()}") from None


def ask(port: int, turn: Turn, side: Side) -> int:
    """Ask one turn as a stream, take down usage and time to first token; return its tokens."""
    body = body_of(
        turn,
        MODEL,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        body,
        {"Content-Type": "application/json", "Authorization": "Bearer bench"},
    )
    began, first, usage = time.perf_counter(), None, None
    with opened(request) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and any(choice["delta"] for choice in event["choices"]):
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    if first is None or usage is None:
        raise SystemExit("the gateway's stream had no first token or no usage")
    side.first_token.append(first)
    side.prompt_tokens += usage["prompt_tokens"]
    side.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    return int(usage["prompt_tokens"])


def num_tokens(engine: int, text: str) -> int:
    """Return how many tokens the engine makes of a text."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{engine}/tokenize",
        json.dumps({"model": MODEL, "prompt": text, "add_special_tokens": False}).encode(),
        {"Content-Type": "application/json"},
    )
    with opened(request) as reply:
        return int(json.load(reply)["count"])


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument(
        "--record", type=Path, help="write the requests here, for refrain prefix report"
    )
    options = parser.parse_args()
    workload = Workload(turns=options.turns)
    turns = [
        turn for number in range(options.conversations) for turn in workload.conversation(number)
    ]
    if options.record is not None:
        lines = [body_of(turn, MODEL) + b"\n" for turn in turns]
        options.record.write_bytes(b"".join(lines))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_model(directory)
        raw, rewritten = Side(), Side()
        engine, raw_port = start_pair(stack, directory, POLICY)
        _, rewritten_port = start_pair(stack, directory, POLICY + REWRITTEN)
        new = 0
        for count, turn in enumerate(turns, start=1):
            ask(raw_port, turn, raw)
            tokens = ask(rewritten_port, turn, rewritten)
            # Of the very first request everything is new.
            new += num_tokens(engine, turn.new) if count > 1 else tokens
            print(f"\r{count} of {len(turns)} turns", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    perfect = 1 - new / rewritten.prompt_tokens
    tell(raw, rewritten, perfect, len(turns))


def tell(raw: Side, rewritten: Side, perfect: float, turns: int) -> None:
    """Print what was measured."""
    print(f"{turns} turns, {NUM_TOOLS} tools, {raw.prompt_tokens // turns} prompt tokens a turn")
    print(f"{'':12}{'cached':>10}{'of perfect':>12}{'TTFT p50':>12}")
    figures: dict[str, Any] = {"perfect_share": round(perfect, 4)}
    for name, side in (("raw", raw), ("rewritten", rewritten)):
        p50 = statistics.median(side.first_token) * 1e3
        print(f"{name:12}{side.share:>10.1%}{side.share / perfect:>12.1%}{p50:>9.0f} ms")
        figures |= {f"{name}_share": round(side.share, 4), f"{name}_ttft_ms": round(p50, 1)}
    print(f"{'perfect':12}{perfect:>10.1%}")
    figures["of_perfect"] = round(rewritten.share / perfect, 4)
    print(json.dumps({"benchmark": "prefix_rewriting", "turns": turns, **figures}))


if __name__ == "__main__":
    main()
