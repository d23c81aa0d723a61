"""Requests about tokens and vectors, as pydantic models; see ``schema.py`` for the rules."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Strict, only
from backend.server.message_fields import AnyMessage
from backend.server.schema import Prompt, each_of
from backend.server.token_arrays import in_pieces

MAX_TOKENS_OF_A_REQUEST = 300_000
"""OpenAI's bound on the inputs of one embeddings request together."""


class EmbeddingRequest(Strict):
    """POST /v1/embeddings."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None

    truncate_prompt_tokens: Annotated[Any, only()] = None

    @property
    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """One element for each input: text, or tokens."""
        return each_of(self.input)


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    tools: Annotated[Any, only([])] = None
    continue_final_message: Annotated[Any, only(False)] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError(
                "invalid_combination",
                "Exactly one of 'prompt' and 'messages' is needed.",
                {"param": "prompt"},
            )
        return self


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**32)]],
        Field(fail_fast=True),
        WrapValidator(in_pieces),
    ]
