"""A small log of requests and answers, the same each time.

It is the example of docs/start/estimate.md."""

from collections.abc import Iterator
from typing import Any

BEGIN = 1_772_438_400.0
"""2026-03-02 08:00 UTC."""
_SYSTEM = "You help the customers of Acme, a shop for garden tools. Answer in two sentences. " * 16
_QUESTIONS = (
    "How do I reset my password?",
    "Which payment methods do you accept?",
    "Do you ship to Norway?",
    "How do I return a rake that is broken?",
)


def _question(number: int) -> str:
    """Return the question of a request: many come again, and some twice at a time."""
    if number % 20 in (8, 9):
        return f"Is order {number // 20} on its way?"
    if number % 10 == 7:
        return f"Please write to kim{number}@example.org about my order."
    if number % 2:
        return f"Where is parcel {4711 + number * 37 % 29}?"
    return _QUESTIONS[number // 2 % 4 * number % 4]


def lines(count: int = 200) -> Iterator[dict[str, Any]]:
    """Yield lines in the OpenAI form, each with its answer, start and end."""
    for number in range(count):
        model = "gpt-4o-mini" if number % 5 else "in-house"
        text = _question(number)
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]
        body: dict[str, Any] = {"model": model, "messages": messages}
        if number % 20 == 3:
            body["store"] = True
        said = {"role": "assistant", "content": "Thank you for asking. It takes two days."}
        answer = {
            "object": "chat.completion",
            "model": model,
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 280 + len(text) // 4, "completion_tokens": 11},
        }
        start = BEGIN + number // 2 * 60.0 + number % 2
        seconds = 1.0 + number * 7 % 5
        yield {
            "request": body,
            "response": answer,
            "start": start,
            "end": start + seconds,
            "tenant": "shop" if number % 3 else "desk",
        }
