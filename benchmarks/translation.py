"""What the translation of Anthropic's Messages adds to a miss.

The same conversation goes to one gateway as ``/v1/messages``, which it translates for an upstream
of chat completions, and as ``/v1/chat/completions``, the peer. Small: one question. Large: an
agent's turn of about 8,000 tokens with 20 tools. Plain, and streamed with 40 tokens. Each request
asks something new, so nothing hits, and each answer is stored.

Processor time is that of the gateway for one request, 16 at a time. Latency is the median of
requests that come alone. Rounds alternate. A ratio is that of the best rounds, since the machine
may be shared. The aim is at most 1.1.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from typing import Any

import orjson
from load import NEW_QUESTIONS, PATH, WrkResult, run_wrk
from servers import CLIENT_CORE, EXACT_ONLY, processor_seconds, start_gateway, start_upstream

from gateway.protocol.anthropic.request import to_chat

SIDES = {"messages": "/v1/messages", "chat": PATH}
CONNECTIONS = 16
AIM = 1.1
TOOLS = 20
TURNS = 10
"""Calls of tools before the last question of the large conversation."""
Rounds = list[tuple[WrkResult, float, WrkResult]]
"""Under load, the processor time of a request there, and alone."""
Results = dict[str, dict[str, Rounds]]


def small() -> dict[str, Any]:
    """Return a conversation of one question."""
    asked = {"role": "user", "content": "How do I reset my password on a new phone?"}
    return {"system": "You are a helpful assistant.", "messages": [asked]}


def large() -> dict[str, Any]:
    """Return the turn of an agent: 32 KB in the form of Messages."""
    words = "The agent reads a file, says what it found, and edits no more than it was told to. "
    path = {"type": "string", "description": words}
    properties = {"path": path, "limit": {"type": "integer", "description": words}}
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    tools = [
        {"name": f"tool_{number}", "description": words * 4, "input_schema": schema}
        for number in range(TOOLS)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": words}]
    for turn in range(TURNS):
        given = {"path": f"/src/{turn}.py", "limit": 200}
        call = {"type": "tool_use", "id": f"call_{turn}", "name": "tool_1", "input": given}
        said = {"type": "text", "text": words}
        result = {"type": "tool_result", "tool_use_id": f"call_{turn}", "content": words * 9}
        messages.append({"role": "assistant", "content": [said, call]})
        messages.append({"role": "user", "content": [result]})
    asked = [{"type": "text", "text": "Now do it on a new phone, and say what you did."}]
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": asked}]
    return {"system": [{"type": "text", "text": words * 60}], "messages": messages, "tools": tools}


def bodies(conversation: dict[str, Any], *, stream: bool) -> dict[str, bytes]:
    """Return the body of a request for each side."""
    body = {"model": "bench", "max_tokens": 200, "stream": stream, **conversation}
    return {"messages": orjson.dumps(body), "chat": orjson.dumps(to_chat(body))}


def measure(rounds: int, seconds: float) -> Results:
    """Return for each case and side what each round found."""
    cases = {
        f"{size}{' stream' if stream else ''}": bodies(conversation, stream=stream)
        for size, conversation in (("small", small()), ("large", large()))
        for stream in (False, True)
    }
    results: Results = {case: {side: [] for side in SIDES} for case in cases}
    with ExitStack() as stack:
        gateway = start_gateway(stack, start_upstream(stack), policy=EXACT_ONLY)

        def load(side: str, body: bytes, connections: int) -> WrkResult:
            return run_wrk(
                gateway.port,
                body,
                core=CLIENT_CORE,
                connections=connections,
                seconds=seconds,
                path=SIDES[side],
                vary=NEW_QUESTIONS,
            )

        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for case, of in cases.items():
                # No side has always the same neighbour.
                for side, body in list(of.items())[:: 1 if number % 2 else -1]:
                    before = processor_seconds(gateway.process)
                    got = load(side, body, CONNECTIONS)
                    spent = (processor_seconds(gateway.process) - before) / got.requests
                    results[case][side].append((got, spent, load(side, body, 1)))
    return results


def figures(results: Results) -> dict[str, float]:
    """Print a table; return the figures."""
    found: dict[str, float] = {}
    print(f"{'':14}{'CPU us':>16}{'':7}{'rounds':>14}{'alone, p50 us':>20}")
    print(
        f"{'':14}{'messages':>9}{'chat':>7}{'ratio':>7}{'':14}{'messages':>12}{'chat':>8}", end=""
    )
    print(f"{'ratio':>7}")
    for case, of in results.items():
        spent = {side: min(each for _, each, _ in rounds) for side, rounds in of.items()}
        alone = {side: min(each.p50 for _, _, each in rounds) for side, rounds in of.items()}
        pairs = zip(of["messages"], of["chat"], strict=True)
        ratios = [mine / peer for (_, mine, _), (_, peer, _) in pairs]
        ratio = spent["messages"] / spent["chat"]
        waits = alone["messages"] / alone["chat"]
        print(f"{case:14}{1e6 * spent['messages']:>9.0f}{1e6 * spent['chat']:>7.0f}", end="")
        print(f"{ratio:>7.2f}{min(ratios):>9.2f}-{max(ratios):.2f}", end="")
        print(f"{1e6 * alone['messages']:>12.0f}{1e6 * alone['chat']:>8.0f}{waits:>7.2f}", end="")
        print("" if max(ratio, waits) <= AIM else f"  over {AIM}")
        name = case.replace(" ", "_")
        for side in SIDES:
            found[f"{name}_{side}_cpu_us"] = 1e6 * spent[side]
            found[f"{name}_{side}_alone_us"] = 1e6 * alone[side]
        found[f"{name}_cpu_ratio"] = ratio
        found[f"{name}_cpu_ratio_median"] = statistics.median(ratios)
        found[f"{name}_latency_ratio"] = waits
    return found


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load for each figure")
    options = parser.parse_args()
    sizes = {side: len(body) for side, body in bodies(large(), stream=False).items()}
    print(f"large: {sizes['messages']} bytes as Messages, {sizes['chat']} as chat completions")
    found = figures(measure(options.rounds, options.seconds))
    print(json.dumps({"benchmark": "translation", **{k: round(v, 3) for k, v in found.items()}}))


if __name__ == "__main__":
    main()
