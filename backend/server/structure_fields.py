"""What form an answer must have, as OpenAI's clients say it (``response_format``) and vLLM's."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Strict, combination, one_of, only

MOST_CHOICES = 1_000
MOST_CHARACTERS = 64 * 1024


_Schema = Annotated[
    Annotated[str, Field(max_length=MOST_CHARACTERS), Tag("<text>")]
    | Annotated[dict[str, Any], Tag("<schema>")],
    one_of("one of a string or an object", text=str, schema=dict),
]


class NamedSchema(Strict):
    """``strict`` wants the whole schema to hold; otherwise what of it can be enforced."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise PydanticCustomError("missing", "", {"param": "response_format.json_schema"})
        return self


class StructuredOutputs(Strict):
    """vLLM's: exactly one of them, or none."""

    json_schema: _Schema | None = Field(default=None, alias="json")
    regex: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)] | None = None
    choice: (
        Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)] | None
    ) = None
    grammar: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)] | None = None
    json_object: bool | None = None
    structural_tag: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        given = (self.json_schema, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(each is not None for each in given) > 1:
            raise combination(
                "Only one of 'json', 'regex', 'choice', 'grammar' and 'json_object' can be set in "
                "'structured_outputs'.",
                "structured_outputs",
            )
        return self
