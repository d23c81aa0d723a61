"""The requests that are understood, as pydantic models: strict types, OpenAI's ranges.

Three kinds of fields: implemented ones; those that would change the answer and are not
implemented, which are refused unless they hold their neutral value (``only``); and all others,
which are ignored. ``validation.py`` turns pydantic's complaints into OpenAI's.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_CHOICES = 128
MAX_PROMPTS = 2_048
_INT64_MAX = 2**63 - 1


def only(*neutral: Any) -> AfterValidator:
    """Accept null and the ``neutral`` values, at which a parameter changes nothing."""

    def check(value: Any) -> Any:
        if value is not None and not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
            for allowed in neutral
        ):
            raise PydanticCustomError("unsupported_parameter", "", {"neutral": neutral})
        return value

    return AfterValidator(check)


def one_of(expected: str, **type_of_tag: type) -> Discriminator:
    """Choose a union's branch by JSON type; ``expected`` names them all, and is the message."""

    def tag(value: Any) -> str | None:
        for name, kind in type_of_tag.items():
            if type(value) is kind:
                return f"<{name}>"
        return None

    return Discriminator(tag, custom_error_type="invalid_type", custom_error_message=expected)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextPart(_Strict):
    """A content part; text is the only modality there is."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Field(min_length=1), Tag("<parts>")],
    one_of("one of a string or an array of objects", text=str, parts=list),
]


class Message(_Strict):
    """A message that must have content."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    def text(self) -> str:
        """Return the content; parts are set apart by line ends."""
        return _text(self.content)


class AssistantMessage(_Strict):
    """What a model answered earlier; clients send such messages back as they got them."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None

    def text(self) -> str:
        """Return the content, empty when there was none."""
        return "" if self.content is None else _text(self.content)


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _message_tag(value: Any) -> str:
    is_answer = isinstance(value, dict) and value.get("role") == "assistant"
    return "<answer>" if is_answer else "<message>"


AnyMessage = Annotated[
    Annotated[Message, Tag("<message>")] | Annotated[AssistantMessage, Tag("<answer>")],
    Discriminator(_message_tag),
]

Stop = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[str], Field(min_length=1, max_length=4), Tag("<strings>")],
    one_of("one of a string or an array of strings", string=str, strings=list),
]


class StreamOptions(_Strict):
    """Options that hold for streamed replies alone."""

    include_usage: bool | None = None


class GenerationParameters(_Strict):
    """What both endpoints share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    # -1 is other servers' way to say 0: no limit.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX)] | None = None
    stop: Stop | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    ignore_eos: bool | None = None

    presence_penalty: Annotated[Any, only(0)] = None
    frequency_penalty: Annotated[Any, only(0)] = None
    repetition_penalty: Annotated[Any, only(1)] = None
    min_p: Annotated[Any, only(0)] = None
    min_tokens: Annotated[Any, only(0)] = None
    logit_bias: Annotated[Any, only({})] = None
    stop_token_ids: Annotated[Any, only([])] = None
    structured_outputs: Annotated[Any, only({})] = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends in a chunk with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, however they were written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "invalid_combination",
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                {"param": "stream_options"},
            )
        return self


class ChatRequest(GenerationParameters):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    logprobs: Annotated[Any, only(False)] = None
    top_logprobs: Annotated[Any, only(0)] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None
    moderation: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "invalid_combination",
                "'max_tokens' and 'max_completion_tokens' cannot be set at the same time.",
                {"param": "max_tokens"},
            )
        return self


# One complaint is sent, so a long array of wrong elements needs no more than one made.
_Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]


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
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[
        list[_Tokens], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("<token arrays>")
    ],
    Discriminator(
        _prompt_tag,
        custom_error_type="invalid_type",
        custom_error_message=(
            "one of a string, an array of strings, an array of integers or an array of integer "
            "arrays"
        ),
    ),
]


class CompletionRequest(GenerationParameters):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None

    best_of: Annotated[Any, only(1)] = None
    logprobs: Annotated[Any, only()] = None
    suffix: Annotated[Any, only("")] = None

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """One element for each prompt: text, or tokens."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (tuple(self.prompt),)  # an array of one kind
        return tuple(item if isinstance(item, str) else tuple(item) for item in self.prompt)

    @model_validator(mode="after")
    def _echo_needs_text(self) -> Self:
        if self.echo and not all(isinstance(prompt, str) for prompt in self.prompts):
            raise PydanticCustomError("unsupported_parameter", "", {"param": "echo"})
        return self
