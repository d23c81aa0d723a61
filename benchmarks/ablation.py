"""What each part brings, on one trace: from one request at a time to the semantic cache.

The same requests, with the arrivals and lengths of the Azure trace, go through the gateway to the
bundled engine with the demo model, once for each step. Each step adds one part to those before it:

- plain: the engine computes one request at a time, nothing is streamed, nothing is cached;
- streaming, then up to 16 requests at a time;
- the engine's prefix cache (before, each request has a ``cache_salt`` of its own);
- the gateway's exact cache, then its semantic cache.

Latency counts from when a request was due. Without streaming the first token comes with the last.
Tokens computed are prompt tokens that no cache had, and new tokens.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from engines.sides import bundled_or_random
from load import Outcome, Reply, percentile, run_arrivals
from servers import start_engine, start_gateway
from traffic import TRACE, Asked, Pace, Shares, Traffic, at_rate, for_engine, kind_of, read_trace

POLICY = """
version: 1
default:
  {exact: %s, semantic: %s, freshness: 1h, scope: tenant, pii: bypass,
   finish_reasons: [stop, length]}
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What is switched on."""

    name: str
    streamed: bool = True
    at_a_time: int = 16
    prefix: bool = True
    exact: bool = True
    semantic: bool = True


STEPS = (
    Step("plain", streamed=False, at_a_time=1, prefix=False, exact=False, semantic=False),
    Step("+ streaming", at_a_time=1, prefix=False, exact=False, semantic=False),
    Step("+ continuous batching", prefix=False, exact=False, semantic=False),
    Step("+ prefix cache", exact=False, semantic=False),
    Step("+ exact cache", semantic=False),
    Step("+ semantic cache"),
)


_salts = count()


def salted(asked: Asked) -> dict[str, Any]:
    """Return fields with which no prompt shares a prefix with another one."""
    return for_engine(asked) | {"cache_salt": f"salt {next(_salts)}"}


def computed(reply: Reply) -> int:
    """Return the tokens that the engine computed for a reply."""
    status = reply.cache_status
    if "; hit" in status or "collapsed" in status:
        return 0
    start = reply.body.rfind(b'"usage":') + 8
    usage, _ = json.JSONDecoder().raw_decode(reply.body[start:].decode().lstrip())
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return int(usage["prompt_tokens"] - cached + usage["completion_tokens"])


def run(step: Step, model: Path, options: argparse.Namespace) -> dict[str, float]:
    """Replay the trace with a step's parts and return its figures."""
    shares = Shares(options.exact, options.reworded, streamed=1.0 if step.streamed else 0.0)
    traffic = Traffic(shares, Pace(), for_engine if step.prefix else salted, wait=4.0)
    trace = at_rate(read_trace(options.trace, 2000, scale=options.scale), options.rate)
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        named = ("--served-model-name", "bench", "--threads", "1")
        batch = ("--max-num-seqs", str(step.at_a_time))
        engine = start_engine(stack, model, *named, *batch)
        switches = tuple("on" if each else "off" for each in (step.exact, step.semantic))
        gateway = start_gateway(stack, engine.port, core=None, policy=POLICY % switches)
        run_arrivals(gateway.port, traffic.arrivals(trace, options.seconds), outcomes.append)
    replies = [each.reply for each in outcomes if each.reply and each.reply.status == 200]
    if len(replies) < len(outcomes):
        raise SystemExit(f"{len(outcomes) - len(replies)} of {len(outcomes)} requests failed")
    figures: dict[str, float] = {"requests": len(replies), "tokens": sum(map(computed, replies))}
    kinds = [kind_of(reply) for reply in replies]
    figures |= {"exact": kinds.count("exact"), "semantic": kinds.count("semantic")}
    for name, values in (
        ("ttft", [each.ttft if step.streamed else each.seconds for each in outcomes]),
        ("e2e", [each.seconds for each in outcomes]),
    ):
        for share in (0.5, 0.99):
            figures[f"{name}_p{100 * share:g}_ms"] = round(1e3 * percentile(values, share), 1)
    return figures


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--seconds", type=float, default=45.0, help="of trace for each step")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--scale", type=float, default=0.15, help="times the trace's lengths")
    parser.add_argument("--exact", type=float, default=0.25, help="share asked again")
    parser.add_argument("--reworded", type=float, default=0.15, help="share in other words")
    options = parser.parse_args()
    if not options.trace.is_file():
        print(f"skipped: no trace at {options.trace}; give one with --trace")
        return
    told: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = bundled_or_random(Path(scratch) / "model")
        for step in STEPS:
            print(step.name, file=sys.stderr)
            told[step.name] = run(step, model, options)
    print(f"Azure trace, {options.rate:g} requests/s, lengths x {options.scale:g}; times in ms")
    print(f"{'':24}{'TTFT p50':>10}{'p99':>9}{'E2E p50':>10}{'p99':>9}{'tokens':>9}{'hits':>12}")
    for name, of in told.items():
        print(f"{name:24}{of['ttft_p50_ms']:>10.0f}{of['ttft_p99_ms']:>9.0f}", end="")
        print(f"{of['e2e_p50_ms']:>10.0f}{of['e2e_p99_ms']:>9.0f}{of['tokens']:>9.0f}", end="")
        print(f"{of['exact']:>7.0f} + {of['semantic']:.0f}")
    print(json.dumps({"benchmark": "ablation", "rate": options.rate, "steps": told}))


if __name__ == "__main__":
    main()
