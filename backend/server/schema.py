"""The requests that are understood, as pydantic models: strict types, OpenAI's ranges.

Three kinds of fields: implemented ones; those that would change the answer and are not
implemented, which are refused unless they hold their neutral value (``only``, and those of other
servers in ``foreign_fields``); and those that change no answer, which are ignored. All others are
refused, unless the server allows them. ``validation.py`` turns pydantic's complaints into OpenAI's.
"""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Closed, combination, only
from backend.server.message_fields import AnyMessage, check_order
from backend.server.sampling_fields import MAX_CHOICES, ChatLogprobFields, SamplingFields
from backend.server.structure_fields import ResponseFormat, StructureFields
from backend.server.template_fields import TemplateFields
from backend.server.token_arrays import Tokens
from backend.server.tools.fields import NamedChoice, ToolChoice, Tools

MAX_PROMPTS = 2_048
_MAX_CHOICES_IN_ALL = 2_048
"""Of all prompts of a request; each has state of its own from the beginning."""

_MAX_TOKENS = 16
"""OpenAI's default for completions; chat has none."""


class StreamOptions(Closed):
    """Options that hold for streamed replies alone."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's padding against eavesdroppers, of which there is none."""

    @model_validator(mode="after")
    def _usage_is_wanted(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            raise combination(
                "'continuous_usage_stats' is only allowed when 'include_usage' is enabled.",
                "stream_options.continuous_usage_stats",
            )
        return self


class GenerationFields(SamplingFields, StructureFields):
    """What all endpoints that generate share."""

    model: str
    stream: bool | None = None
    # Prompts of different salts share no KV.
    cache_salt: Annotated[str, Field(min_length=1)] | None = None


def _keeps_some(tokens: int) -> int:
    if tokens == 0:
        problem = (
            "Invalid 'truncate_prompt_tokens': expected a value >= 1, or -1 for as many tokens as "
            "leave room for the answer, but got 0 instead."
        )
        context = {"problem": problem, "param": "truncate_prompt_tokens"}
        raise PydanticCustomError("disorder", "{problem}", context)
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
            raise combination(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                "stream_options",
            )
        return self


class ChatRequest(CompletionFields, ChatLogprobFields, TemplateFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    # The template writes the special tokens.
    add_special_tokens: Annotated[Any, only(False)] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None
    moderation: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise combination(
                "'max_tokens' and 'max_completion_tokens' cannot be set at the same time.",
                "max_tokens",
            )
        self.check_min_tokens(self.most_tokens)
        return self

    @model_validator(mode="after")
    def _calls_belong_together(self) -> Self:
        check_order(self.messages)
        named = isinstance(self.tool_choice, NamedChoice)
        if not self.tools and (named or self.tool_choice == "required"):
            raise combination(
                "'tool_choice' is only allowed when 'tools' are specified.", "tool_choice"
            )
        if isinstance(self.tool_choice, NamedChoice):
            name = self.tool_choice.function.name
            if all(tool.function.name != name for tool in self.tools or ()):
                raise combination(
                    f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice"
                )
        return self

    @property
    def most_tokens(self) -> int | None:
        """The limit, under whichever name."""
        return self.max_completion_tokens or self.max_tokens


def _prompt_tag(value: Any) -> str | None:
    if type(value) is str:
        return "<text>"
    if type(value) is not list:
        return None
    # The first element says which of the three arrays is meant; the others must agree with it.
    first = value[0] if value else ""
    if type(first) is list:
        return "<token arrays>"
    return "<texts>" if type(first) is str else "<tokens>"


Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[
        list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("<texts>")
    ]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("<token arrays>")],
    Discriminator(
        _prompt_tag,
        custom_error_type="invalid_type",
        custom_error_message=(
            "one of a string, an array of strings, an array of integers or an array of integer "
            "arrays"
        ),
    ),
]


def each_of(
    prompt: str | list[str] | list[int] | list[list[int]],
) -> tuple[str | tuple[int, ...], ...]:
    """Return one element for each of a ``Prompt``'s texts: text, or tokens."""
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        return (tuple(prompt),)  # an array of one kind
    return tuple(item if isinstance(item, str) else tuple(item) for item in prompt)


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
