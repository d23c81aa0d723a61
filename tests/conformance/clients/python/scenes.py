"""What every client is put through; the result of each scene is one line of JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

BASE_URL = sys.argv[1]
MODEL = "claude-x"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

Ask = Callable[[str], Any]


def answer(
    text: str | None, *, calls: list[tuple[str, Any]] | None = None, cache: str | None = None
) -> dict[str, Any]:
    """Return what a client shows of a reply; ``cache`` is None if it shows no headers."""
    read = [(name, json.loads(x) if isinstance(x, str) else x) for name, x in calls or ()]
    return {"text": text, "calls": read, "cache": cache}


def run(plain: Ask, stream: Ask, call: Ask) -> None:
    """Ask for a miss, its hit, two streams and two calls of a tool."""
    scenes = {
        "miss": [plain("plain")],
        "hit": [plain("plain")],
        "stream": [stream("stream"), stream("stream")],
        "call": [call("call"), call("call")],
    }
    for scene, answers in scenes.items():
        print(json.dumps({"scene": scene, "answers": answers}))
