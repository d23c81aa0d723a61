"""Tokens of a long answer become text in turns with everything else on the event loop."""

import asyncio
from collections.abc import Iterator
from time import monotonic

from backend.scheduler.request import TextDelta, TokenDelta
from backend.scheduler.stopping import Choice

_TOKENS = 32
_TURN_SECONDS = 0.002
"""What is left undone after this long waits until all others had their turn."""


async def text_of(choice: Choice, tokens: TokenDelta) -> TextDelta | None:
    """Return what ``choice.push`` makes of ``tokens``."""
    if len(tokens.tokens) <= _TOKENS:
        return choice.push(tokens)
    deltas: list[TextDelta] = []
    began = monotonic()
    for piece in _pieces(tokens):
        if (delta := choice.push(piece)) is not None:
            deltas.append(delta)
            if delta.finish_reason is not None:
                break  # a stop string, perhaps, and what follows it is not looked at
        if monotonic() - began > _TURN_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()
    return _joined(deltas) if deltas else None


def _pieces(tokens: TokenDelta) -> Iterator[TokenDelta]:
    last = len(tokens.tokens) - _TOKENS
    for start in range(0, len(tokens.tokens), _TOKENS):
        piece = slice(start, start + _TOKENS)
        yield tokens._replace(
            tokens=tokens.tokens[piece],
            logprobs=tokens.logprobs[piece],
            finish_reason=tokens.finish_reason if start >= last else None,
            prompt_logprobs=tokens.prompt_logprobs if start == 0 else (),
        )


def _joined(deltas: list[TextDelta]) -> TextDelta:
    last = deltas[-1]
    return TextDelta(
        last.index,
        "".join(delta.text for delta in deltas),
        last.completion_tokens,
        last.finish_reason,
        tuple(logprobs for delta in deltas for logprobs in delta.logprobs),
        last.cached_tokens,
        deltas[0].prompt_logprobs,
    )
