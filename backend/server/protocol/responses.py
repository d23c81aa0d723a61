"""POST /v1/responses: its request, whose items are chat's messages under other names.

The server stores nothing, so a reference to something stored is refused (``only``). What a model
answered in one turn is several items here, and one message to a chat template.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.protocol import Closed, Strict, combination, one_of, only, worded
from backend.server.protocol.generation import GenerationFields, NamedSchema, ResponseFormat
from backend.server.protocol.messages import (
    MAX_TOOLS,
    AnyMessage,
    AssistantMessage,
    CalledFunction,
    Effort,
    Function,
    FunctionName,
    Message,
    ModeOr,
    Name,
    OfFunction,
    Part,
    TemplateVariables,
    ToolCall,
    ToolMessage,
    check_choice,
    text_of,
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


class TextItemPart(Part):
    """Text of the client's or of the model's."""

    type: Literal["input_text", "output_text"]


ItemContent = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextItemPart], Tag("<parts>")],
    one_of("one of a string or an array of objects", text=str, parts=list),
]


class MessageItem(Strict):
    """A message; the model's own may be sent back as they came."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent


class FunctionCallItem(Strict):
    """A call that a model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str
    namespace: Annotated[Any, only("")] = None


class FunctionOutputItem(Strict):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: ItemContent


class ReasoningItem(Strict):
    """What a model thought before it answered or called; what is encrypted is left out."""

    type: Literal["reasoning"]
    content: Any = None

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else ()
        texts = (part.get("text") for part in parts if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))


_Kind = Literal["message", "function_call", "function_call_output", "reasoning"]


class UnknownItem(Strict):
    """Refused: its type names what is not supported."""

    type: _Kind


def _item_tag(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else "message"
    return f"<{kind}>" if kind in get_args(_Kind) else "<unknown>"


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[UnknownItem, Tag("<unknown>")],
    Discriminator(_item_tag),
]

Input = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag("<items>")],
    one_of("one of a string or an array of objects", text=str, items=list),
]


def check_calls(items: Sequence[Item]) -> None:
    """Raise where calls and what functions returned do not belong together, or nothing is asked."""
    if all(isinstance(item, ReasoningItem) for item in items):
        raise worded("'input' has nothing to be answered.", "input")
    missing: dict[str, None] = {}
    called: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
            missing[item.call_id] = None
        elif isinstance(item, FunctionOutputItem):
            if item.call_id not in called:
                raise worded(
                    f"No tool call found for function call output with call_id {item.call_id}.",
                    "input",
                )
            missing.pop(item.call_id, None)
    for call_id in missing:
        raise worded(f"No tool output found for function call {call_id}.", "input")


@dataclass(slots=True)
class _Turn:
    """What the model answered at one go: text, calls after it, and what it thought before."""

    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def end(self) -> Iterator[AnyMessage]:
        """Yield its message, if there is one; thoughts alone wait for the next."""
        if self.texts or self.calls:
            yield AssistantMessage(
                role="assistant",
                content="".join(self.texts),
                tool_calls=[*self.calls] or None,
                reasoning_content="\n".join(self.thoughts) or None,
            )
            self.thoughts.clear()
        self.texts.clear()
        self.calls.clear()


def messages_of(given: str | Sequence[Item]) -> Iterator[AnyMessage]:
    """Yield the messages that the items amount to."""
    if isinstance(given, str):
        yield Message(role="user", content=given)
        return
    turn = _Turn()
    for item in given:
        match item:
            case FunctionCallItem():
                function = CalledFunction(name=item.name, arguments=item.arguments)
                turn.calls.append(ToolCall(id=item.call_id, type="function", function=function))
            case ReasoningItem():
                if not turn.calls:
                    yield from turn.end()
                turn.thoughts += filter(None, [item.text])
            case MessageItem(role="assistant"):
                if not turn.calls:
                    yield from turn.end()
                turn.texts.append(text_of(item.content))
            case MessageItem():
                yield from turn.end()
                turn.thoughts.clear()
                yield Message(role=item.role, content=text_of(item.content))
            case FunctionOutputItem():
                yield from turn.end()
                output = text_of(item.output)
                yield ToolMessage(role="tool", content=output, tool_call_id=item.call_id)
    yield from turn.end()


def _moved(place: str) -> AfterValidator:
    """Refuse what other endpoints call a parameter that is here at ``place``."""

    def check(value: Any) -> Any:
        if value is None:
            return value
        message = (
            f"Unsupported parameter. In the Responses API, this parameter has moved to '{place}'."
        )
        raise worded(message, code="unsupported_parameter")

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
            problem = "'schema' is only allowed where the type is 'json_schema' or 'json_object'."
            raise combination(problem, "text.format.schema")
        return self

    def for_chat(self) -> ResponseFormat:
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
    """How much is thought, as far as the chat template knows it."""

    effort: Effort | None = None


class FunctionTool(Function, OfFunction):
    """A function that may be called."""

    defer_loading: Annotated[Any, only(False)] = None
    allowed_callers: Annotated[Any, only([], ["direct"])] = None


class NamedFunction(FunctionName, OfFunction):
    """This function must be called."""


class ObfuscationOptions(Closed):
    """Padding against eavesdroppers, of which there is none."""

    include_obfuscation: bool | None = None


class ResponsesRequest(GenerationFields, TemplateVariables):
    """POST /v1/responses."""

    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ModeOr[NamedFunction] | None = None
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
            problem = f"is only allowed when 'include' has '{LOGPROBS}'"
            raise combination(f"The 'top_logprobs' parameter {problem}.", "top_logprobs")
        check_choice(self.tools or (), self.tool_choice)
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the likeliest to report beside the chosen token; None: not even that."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def chat_messages(self) -> list[AnyMessage]:
        """The conversation as chat has it."""
        messages = list(messages_of(self.input))
        if self.instructions:
            messages.insert(0, Message(role="developer", content=self.instructions))
        return messages

    @property
    def effort(self) -> Effort | None:
        """What chat calls ``reasoning_effort``."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def chat_format(self) -> ResponseFormat | None:
        """The form of the answer as chat has it."""
        wanted = None if self.text is None else self.text.format
        return None if wanted is None else wanted.for_chat()
