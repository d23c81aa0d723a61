"""What form an answer must have, as OpenAI's clients say it (``response_format``) and vLLM's."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Closed, Strict, combination, one_of

MOST_CHOICES = 1_000
MOST_CHARACTERS = 64 * 1024


_Schema = Annotated[
    Annotated[str, Field(max_length=MOST_CHARACTERS), Tag("<text>")]
    | Annotated[dict[str, Any], Tag("<schema>")],
    one_of("one of a string or an object", text=str, schema=dict),
]
_Source = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
_Choices = Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]


class NamedSchema(Strict):
    """``strict`` wants the whole schema to hold; otherwise what of it can be enforced."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Closed):
    """OpenAI's; with ``json_object`` llama.cpp's bare schema, too."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise PydanticCustomError("missing", "", {"param": "response_format.json_schema"})
        if self.definition is not None and self.type != "json_object":
            raise combination(
                "'schema' is only allowed where the type is 'json_object'; with 'json_schema' it "
                "is a part of that.",
                "response_format.schema",
            )
        return self


class StructuredOutputs(Closed):
    """vLLM's: exactly one of them, or none."""

    json_schema: _Schema | None = Field(default=None, alias="json")
    regex: _Source | None = None
    choice: _Choices | None = None
    grammar: _Source | None = None
    json_object: bool | None = None

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


class StructureFields(Strict):
    """vLLM's field for the form of an answer, and the ones that it had before."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: _Source | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Source | None = None

    @property
    def structure(self) -> tuple[str, StructuredOutputs] | None:
        """What is demanded, and how the names of its fields begin."""
        if self.structured_outputs is not None:
            return "structured_outputs.", self.structured_outputs
        guided = StructuredOutputs.model_construct(
            json_schema=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        return None if guided == StructuredOutputs() else ("guided_", guided)

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        given = [name for name in StructureFields.model_fields if getattr(self, name) is not None]
        if len(given) > 1:
            raise combination(
                f"'{given[0]}' and '{given[1]}' cannot be set at the same time.", given[1]
            )
        return self
