"""What all requests that generate share: how tokens are chosen, and what form the answer must have.

OpenAI's parameters, and those that vLLM's clients send besides.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.protocol import Closed, Strict, combination, one_of, worded

MOST_CHOICES = 1_000
MOST_CHARACTERS = 64 * 1024
MAX_CHOICES = 128
MOST_STOPS = 64  # OpenAI takes 4, and other engines any number
MAX_NAMED_TOKENS = 1_024
"""``logit_bias`` and ``stop_token_ids`` may each name so many: a batch's changes read them all."""

_INT64_MAX = 2**63 - 1
_TOKEN_ID = Annotated[int, Field(ge=0)]

# OpenAI takes 4; evaluations, and Anthropic's clients, send more.
Stop = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[str], Field(max_length=MOST_STOPS), Tag("<strings>")],
    one_of("one of a string or an array of strings", string=str, strings=list),
]


def _token_ids(bias: dict[str, float]) -> dict[str, float]:
    if len(bias) > MAX_NAMED_TOKENS:
        raise worded(
            f"Invalid 'logit_bias': too many tokens. Expected at most {MAX_NAMED_TOKENS}, but got "
            f"{len(bias)} instead.",
            "logit_bias",
        )
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            message = (
                f"Invalid key in 'logit_bias': {key[:40]}. You should only be submitting "
                "non-negative integers."
            )
            raise worded(message, "logit_bias", "invalid_value")
    return bias


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


class StreamOptions(Closed):
    """Options that hold for streamed replies alone."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's padding against eavesdroppers, of which there is none."""

    @model_validator(mode="after")
    def _usage_is_wanted(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            problem = "'continuous_usage_stats' is only allowed when 'include_usage' is enabled."
            raise combination(problem, "stream_options.continuous_usage_stats")
        return self


class GenerationFields(Closed):
    """What all endpoints that generate share."""

    # vLLM's field for the form of an answer, and the ones that it had before.
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: _Source | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Source | None = None

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    # -1 is other servers' way to say 0: no limit.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], AfterValidator(_token_ids)]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[_TOKEN_ID], Field(max_length=MAX_NAMED_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None

    model: str
    stream: bool | None = None
    # Prompts of different salts share no KV.
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

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
        guided = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        names = ("structured_outputs", *guided)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            problem = f"'{given[0]}' and '{given[1]}' cannot be set at the same time."
            raise combination(problem, given[1])
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_biases(self) -> tuple[tuple[int, float], ...]:
        """What is added to which token's logit."""
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        return tuple(bias.items())

    def check_min_tokens(self, most: int | None) -> None:
        """Raise where more tokens are wanted at least than at ``most``."""
        if self.min_tokens is not None and most is not None and self.min_tokens > most:
            problem = f"is {self.min_tokens} and more than the {most} tokens that are allowed"
            raise combination(f"'min_tokens' {problem}.", "min_tokens")


def _keeps_some(tokens: int) -> int:
    if tokens == 0:
        raise worded(
            "Invalid 'truncate_prompt_tokens': expected a value >= 1, or -1 for as many tokens as "
            "leave room for the answer, but got 0 instead.",
            "truncate_prompt_tokens",
        )
    return tokens


class CompletionFields(GenerationFields):
    """What chat and completions share."""

    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1), AfterValidator(_keeps_some)] | None = None

    def max_prompt_tokens(self, max_model_len: int) -> int | None:
        """Return how many of a prompt's last tokens are kept; None: a long prompt is an error."""
        if self.truncate_prompt_tokens != -1:
            return self.truncate_prompt_tokens
        return max(max_model_len - (self.most_tokens or 1), 1)

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer, where there is one."""
        return self.max_tokens

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            problem = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise combination(problem, "stream_options")
        return self
