"""What rewriting a prompt costs a miss: 20 KB, 40 tools, a system prompt with a time and an id.

    python benchmarks/rewrite.py [--rounds N]

The floor beside it is one parse and one print of the same body by orjson, which a gateway that
printed it anew could not do without. Four ways to write JSON: compact, as OpenAI's clients do; with
spaces; with lines indented by two; and with spaces and escapes, as ``json.dumps`` does. No body
comes twice: in each round the tools come in another order and the values are others, as they would
from an agent. ``new tools`` are tools that nobody sent before: every round has its own.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from gateway.prompts.rewrite.rules import rewrite
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.exact_json import parse_body
from policies.decision import DocumentSettings, Endpoint, PrefixSettings, SchemaKeys, VolatileKind

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
    "spaced": lambda body: json.dumps(body, ensure_ascii=False).encode(),
    "indented": lambda body: json.dumps(body, ensure_ascii=False, indent=2).encode(),
    "escaped": lambda body: json.dumps(body).encode(),
}
"""Ways to write a body, about half of whose tools and texts have a letter that can be escaped."""


def tool(number: int, version: int) -> dict[str, Any]:
    """Return a tool whose schema is not in order."""
    named = ("Path of the file", "Chemin du fichier \u00e0 lire")[number % 2]
    parameters = {
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "description": f"{named}, {number}.{version}"},
            "limit": {"type": "integer", "minimum": 1},
            "mode": {"enum": ["read", "write"], "type": "string"},
        },
        "additionalProperties": False,
    }
    text = "Looks at a file and tells what there is."
    function = {"name": f"tool_{number:02}", "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


def bodies(rounds: int, *, new_tools: bool) -> list[dict[str, Any]]:
    """Return the requests of an agent, each of about BODY_BYTES."""
    chance = random.Random(1)
    tools = [tool(number, 0) for number in range(TOOLS)]
    documents = [
        f"<document>{number} {'said before ' * 20}</document>" for number in range(DOCUMENTS)
    ]
    found = []
    for number in range(rounds):
        if new_tools:
            tools = [tool(each, number) for each in range(TOOLS)]
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
            {"role": "user", "content": "And in the second one, s'il vous pla\u00eet?"},
        ]
        body = {"model": "m", "messages": turns, "tools": list(tools)}
        missing = BODY_BYTES - len(orjson.dumps(body))
        turns[2]["content"] = ("A list of names. " * (missing // 17 + 1))[:missing]
        found.append(body)
    return found


def p50(run: Callable[[Any], object], cases: list[Any]) -> tuple[float, float]:
    """Return the median processor times in microseconds, of a run and of the floor, in turns."""
    taken, floor = [], []
    for case in cases:
        began = time.thread_time()
        orjson.dumps(orjson.loads(case[1]))
        between = time.thread_time()
        run(case)
        taken.append(time.thread_time() - between)
        floor.append(between - began)
    return statistics.median(taken) * 1e6, statistics.median(floor) * 1e6


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    figures: dict[str, Any] = {}
    print(f"{'tools':10}{'written':10}{'rules':14}{'p50 us':>10}{'floor us':>10}{'ratio':>8}")
    for tools in ("known", "new"):
        given = bodies(rounds, new_tools=tools == "new")
        for style, write in STYLES.items():
            cases = [(parse_body(raw), raw) for raw in map(write, given)]
            for name, settings in SIDES.items():
                taken, floor = p50(rewriting(settings), cases)
                print(
                    f"{tools:10}{style:10}{name:14}{taken:10.1f}{floor:10.1f}{taken / floor:8.2f}"
                )
                key = f"{tools}_{style}_{name}".replace(" ", "_")
                figures[f"{key}_us"] = round(taken, 1)
                figures[f"{key}_ratio"] = round(taken / floor, 2)
    print(json.dumps({"benchmark": "rewrite", "bytes": BODY_BYTES, "tools": TOOLS, **figures}))


def rewriting(settings: PrefixSettings) -> Callable[[Any], object]:
    """Return the rewrite as the gateway does it, tools remembered from one request to the next."""
    known = KnownTools()

    def run(case: Any) -> object:
        forms = known.forms(settings.schema_keys, b"")
        result = rewrite(Endpoint.CHAT, case[0], case[1], settings, known=forms)
        known.note(settings.schema_keys, result.tools, b"")
        return result

    return run


if __name__ == "__main__":
    main()
