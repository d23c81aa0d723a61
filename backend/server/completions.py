"""POST /v1/completions: its request, its handler, and its reply with the prompt where wanted."""

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from backend.ports import EngineError, PromptEncoder
from backend.scheduler.request import FinishReason, TextForm, TokenLogprobs
from backend.server.body import read_request
from backend.server.pipeline import answer, new_generation, sampling_params
from backend.server.prompts import ON_LOOP_CHARACTERS, completion_prompts, each_off_loop
from backend.server.protocol import combination, only
from backend.server.protocol.generation import MAX_CHOICES, CompletionFields
from backend.server.protocol.messages import Prompt, each_of
from backend.server.replies import ChoicesReply, FinishedChoice, Object, TokenBytes, finite
from backend.server.served_model import ServedModel
from backend.server.structured import constraint_of

_MAX_CHOICES_IN_ALL = 2_048
"""The choices of all prompts of a request; each has its own state from the beginning."""

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
    # False is for prompts that a chat template wrote, special tokens and all.
    add_special_tokens: bool | None = None

    @property
    def most_tokens(self) -> int:
        """The limit; OpenAI's where the request has none."""
        return _MAX_TOKENS if self.max_tokens is None else self.max_tokens

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
        choices = len(each_of(self.prompt)) * (self.n or 1)
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
    body = await read_request(request, CompletionRequest)
    loaded = model.require(body.model)
    encoder = loaded.encoder
    given = each_of(body.prompt)
    keep_last = body.max_prompt_tokens(loaded.max_model_len)
    prompts = await completion_prompts(
        encoder,
        given,
        max_model_len=loaded.max_model_len,
        keep_last=keep_last,
        add_special_tokens=body.add_special_tokens is not False,
    )
    constraint = await constraint_of(body)
    sampling = sampling_params(
        body,
        loaded,
        constraint,
        # The engine computes one token at least; where none is wanted, it is not sent.
        max_tokens=body.most_tokens or 1,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    generation = new_generation(
        "cmpl-",
        prompts,
        body,
        sampling,
        request,
        arrived=arrived,
        # Clients count on one figure for each token, as OpenAI and vLLM give them.
        text=TextForm(continues=True, reports_end=True),
        adapter=loaded.adapter,
        prompt_only=body.most_tokens == 0,
    )
    # Of a prompt that was cut, what the model read is known by its tokens alone.
    texts = given if keep_last is None else prompts
    echoed = await _echoed_prompts(encoder, texts, prompts) if body.echo else ()
    reply = CompletionReply(
        generation.id,
        body,
        tuple(each for each in echoed for _ in range(body.n or 1)),
        None if body.logprobs is None else encoder.token_bytes,
    )
    return await answer(request, generation, loaded.generator, reply, constraint)


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that precedes its completion."""

    text: str
    tokens: tuple[int, ...]

    def logprobs(self, known: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> Object:
        """Return its ``logprobs``; ``known`` begins with the second token: none precedes the first.

        Raises EngineError when some are missing.
        """
        if len(known) != len(self.tokens) - 1:
            raise EngineError("log probabilities of the prompt are missing")
        rest = _logprobs(known, token_bytes, 0)
        return {
            "tokens": [_name(token_bytes(token)) for token in self.tokens],
            "token_logprobs": [None, *rest["token_logprobs"]],
            "top_logprobs": [None, *rest["top_logprobs"]],
            "text_offset": self._offsets(token_bytes),
        }

    def _offsets(self, token_bytes: TokenBytes) -> list[int]:
        # Tokens that the model puts around a text are not in it, and a first space may not be.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets = []
        at = 0
        for token in self.tokens:
            offsets.append(at)
            piece = decoder.decode(token_bytes(token))
            for written in (piece, piece.removeprefix(" ")):
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

    def echo(item: tuple[str | tuple[int, ...], tuple[int, ...]]) -> EchoedPrompt:
        prompt, tokens = item
        if isinstance(prompt, str):
            return EchoedPrompt(prompt, tokens)
        return EchoedPrompt(encoder.decode(prompt, skip_special_tokens=False), tokens)

    items = tuple(zip(prompts, encoded, strict=True))
    return await each_off_loop(echo, items, sum(map(len, encoded)) > ON_LOOP_CHARACTERS)


class CompletionReply(ChoicesReply):
    """OpenAI's objects for completions."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        reply_id: str,
        body: CompletionRequest,
        echo: tuple[EchoedPrompt, ...],
        token_bytes: TokenBytes | None,
    ) -> None:
        """``echo`` has the prompt that precedes each choice, or is empty."""
        super().__init__(reply_id, body, token_bytes)
        self._echo = echo

    def choice(self, index: int, choice: FinishedChoice) -> Object:
        written = self._write(index, choice.text, choice.logprobs, choice.finish_reason)
        if self._echo:
            prompt = self._echo[index]
            written["text"] = prompt.text + choice.text
            if self._token_bytes is not None:
                before = prompt.logprobs(choice.prompt_logprobs, self._token_bytes)
                after = written["logprobs"]
                written["logprobs"] = {key: before[key] + after[key] for key in before}
        return written

    def opening(self, index: int, prompt: Sequence[TokenLogprobs]) -> list[Object]:
        if not self._echo:
            return []
        written = self._write(index, self._echo[index].text)
        if self._token_bytes is not None:
            written["logprobs"] = self._echo[index].logprobs(prompt, self._token_bytes)
        return [written]

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> list[Object]:
        return [self._write(index, text, logprobs)]

    def ending(self, index: int, reason: FinishReason) -> list[Object]:
        return [self._write(index, "", reason=reason)]

    def _write(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprobs] | None = None,
        reason: FinishReason | None = None,
    ) -> Object:
        written = None
        if logprobs is not None and self._token_bytes is not None:
            start = len(self._echo[index].text) if self._echo else 0
            written = _logprobs(logprobs, self._token_bytes, start)
        return {
            "text": text,
            "index": index,
            "logprobs": written,
            "finish_reason": None if reason is None else reason.value,
        }


def _logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes, start: int) -> Object:
    """Return the ``logprobs`` of a completion whose text begins at ``start`` of what is returned.

    The likeliest include the chosen token, also where it is not among them.
    """
    return {
        "tokens": [_name(token_bytes(each.token)) for each in tokens],
        "token_logprobs": [finite(each.logprob) for each in tokens],
        "top_logprobs": [
            {_name(token_bytes(token)): finite(value) for token, value in _with_chosen(each)}
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
