"""What an agent's turn costs alone: misses of long conversations, beside a minimal aiohttp proxy.

An agent sends its conversation again with each turn: 20 tools, ten calls of them, what they
returned. That is code and log lines, with all the digits that these have. Two cases: all text is
new, and a conversation grows by 1 KB a turn. The same without digits tells what digits cost.
One request is under way at a time. Each server has core 0; client and upstream have the last core.
The semantic cache is off. Processor time is of the server, and holds on a machine with other load.

Usage: python benchmarks/agent_turns.py [--turns 40] [--rounds 3]
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import orjson
from load import AUTHORIZATION, PATH, Client, percentile, post
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    pin,
    processor_seconds,
    start_bare,
    start_gateway,
    start_upstream,
)

from gateway.protocol.anthropic.request import to_chat

MESSAGES = "/v1/messages"
TOOLS = 20
CALLS = 10
GROWING, STEP = 134_000, 1_000
AIMS_MS = {"new 66": 5, "new 200": 10, "new 485": 22, "growing": 4, "growing messages": 4}
_WORDS = (
    *("parser", "returns", "list", "rows", "handler", "checks", "request", "before", "sent", "to"),
    *("worker", "because", "cache", "entry", "may", "be", "stale", "when", "policy", "changes"),
)
Conversation = dict[str, Any]


def _sentence(draw: random.Random, words: int = 14) -> str:
    return " ".join(draw.choices(_WORDS, k=words)).capitalize() + "."


def _name(draw: random.Random) -> str:
    """Return hex digits as ids have; letters keep the digits apart, for some would be a card's."""
    return f"{draw.getrandbits(32):08x}c{draw.getrandbits(28):07x}"


def _log_line(draw: random.Random) -> str:
    hour, minute, second = draw.randrange(24), draw.randrange(60), draw.uniform(0, 60)
    return (
        f"2026-11-{draw.randint(1, 28):02} {hour:02}:{minute:02}:{second:06.3f} INFO"
        f" {draw.choice(_WORDS)}[{draw.randint(100, 32_000)}]: request={_name(draw)}"
        f" status={draw.choice((200, 304, 404))} bytes={draw.randint(99, 99_999)}"
        f" took={draw.uniform(0.1, 900):.3f}ms row={draw.randint(10**6, 10**8)}"
    )


def _code_line(draw: random.Random) -> str:
    word, number = draw.choice(_WORDS), draw.randint(1, 9_999)
    return draw.choice(
        (
            f"    {word}_{number % 10} = rows[{number}:{number + 64}]  # {_sentence(draw, 5)}",
            f"    if len({word}) > {number} and offset + {number % 64} < 0x{number:08x}:",
            f"        return {word}({draw.uniform(0, 10):.4f}, {number}, `{word}-{number % 100}`)",
            f'  File "src/{word}/{draw.choice(_WORDS)}.py", line {number}, in {word}',
            f'    REVISION = "{_name(draw)}-{_name(draw)}"',
            f"    # {_sentence(draw, 10)}",
        )
    )


def _returned(draw: random.Random, size: int, *, digits: bool) -> str:
    """Return what a tool found: prose, log lines and code."""
    kinds = (_sentence, _log_line, _code_line) if digits else (_sentence,)
    lines: list[str] = []
    while size > 0:
        lines.append(draw.choice(kinds)(draw))
        size -= len(lines[-1]) + 1
    return "\n".join((*lines, "(end)"))


def _call(draw: random.Random, size: int, *, digits: bool) -> list[Conversation]:
    """Return the turns of a call of a tool, in the form of Messages."""
    name, given = f"call_{_name(draw)}", {"path": f"src/{draw.choice(_WORDS)}.py"}
    said = {"type": "text", "text": _sentence(draw)}
    call = {"type": "tool_use", "id": name, "name": "tool_1", "input": given}
    found = _returned(draw, size, digits=digits)
    result = {"type": "tool_result", "tool_use_id": name, "content": found}
    return [{"role": "assistant", "content": [said, call]}, {"role": "user", "content": [result]}]


def conversation(draw: random.Random, size: int, *, digits: bool = True) -> Conversation:
    """Return the body of a request of about so many bytes, in the form of Messages."""
    path = {"type": "string", "description": _sentence(draw)}
    schema = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    tools = [
        {"name": f"tool_{number}", "description": _sentence(draw, 30), "input_schema": schema}
        for number in range(TOOLS)
    ]
    messages = [{"role": "user", "content": _sentence(draw, 30)}]
    for _ in range(CALLS):
        messages += _call(draw, size // CALLS - 1_000, digits=digits)
    system = f"You are an agent. {_sentence(draw, 60)}"
    body = {"model": "bench", "max_tokens": 200, "system": system, "tools": tools}
    return {**body, "messages": messages}


def new(size: int, turns: int, seed: int, *, digits: bool = True) -> Iterator[Conversation]:
    """Yield requests that have nothing in common."""
    for turn in range(turns):
        yield conversation(random.Random(f"{seed} {turn}"), size, digits=digits)


def growing(turns: int, seed: int) -> Iterator[Conversation]:
    """Yield the requests of a conversation that grows."""
    draw = random.Random(f"{seed} growing")
    body = conversation(draw, GROWING)
    for _ in range(turns):
        body["messages"] += _call(draw, STEP - 400, digits=True)
        yield body


def cases(turns: int, seed: int) -> dict[str, tuple[str, list[bytes]]]:
    """Return for each case the path, and the requests of a round."""

    def chat(bodies: Iterator[Conversation]) -> tuple[str, list[bytes]]:
        return PATH, [post(orjson.dumps(to_chat(body))) for body in bodies]

    sizes = (66, 200, 485)
    found = {f"new {size}": chat(new(size * 1_000, turns, seed)) for size in sizes}
    found["new 485, no digits"] = chat(new(485_000, turns, seed, digits=False))
    found["growing"] = chat(growing(turns, seed))
    headers = f"{AUTHORIZATION}anthropic-version: 2023-06-01\r\n"
    grown = [post(orjson.dumps(body), MESSAGES, headers) for body in growing(turns, seed + 10_000)]
    return {**found, "growing messages": (MESSAGES, grown)}


def measure(rounds: int, turns: int) -> dict[str, dict[str, list[float]]]:
    """Return for each case and server p50 and processor time of a request in ms, by rounds."""
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        pin(0, CLIENT_CORE)
        proxy = start_bare(stack, "bare_proxy.py", f"http://127.0.0.1:{upstream}")
        gateway = start_gateway(stack, upstream, policy=EXACT_ONLY)
        for number in range(rounds):
            for case, (path, requests) in cases(turns, number).items():
                of = results.setdefault(case, {})
                for side, server in (("proxy", proxy), ("gateway", gateway)):
                    if side == "proxy" and path != PATH:
                        continue
                    with Client(server.port) as client:
                        client.ask(requests[0])  # all but the first turn of a conversation
                        before = processor_seconds(server.process)
                        times = []
                        for request in requests[1:]:
                            reply = client.ask(request)
                            if reply.status != 200 or b"hit" in reply.head:
                                raise SystemExit(f"no miss: {reply.head!r}")
                            if side == "gateway" and b"detail=" in reply.head:
                                raise SystemExit(f"not stored: {reply.header('cache-status')}")
                            times.append(1e3 * (reply.last - reply.sent))
                        spent = 1e3 * (processor_seconds(server.process) - before) / len(times)
                    of.setdefault(f"{side}_ms", []).append(percentile(times, 0.5))
                    of.setdefault(f"{side}_cpu_ms", []).append(spent)
    return results


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=40, help="requests of each case in a round")
    options = parser.parse_args()
    results = measure(options.rounds, options.turns)
    figures: dict[str, float] = {}
    print(f"{'KB':22}{'gateway p50 ms':>15}{'proxy':>8}{'aim':>6}{'CPU ms':>9}{'proxy':>8}")
    for case, of in results.items():
        row = {name: round(statistics.median(values), 2) for name, values in of.items()}
        figures |= {f"{case.replace(',', '').replace(' ', '_')}_{k}": v for k, v in row.items()}
        shown = [
            row.get(f"{side}_{unit}", "")
            for unit in ("ms", "cpu_ms")
            for side in ("gateway", "proxy")
        ]
        print(f"{case:22}{shown[0]:>15}{shown[1]:>8}{AIMS_MS.get(case, ''):>6}", end="")
        print(f"{shown[2]:>9}{shown[3]:>8}")
    print(json.dumps({"benchmark": "agent_turns", **figures}))


if __name__ == "__main__":
    main()
