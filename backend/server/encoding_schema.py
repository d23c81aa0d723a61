"""Requests about tokens and vectors, as pydantic models; see ``schema.py`` for the rules."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Closed, combination, only
from backend.server.message_fields import AnyMessage
from backend.server.schema import Prompt, each_of
from backend.server.template_fields import TemplateFields
from backend.server.token_arrays import in_pieces

MAX_TOKENS_OF_A_REQUEST = 300_000
"""OpenAI's bound on the inputs of one embeddings request together."""


class EmbeddingRequest(Closed):
    """POST /v1/embeddings."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    add_special_tokens: Annotated[Any, only(True)] = None
    # An input that is too long is refused, not cut.
    truncate_prompt_tokens: Annotated[Any, only(-1)] = None

    @property
    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """One element for each input: text, or tokens."""
        return each_of(self.input)


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
            raise PydanticCustomError(
                "invalid_combination",
                "Exactly one of 'prompt' and 'messages' is needed.",
                {"param": "prompt"},
            )
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
        WrapValidator(in_pieces),
    ]
