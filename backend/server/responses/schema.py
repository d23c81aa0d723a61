"""POST /v1/responses as a pydantic model, and what of it chat knows under another name.

The server keeps nothing, so whatever refers to something kept is refused (``only``). See
``backend.server.schema`` for the three kinds of fields.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Closed, Strict, combination, one_of, only
from backend.server.message_fields import AnyMessage, Message
from backend.server.responses.input_items import Input, check_calls, messages_of
from backend.server.schema import GenerationFields
from backend.server.structure_fields import NamedSchema, ResponseFormat
from backend.server.template_fields import TemplateVariables
from backend.server.tools.fields import (
    MOST_TOOLS,
    Function,
    FunctionName,
    Name,
    NamedChoice,
    Tool,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"

Included = Literal[
    "message.output_text.logprobs",
    # What there is none of is included at no cost.
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


def _moved(place: str) -> AfterValidator:
    """Refuse what other endpoints call a parameter that is here at ``place``."""

    def check(value: Any) -> Any:
        if value is None:
            return value
        raise PydanticCustomError(
            "moved",
            "Unsupported parameter. In the Responses API, this parameter has moved to '{place}'.",
            {"place": place},
        )

    return AfterValidator(check)


class TextFormat(Closed):
    """What chat calls ``response_format``, without its inner object."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> Self:
        if self.type == "json_schema":
            for field, value in (("name", self.name), ("schema", self.definition)):
                if value is None:
                    raise PydanticCustomError("missing", "", {"param": f"text.format.{field}"})
        elif self.type == "text" and self.definition is not None:
            raise combination(
                "'schema' is only allowed where the type is 'json_schema' or 'json_object'.",
                "text.format.schema",
            )
        return self

    def for_chat(self) -> ResponseFormat:
        """Return what chat is given."""
        if self.type != "json_schema":
            return ResponseFormat.model_validate({"type": self.type, "schema": self.definition})
        named = NamedSchema.model_validate(
            {"name": self.name, "schema": self.definition, "strict": self.strict}
        )
        return ResponseFormat(type="json_schema", json_schema=named)


class TextOptions(Strict):
    """How the answer is to be written."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, only("medium")] = None


class ReasoningOptions(Strict):
    """Of thoughts there are none: neither to be shortened nor to be told."""

    effort: Annotated[Any, only("none")] = None


class FunctionTool(Strict):
    """Functions are the only tools there are."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Annotated[Any, only(False)] = None
    allowed_callers: Annotated[Any, only([], ["direct"])] = None

    def for_chat(self) -> Tool:
        """Return what chat is given."""
        return Tool(
            type="function",
            function=Function(
                name=self.name,
                description=self.description,
                parameters=self.parameters,
                strict=self.strict,
            ),
        )


class NamedFunction(Strict):
    """This function must be called."""

    type: Literal["function"]
    name: str


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedFunction, Tag("<named>")],
    one_of("one of a string or an object", mode=str, named=dict),
]


class ObfuscationOptions(Closed):
    """Padding against eavesdroppers, of which there is none."""

    include_obfuscation: bool | None = None


class ResponsesRequest(GenerationFields, TemplateVariables):
    """POST /v1/responses."""

    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include: list[Included] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning: ReasoningOptions | None = None

    # Repeated in the response, and nothing else.
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    store: bool | None = None

    add_special_tokens: Annotated[Any, only(False)] = None
    stream_options: ObfuscationOptions | None = None
    n: Annotated[Any, only(1)] = None
    previous_response_id: Annotated[Any, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    background: Annotated[Any, only(False)] = None
    truncation: Annotated[Any, only("disabled")] = None
    context_management: Annotated[Any, only([])] = None
    moderation: Annotated[Any, only()] = None
    messages: Annotated[Any, _moved("input")] = None
    max_tokens: Annotated[Any, _moved("max_output_tokens")] = None
    max_completion_tokens: Annotated[Any, _moved("max_output_tokens")] = None
    response_format: Annotated[Any, _moved("text.format")] = None
    reasoning_effort: Annotated[Any, _moved("reasoning.effort")] = None
    verbosity: Annotated[Any, _moved("text.verbosity")] = None
    logprobs: Annotated[Any, _moved("include")] = None

    @model_validator(mode="after")
    def _fields_belong_together(self) -> Self:
        if not isinstance(self.input, str):
            check_calls(self.input)
        self.check_min_tokens(self.max_output_tokens)
        # 0 asks for nothing, so clients that always send it are let through.
        if self.top_logprobs and LOGPROBS not in (self.include or ()):
            raise combination(
                f"The 'top_logprobs' parameter is only allowed when 'include' has '{LOGPROBS}'.",
                "top_logprobs",
            )
        return self

    @model_validator(mode="after")
    def _choice_is_there(self) -> Self:
        if not self.tools and self.tool_choice not in {None, "none", "auto"}:
            raise combination(
                "'tool_choice' is only allowed when 'tools' are specified.", "tool_choice"
            )
        if isinstance(self.tool_choice, NamedFunction):
            name = self.tool_choice.name
            if all(tool.name != name for tool in self.tools or ()):
                raise combination(
                    f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice"
                )
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the likeliest to report beside the chosen token; None: not even that."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def num_items(self) -> int:
        """How many items the conversation has."""
        return 1 if isinstance(self.input, str) else len(self.input)

    @property
    def chat_messages(self) -> list[AnyMessage]:
        """The conversation as chat has it."""
        told = [Message(role="developer", content=self.instructions)] if self.instructions else []
        return [*told, *messages_of(self.input)]

    @property
    def chat_tools(self) -> list[Tool] | None:
        """The tools as chat has them."""
        return None if self.tools is None else [tool.for_chat() for tool in self.tools]

    @property
    def chat_tool_choice(self) -> ToolChoice | None:
        """The choice among them as chat has it."""
        if isinstance(self.tool_choice, NamedFunction):
            return NamedChoice(type="function", function=FunctionName(name=self.tool_choice.name))
        return self.tool_choice

    @property
    def chat_format(self) -> ResponseFormat | None:
        """The form of the answer as chat has it."""
        wanted = None if self.text is None else self.text.format
        return None if wanted is None else wanted.for_chat()
