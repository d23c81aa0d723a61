"""An agent's prompts as they come and rewritten by policy: what the prefix cache makes of them.

Conversations of an agent (``agent_workload``: 40 tools in shifting order, a time and an id in the
system prompt, documents in random order, 30 turns) go through the real gateway to real engines, one
fresh engine each for raw and rewritten prompts, the bundled model with a template that knows tools.
Shares are of prompt tokens, from the engine's own ``cached_tokens``. What a perfect order could
give is all that an earlier request of the conversation has held, in whatever order: the prompt less
the tokens that are new in it.

    python benchmarks/prefix_rewriting.py [--turns N] [--conversations N] [--policy FILE]
    python benchmarks/prefix_rewriting.py --log FILE --policy FILE

The second form asks the chats of a log (all that ``refrain prefix report`` reads, of the model that
most of them name) in place of the agent, as sent and by a policy of yours; what a perfect order
could give is not known then.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_workload import BEGIN, END, MODEL, NUM_TOOLS, Workload, body_of
from engines.sides import bundled_or_random
from load import Client, post
from servers import start_engine, start_gateway

from gateway.cli.offline.json_lines import Lines
from gateway.server.admin.recorded_request import read_request
from policies.decision import Endpoint

CONTEXT = 16_384
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
AS_SENT = "  prefix: off\n"
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


def start_pair(stack: ExitStack, directory: Path, policy: str, model: str) -> tuple[int, int]:
    """Start an engine and a gateway before it; return their ports."""
    options = ("--served-model-name", model, "--tool-call-parser", "qwen")
    engine = start_engine(stack, directory, *options).port
    return engine, start_gateway(stack, engine, core=None, policy=policy).port


STREAMED = {
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def ask(port: int, body: bytes, side: Side) -> int:
    """Ask a request as a stream, note usage and time to first token; return its tokens."""
    with Client(port) as client:
        reply = client.ask(post(body))
    if reply.status != 200:
        raise SystemExit(f"a request was answered {reply.status}: {reply.body.decode()}")
    usages = [
        json.loads(line[6:]).get("usage")
        for line in reply.body.splitlines()
        if line.startswith(b"data: {")
    ]
    if not usages or usages[-1] is None:
        raise SystemExit("the gateway's stream had no usage")
    side.first_token.append(reply.first - reply.sent)
    side.prompt_tokens += usages[-1]["prompt_tokens"]
    side.cached_tokens += usages[-1]["prompt_tokens_details"]["cached_tokens"]
    return int(usages[-1]["prompt_tokens"])


def num_tokens(engine: int, text: str) -> int:
    """Return how many tokens the engine makes of a text."""
    body = json.dumps({"model": MODEL, "prompt": text, "add_special_tokens": False}).encode()
    with Client(engine) as client:
        return int(json.loads(client.ask(post(body, "/tokenize")).body)["count"])


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--log", type=Path, help="recorded chats to ask in place of the agent")
    parser.add_argument(
        "--policy", type=Path, help="what rewrites (default: a policy for the agent)"
    )
    options = parser.parse_args()
    policy = POLICY + REWRITTEN if options.policy is None else options.policy.read_text()
    if options.log is not None:
        if options.policy is None:
            parser.error("--log needs --policy")
        of_log(options.log, policy)
        return
    workload = Workload(turns=options.turns)
    turns = [
        turn for number in range(options.conversations) for turn in workload.conversation(number)
    ]
    bodies = [body_of(turn, MODEL, **STREAMED) for turn in turns]
    with both(policy, MODEL) as (engine, sides):
        new = 0
        for count, tokens in enumerate(asked(sides, bodies)):
            # Of the very first request everything is new.
            new += num_tokens(engine, turns[count].new) if count else tokens
    raw, rewritten = (side for _, side in sides)
    print(f"{NUM_TOOLS} tools")
    tell(raw, rewritten, len(turns), perfect=1 - new / rewritten.prompt_tokens)


def of_log(log: Path, policy: str) -> None:
    """Ask the chats of a log."""
    chats = [one for _, one in Lines(read_request, log) if one.endpoint is Endpoint.CHAT]
    if not chats:
        raise SystemExit(f"{log}: no chat in it")
    model = Counter(one.model for one in chats).most_common(1)[0][0]
    bodies = [
        json.dumps({**one.body, **STREAMED}, ensure_ascii=False).encode()
        for one in chats
        if one.model == model
    ]
    with both(policy, model) as (_, sides):
        for _ in asked(sides, bodies):
            pass
    raw, rewritten = (side for _, side in sides)
    tell(raw, rewritten, len(bodies), perfect=None)


Sides = list[tuple[int, Side]]


@contextmanager
def both(policy: str, model: str) -> Iterator[tuple[int, Sides]]:
    """Start an engine for prompts as sent and one for those that a policy rewrites.

    The port of an engine, and ports and measurements of both gateways.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_model(directory)
        engine, raw_port = start_pair(stack, directory, POLICY + AS_SENT, model)
        _, rewritten_port = start_pair(stack, directory, policy, model)
        yield engine, [(raw_port, Side()), (rewritten_port, Side())]


def asked(sides: Sides, bodies: list[bytes]) -> Iterator[int]:
    """Ask both sides each request in turn; yield how many tokens it has, rewritten."""
    for count, body in enumerate(bodies, start=1):
        tokens = [ask(port, body, side) for port, side in sides]
        print(f"\r{count} of {len(bodies)} requests", end="", file=sys.stderr, flush=True)
        yield tokens[-1]
    print(file=sys.stderr)


def tell(raw: Side, rewritten: Side, requests: int, *, perfect: float | None) -> None:
    """Print what was measured."""
    print(f"{requests} requests, {raw.prompt_tokens // requests} prompt tokens each")
    of_perfect = "" if perfect is None else f"{'of perfect':>12}"
    print(f"{'':12}{'cached':>10}{of_perfect}{'TTFT p50':>12}")
    figures: dict[str, Any] = {}
    for name, side in (("raw", raw), ("rewritten", rewritten)):
        p50 = statistics.median(side.first_token) * 1e3
        share = "" if perfect is None else f"{side.share / perfect:>12.1%}"
        print(f"{name:12}{side.share:>10.1%}{share}{p50:>9.0f} ms")
        figures |= {f"{name}_share": round(side.share, 4), f"{name}_ttft_ms": round(p50, 1)}
    if perfect is not None:
        print(f"{'perfect':12}{perfect:>10.1%}")
        figures |= {
            "perfect_share": round(perfect, 4),
            "of_perfect": round(rewritten.share / perfect, 4),
        }
    print(json.dumps({"benchmark": "prefix_rewriting", "turns": requests, **figures}))


if __name__ == "__main__":
    main()
