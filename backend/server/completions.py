"""POST /v1/completions: its request, its handler, and its reply with the prompt where asked for."""

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from backend.ports import EngineError, PromptEncoder
from backend.scheduler.request import FinishReason, TokenLogprobs
from backend.server.body import read_request
from backend.server.pipeline import answer, new_generation, sampling_params
from backend.server.prompts import ON_LOOP_CHARACTERS, completion_prompts, each_off_loop
from backend.server.protocol import combination, only
from backend.server.protocol.generation import MAX_CHOICES, CompletionFields, StreamOptions
from backend.server.protocol.messages import Prompt, each_of
from backend.server.replies import ChoicesReply, FinishedChoice, Object, Spell, finite
from backend.server.served_model import ServedModel
from backend.server.structured import constraint_of

_MAX_CHOICES_IN_ALL = 2_048
"""Of all prompts of a request; each has state of its own from the beginning."""

_MAX_TOKENS = 16
"""OpenAI's default for completions; chat has none."""


class CompletionRequest(CompletionFields):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[Any, only("")] = None
    add_special_tokens: Annotated[Any, only(True)] = None

    @property
    def most_tokens(self) -> int:
        """The limit, OpenAI's where none is said."""
        return _MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """One element for each prompt: text, or tokens."""
        return each_of(self.prompt)

    @model_validator(mode="after")
    def _best_of_takes_no_choice(self) -> Self:
        # The best of more than are returned would need them compared.
        choices = self.n or 1
        if self.best_of is not None and self.best_of < choices:
            raise combination(
                f"'best_of' must be greater than or equal to 'n', but is {self.best_of} where 'n' "
                f"is {choices}.",
                "best_of",
            )
        if self.best_of is not None and self.best_of > choices:
            raise PydanticCustomError(
                "unsupported_parameter", "", {"param": "best_of", "neutral": (choices,)}
            )
        self.check_min_tokens(self.most_tokens)
        return self

    @model_validator(mode="after")
    def _choices_have_room(self) -> Self:
        choices = len(self.prompts) * (self.n or 1)
        if choices > _MAX_CHOICES_IN_ALL:
            raise combination(
                f"'n' choices for each prompt are {choices} in all, of which "
                f"{_MAX_CHOICES_IN_ALL} are allowed.",
                "n",
            )
        return self


async def completions(model: ServedModel, request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/completions."""
    arrived = time.monotonic()
    asked = await read_request(request, CompletionRequest)
    loaded = model.require(asked.model)
    encoder = loaded.encoder
    keep_last = asked.max_prompt_tokens(loaded.max_model_len)
    prompts = await completion_prompts(
        encoder, asked.prompts, max_model_len=loaded.max_model_len, keep_last=keep_last
    )
    constraint = await constraint_of(asked)
    sampling = sampling_params(
        asked,
        loaded,
        constraint,
        # The engine computes one token at least; where none is wanted, it is not told.
        max_tokens=asked.most_tokens or 1,
        logprobs=asked.logprobs,
        prompt_logprobs=asked.logprobs if asked.echo else None,
    )
    generation = new_generation(
        "cmpl-",
        prompts,
        asked,
        sampling,
        request,
        arrived=arrived,
        prompt_only=asked.most_tokens == 0,
    )
    # Of a prompt that was cut, what the model read is known by its tokens alone.
    said = asked.prompts if keep_last is None else prompts
    echoed = await _echoed_prompts(encoder, said, prompts) if asked.echo else ()
    reply = CompletionReply(
        generation.id,
        asked.model,
        asked.stream_options or StreamOptions(),
        tuple(each for each in echoed for _ in range(generation.n)),
        None if asked.logprobs is None else encoder.token_bytes,
    )
    return await answer(request, generation, loaded.generator, reply, constraint)


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that precedes its completion."""

    text: str
    tokens: tuple[int, ...]

    def logprobs(self, known: Sequence[TokenLogprobs], spell: Spell) -> Object:
        """Return its ``logprobs``; ``known`` begins with the second token: none precedes the first.

        Raises EngineError when some are missing.
        """
        if len(known) != len(self.tokens) - 1:
            raise EngineError("log probabilities of the prompt are missing")
        rest = _logprobs(known, spell, 0)
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


async def _echoed_prompts(
    encoder: PromptEncoder,
    prompts: Sequence[str | tuple[int, ...]],
    encoded: Sequence[tuple[int, ...]],
) -> tuple[EchoedPrompt, ...]:
    """Return each prompt as it is sent back; of tokens special ones are spelled too."""

    def spell(item: tuple[str | tuple[int, ...], tuple[int, ...]]) -> EchoedPrompt:
        prompt, tokens = item
        if isinstance(prompt, str):
            return EchoedPrompt(prompt, tokens)
        return EchoedPrompt(encoder.decode(prompt, skip_special_tokens=False), tokens)

    items = tuple(zip(prompts, encoded, strict=True))
    return await each_off_loop(spell, items, sum(map(len, encoded)) > ON_LOOP_CHARACTERS)


class CompletionReply(ChoicesReply):
    """OpenAI's objects for completions."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        reply_id: str,
        model: str,
        options: StreamOptions,
        echo: tuple[EchoedPrompt, ...],
        spell: Spell | None,
    ) -> None:
        """``echo`` has the prompt that precedes each choice, or is empty.

        ``spell`` is given where log probabilities are wanted.
        """
        super().__init__(reply_id, model, options)
        self._echo = echo
        self._spell = spell

    def choice(self, index: int, choice: FinishedChoice) -> Object:
        """Return a choice of a plain reply."""
        text = self._echo[index].text + choice.text if self._echo else choice.text
        written = _choice(index, text, choice.finish_reason.value)
        if self._spell is not None:
            written["logprobs"] = self._logprobs(index, choice.logprobs, self._spell)
            if self._echo:
                prompt = self._echo[index].logprobs(choice.prompt_logprobs, self._spell)
                own = written["logprobs"]
                written["logprobs"] = {key: prompt[key] + own[key] for key in prompt}
        return written

    def opening(self, index: int, prompt: Sequence[TokenLogprobs]) -> list[Object]:
        """Return the prompt, where it was asked to be echoed."""
        if not self._echo:
            return []
        written = _choice(index, self._echo[index].text, None)
        if self._spell is not None:
            written["logprobs"] = self._echo[index].logprobs(prompt, self._spell)
        return [written]

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> list[Object]:
        """Return the choice of a chunk with new text."""
        written = _choice(index, text, None)
        if self._spell is not None:
            written["logprobs"] = self._logprobs(index, logprobs, self._spell)
        return [written]

    def ending(self, index: int, reason: FinishReason) -> list[Object]:
        """Return a choice's last chunk."""
        return [_choice(index, "", reason.value)]

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprobs], spell: Spell) -> Object:
        return _logprobs(logprobs, spell, len(self._echo[index].text) if self._echo else 0)


def _choice(index: int, text: str, reason: str | None) -> Object:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _logprobs(tokens: Sequence[TokenLogprobs], spell: Spell, start: int) -> Object:
    """Return the ``logprobs`` of a completion whose text begins at ``start`` of what is returned.

    The likeliest include the chosen token, also where it is not among them.
    """
    return {
        "tokens": [_name(spell(each.token)) for each in tokens],
        "token_logprobs": [finite(each.logprob) for each in tokens],
        "top_logprobs": [
            {_name(spell(token)): finite(value) for token, value in _with_chosen(each)}
            for each in tokens
        ],
        "text_offset": [start + each.text_offset for each in tokens],
    }


def _with_chosen(each: TokenLogprobs) -> tuple[tuple[int, float], ...]:
    if any(token == each.token for token, _ in each.top):
        return each.top
    return (*each.top, (each.token, each.logprob))


def _name(text: bytes) -> str:
    """Return the text, spelling out bytes that are only part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
