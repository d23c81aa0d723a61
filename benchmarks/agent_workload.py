"""A support agent's conversations, with the habits that cost real agents their prefix hits.

Its framework hands over the tools in another order each time, writes the time to the millisecond
and a request id into the system prompt, and puts the documents that retrieval found, in the order
of their scores, behind it. All that is said is made up from a seed, so that a run can be repeated.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

OBJECTS = ("order", "invoice", "parcel", "refund", "account", "ticket", "coupon", "address")
ACTIONS = ("find", "list", "update", "cancel", "export")
MODEL = "agent"
BEGIN, END = "<document>", "</document>"
NUM_TOOLS = len(OBJECTS) * len(ACTIONS)
_START = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Turn:
    """One request of a conversation, without the model's name."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    new: str
    """What no earlier request holds, in whatever order it is written: the user's words, the answer
    before them, the time and the id, and at first the documents."""


@dataclass(frozen=True)
class Workload:
    """One agent. ``num_documents`` of its handbook are found for each conversation."""

    seed: int = 1
    turns: int = 30
    num_documents: int = 6

    def conversation(self, number: int = 0) -> Iterator[Turn]:
        """Yield the requests in turn; the model's answers are made up, too."""
        chance = random.Random(f"{self.seed} {number}")
        tools = [_tool(action, thing) for thing in OBJECTS for action in ACTIONS]
        documents = [_document(chance, title) for title in range(self.num_documents)]
        now = _START + timedelta(hours=number)
        history: list[dict[str, Any]] = []
        answer = ""
        for turn in range(self.turns):
            now += timedelta(seconds=chance.uniform(5, 40))
            chance.shuffle(tools)
            chance.shuffle(documents)
            stamp, request_id = _stamp(now), f"req_{chance.getrandbits(96):024x}"
            question = f"{_sentence(chance, 14).rstrip('.')}? ({turn + 1})"
            history.append({"role": "user", "content": question})
            system = _system(stamp, request_id, documents)
            found = "" if turn else "".join(documents)
            yield Turn(
                ({"role": "system", "content": system}, *history),
                tuple(tools),
                f"{found}{answer}{question}{stamp}{request_id}",
            )
            answer = _sentence(chance, 40)
            history.append({"role": "assistant", "content": answer})


_SAID = (
    "the customer wants to know when parcel from our store arrives and whether refund for second "
    "item can be sent to same card as before because address on account was changed last week by "
    "support after call about broken coupon which should still work until end of month"
)
_WORDS = _SAID.split()


def _sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _stamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _system(stamp: str, request_id: str, documents: list[str]) -> str:
    found = "\n".join(f"{BEGIN}{document}{END}" for document in documents)
    return (
        "You are the support agent of a mail-order shop.\n"
        f"Current time: {stamp}\nRequest: {request_id}\n"
        "Answer in one short paragraph. Use the tools to look things up, never guess an order's "
        "state, and ask before you cancel anything.\n\nFrom the handbook:\n"
        f"{found}\n"
    )


def _document(chance: random.Random, title: int) -> str:
    return f"Chapter {title + 1}. " + " ".join(_sentence(chance, 20) for _ in range(4))


def _tool(action: str, thing: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            f"{thing}_id": {"type": "string", "description": f"Which {thing}."},
            "reason": {"type": "string", "enum": ["asked", "fraud", "mistake"]},
        },
        "required": [f"{thing}_id"],
    }
    function = {
        "name": f"{action}_{thing}",
        "description": f"{action.capitalize()} the customer's {thing}.",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def body_of(turn: Turn, model: str, **fields: Any) -> bytes:
    """Return the request as a framework writes it."""
    body = {"model": model, "messages": turn.messages, "tools": turn.tools, **fields}
    return json.dumps(body).encode()


if __name__ == "__main__":  # a log to report on
    for turn in Workload().conversation():
        sys.stdout.buffer.write(body_of(turn, MODEL) + b"\n")
