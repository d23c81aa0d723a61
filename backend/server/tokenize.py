"""Texts to tokens and back: POST /tokenize and /detokenize."""

from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import Field, WrapValidator, model_validator

from backend.server.body import json_response, read_request
from backend.server.prompts import (
    ON_LOOP_CHARACTERS,
    off_loop,
    refuse_outside_vocabulary,
    render_chat,
)
from backend.server.protocol import Closed, combination, only
from backend.server.protocol.messages import AnyMessage, TemplateFields, check_tokens
from backend.server.served_model import ServedModel


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
        WrapValidator(check_tokens),
    ]


async def tokenize(model: ServedModel, request: web.Request) -> web.Response:
    """Answer POST /tokenize; any length is accepted."""
    body = await read_request(request, TokenizeRequest)
    loaded = model.require_any(body.model)
    encoder = loaded.encoder
    if body.messages is not None:
        special = body.add_special_tokens is True
        prompt = await render_chat(
            encoder, body.messages, template=body.template, add_special_tokens=special
        )
        tokens = prompt.tokens
    else:
        text = body.prompt or ""
        special = body.add_special_tokens is not False
        tokens = await off_loop(
            lambda: tuple(encoder.encode(text, add_special_tokens=special)),
            len(text) > ON_LOOP_CHARACTERS,
        )
    strings = None
    if body.return_token_strs:
        strings = await off_loop(
            lambda: encoder.token_strings(tokens), len(tokens) > ON_LOOP_CHARACTERS
        )
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": loaded.max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


async def detokenize(model: ServedModel, request: web.Request) -> web.Response:
    """Answer POST /detokenize; special tokens are written out."""
    body = await read_request(request, DetokenizeRequest)
    encoder = model.require_any(body.model).encoder

    def decode() -> str:
        tokens = tuple(body.tokens)
        if tokens:
            refuse_outside_vocabulary(tokens, encoder.vocab_size, "tokens")
        return encoder.decode(tokens, skip_special_tokens=False)

    text = await off_loop(decode, len(body.tokens) > ON_LOOP_CHARACTERS)
    return json_response({"prompt": text})
