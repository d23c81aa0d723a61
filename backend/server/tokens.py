"""POST /tokenize and /detokenize: what the engine would be given for a text, and the way back."""

from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import Field, WrapValidator, model_validator

from backend.server.body import read_request
from backend.server.json_reply import json_response
from backend.server.prompts import (
    ON_LOOP_CHARACTERS,
    off_loop,
    refuse_outside_vocabulary,
    render_chat,
)
from backend.server.protocol.fields import Closed, combination, only
from backend.server.protocol.messages import AnyMessage, TemplateFields, quickly
from backend.server.served_model import Loaded, ServedModel


class TokenizeRequest(Closed, TemplateFields):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    tools: Annotated[Any, only([])] = None

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise combination("Exactly one of 'prompt' and 'messages' is needed.", "prompt")
        for name in TemplateFields.model_fields:
            if self.prompt is not None and getattr(self, name):
                raise combination(f"'{name}' is only allowed with 'messages'.", name)
        return self


class DetokenizeRequest(Closed):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**32)]],
        Field(fail_fast=True),
        WrapValidator(quickly),
    ]


class TokenHandlers:
    """The handlers for one served model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize; the length is told, not judged."""
        asked = await read_request(request, TokenizeRequest)
        loaded = self._require(asked.model)
        tokens = await self._tokens(loaded, asked)
        body: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": loaded.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        if asked.return_token_strs:
            body["token_strs"] = await off_loop(
                lambda: loaded.encoder.token_strings(tokens), len(tokens) > ON_LOOP_CHARACTERS
            )
        return json_response(body)

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize; special tokens are written out."""
        asked = await read_request(request, DetokenizeRequest)
        loaded = self._require(asked.model)

        def decode() -> str:
            tokens = tuple(asked.tokens)
            if tokens:
                refuse_outside_vocabulary(tokens, loaded.encoder.vocab_size, "tokens")
            return loaded.encoder.decode(tokens, skip_special_tokens=False)

        text = await off_loop(decode, len(asked.tokens) > ON_LOOP_CHARACTERS)
        return json_response({"prompt": text})

    def _require(self, name: str | None) -> Loaded:
        if name is not None:
            self._model.check_name(name)
        return self._model.require_any()

    async def _tokens(self, loaded: Loaded, asked: TokenizeRequest) -> tuple[int, ...]:
        if asked.messages is not None:
            prompt = await render_chat(
                loaded.encoder,
                asked.messages,
                template=asked.template,
                add_special_tokens=asked.add_special_tokens is True,
            )
            return prompt.tokens
        text = asked.prompt or ""
        special = asked.add_special_tokens is not False
        return await off_loop(
            lambda: tuple(loaded.encoder.encode(text, add_special_tokens=special)),
            len(text) > ON_LOOP_CHARACTERS,
        )
