"""Log probabilities as the two endpoints write them. Pure.

They are the model's own: before temperature, bias, penalties and filters.
"""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.ports import EngineError
from backend.scheduler.request import TokenLogprobs

Spell = Callable[[int], bytes]
"""A token's text; special tokens by their names."""

_LEAST = -9999.0
"""OpenAI's number for what has no probability: JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenLogprobs], spell: Spell) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice."""
    return {
        "content": [
            _described(each.token, each.logprob, spell)
            | {"top_logprobs": [_described(token, value, spell) for token, value in each.top]}
            for each in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(
    tokens: Sequence[TokenLogprobs], spell: Spell, start: int
) -> dict[str, Any]:
    """Return the ``logprobs`` of a completion whose text begins at ``start`` of what is returned.

    The likeliest include the chosen token, also where it is not among them.
    """
    return {
        "tokens": [_name(spell(each.token)) for each in tokens],
        "token_logprobs": [_finite(each.logprob) for each in tokens],
        "top_logprobs": [
            {_name(spell(token)): _finite(value) for token, value in _with_chosen(each)}
            for each in tokens
        ],
        "text_offset": [start + each.text_offset for each in tokens],
    }


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that precedes its completion."""

    text: str
    tokens: tuple[int, ...]

    def logprobs(self, known: Sequence[TokenLogprobs], spell: Spell) -> dict[str, Any]:
        """Return its ``logprobs``; ``known`` begins with the second token: none precedes the first.

        Raises EngineError when some are missing.
        """
        if len(known) != len(self.tokens) - 1:
            raise EngineError("log probabilities of the prompt are missing")
        rest = completion_logprobs(known, spell, 0)
        return {
            "tokens": [_name(spell(token)) for token in self.tokens],
            "token_logprobs": [None, *rest["token_logprobs"]],
            "top_logprobs": [None, *rest["top_logprobs"]],
            "text_offset": self._offsets(spell),
        }

    def _offsets(self, spell: Spell) -> list[int]:
        # Tokens that the model puts around a text are not in it, and a first space may not be.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets = []
        at = 0
        for token in self.tokens:
            offsets.append(at)
            piece = decoder.decode(spell(token))
            for written in (piece, piece.lstrip(" ")):
                if self.text.startswith(written, at):
                    at += len(written)
                    break
        return offsets


def _with_chosen(each: TokenLogprobs) -> tuple[tuple[int, float], ...]:
    if any(token == each.token for token, _ in each.top):
        return each.top
    return (*each.top, (each.token, each.logprob))


def _described(token: int, logprob: float, spell: Spell) -> dict[str, Any]:
    text = spell(token)
    return {
        "token": text.decode(errors="replace"),
        "logprob": _finite(logprob),
        "bytes": list(text),
    }


def _name(text: bytes) -> str:
    """Return the text, spelling out bytes that are only part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
