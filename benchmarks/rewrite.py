"""What rewriting a prompt costs a miss: 20 KB, 40 tools, a system prompt with a time and an id.

    python benchmarks/rewrite.py [--rounds N]

The floor beside it is one parse and one print of the same body by orjson, which a gateway that
printed it anew could not do without. Two ways to write JSON: compact, as OpenAI's clients do, and
with spaces, as ``json.dumps`` does. In each round the tools come in another order and the values
are others, as they would from an agent.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from gateway.core.canonical import parse_body
from gateway.core.rewrite.plan import rewrite
from gateway.core.types import Endpoint
from policies.decide import DocumentSettings, PrefixSettings, SchemaKeys, VolatileKind

TOOLS = 40
BODY_BYTES = 20_000
DOCUMENTS = 6
KINDS = (VolatileKind.TIMESTAMPS, VolatileKind.UUIDS, VolatileKind.REQUEST_IDS)
SIDES = {
    "off": PrefixSettings(SchemaKeys.OFF),
    "default": PrefixSettings(),
    "tools sorted": PrefixSettings(sorts_tools=True),
    "and volatile": PrefixSettings(sorts_tools=True, volatile=KINDS),
    "all": PrefixSettings(
        sorts_tools=True,
        whitespace=True,
        volatile=tuple(VolatileKind),
        documents=DocumentSettings("<document>", "</document>"),
        earlier_turns=True,
    ),
}
STYLES: dict[str, Callable[[Any], bytes]] = {
    "compact": lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
    "spaced": lambda body: json.dumps(body).encode(),
}


def tool(number: int) -> dict[str, Any]:
    """Return a tool whose schema is not in order."""
    parameters = {
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "description": f"Path of the file, tool {number}"},
            "limit": {"type": "integer", "minimum": 1},
            "mode": {"enum": ["read", "write"], "type": "string"},
        },
        "additionalProperties": False,
    }
    text = "Looks at a file and tells what there is."
    function = {"name": f"tool_{number:02}", "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


def bodies(rounds: int) -> list[dict[str, Any]]:
    """Return the requests of an agent, each of about BODY_BYTES."""
    chance = random.Random(1)
    tools = [tool(number) for number in range(TOOLS)]
    documents = [
        f"<document>{number} {'said before ' * 20}</document>" for number in range(DOCUMENTS)
    ]
    found = []
    for number in range(rounds):
        chance.shuffle(tools)
        chance.shuffle(documents)
        stamp = f"2026-11-22T01:{number // 60 % 60:02}:{number % 60:02}.123Z"
        system = f"You are an agent. Time: {stamp}, request id: r-{number}.\n" + "\n".join(
            documents
        )
        turns = [
            {"role": "system", "content": system},
            {"role": "user", "content": "What is in the first file?"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "And in the second one?"},
        ]
        body = {"model": "m", "messages": turns, "tools": list(tools)}
        missing = BODY_BYTES - len(orjson.dumps(body))
        turns[2]["content"] = ("A list of names. " * (missing // 17 + 1))[:missing]
        found.append(body)
    return found


def p50(run: Callable[[Any], object], cases: list[Any]) -> tuple[float, float]:
    """Return the median times in microseconds, of a run and of the floor, in turns."""
    taken, floor = [], []
    for case in cases:
        began = time.perf_counter()
        orjson.dumps(orjson.loads(case[1]))
        between = time.perf_counter()
        run(case)
        taken.append(time.perf_counter() - between)
        floor.append(between - began)
    return statistics.median(taken) * 1e6, statistics.median(floor) * 1e6


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    figures: dict[str, Any] = {}
    print(f"{'written':10}{'rules':14}{'p50 us':>10}{'floor us':>10}{'ratio':>8}")
    for style, write in STYLES.items():
        cases = [(parse_body(raw), raw) for raw in map(write, bodies(rounds))]
        for name, settings in SIDES.items():

            def run(case: Any, settings: PrefixSettings = settings) -> object:
                return rewrite(Endpoint.CHAT, case[0], case[1], settings)

            taken, floor = p50(run, cases)
            print(f"{style:10}{name:14}{taken:10.1f}{floor:10.1f}{taken / floor:8.2f}")
            key = f"{style}_{name}".replace(" ", "_")
            figures[f"{key}_us"] = round(taken, 1)
            figures[f"{key}_ratio"] = round(taken / floor, 2)
    print(json.dumps({"benchmark": "rewrite", "bytes": BODY_BYTES, "tools": TOOLS, **figures}))


if __name__ == "__main__":
    main()
