"""What is sent to the Responses API, what is said there, and how it is looked at."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from backend.scheduler.request import FinishReason, GenerationRequest, TextDelta, TokenLogprobs

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
RETURNED = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def saying(
    *pieces: str, reason: FinishReason = FinishReason.STOP
) -> Callable[[GenerationRequest], AsyncIterator[TextDelta]]:
    """Return a script that says ``pieces``, with log probabilities where they are wanted."""

    async def script(request: GenerationRequest) -> AsyncIterator[TextDelta]:
        length = 0
        for number, piece in enumerate(pieces, start=1):
            told: tuple[TokenLogprobs, ...] = ()
            if request.sampling.logprobs is not None:
                told = tuple(
                    TokenLogprobs(ord(character), -0.5, ((ord(character), -0.5),), length + place)
                    for place, character in enumerate(piece)
                )
            length += len(piece)
            yield TextDelta(0, piece, number, None, told)
        yield TextDelta(0, "", len(pieces) + 1, reason, cached_tokens=2)

    return script


def prompt(server: Any) -> str:
    """The prompt of the last request."""
    return "".join(map(chr, server.generator.requests[-1].prompt_tokens))


def unnamed(value: Any) -> Any:
    """Leave out what differs from one response to the next."""
    if isinstance(value, list):
        return [unnamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    fleeting = {"id", "call_id", "item_id", "created_at", "completed_at"}
    return {key: unnamed(item) for key, item in value.items() if key not in fleeting}
