"""What a model is given, as OpenAI's clients write it: messages, tools, or texts and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from backend.server.protocol import Strict, combination, one_of, only, worded

MAX_PROMPTS = 2_048
MAX_TOOLS = 128


class Part(Strict):
    """A content part; text is the only modality there is."""

    type: str
    text: str


class TextPart(Part):
    """Text as chat names it."""

    type: Literal["text"]


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Field(min_length=1), Tag("<parts>")],
    one_of("one of a string or an array of objects", text=str, parts=list),
]


class Message(Strict):
    """A message that must have content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str | None = None

    def text(self) -> str:
        return text_of(self.content)


class ToolMessage(Message):
    """What a function returned."""

    tool_call_id: str


class CalledFunction(Strict):
    """``arguments`` is JSON text; a model may have left it unfinished."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call that a model made."""

    id: str
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return what ``ChatTemplate`` reads."""
        function = {"name": self.function.name, "arguments": self.function.arguments or "{}"}
        return {"id": self.id, "type": self.type, "function": function}


class AssistantMessage(Strict):
    """What a model answered earlier; clients send such messages back as they got them."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: Annotated[Any, only()] = None

    @property
    def thought(self) -> str | None:
        """The reasoning, under DeepSeek's name or vLLM's newer one."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    def text(self) -> str:
        return "" if self.content is None else text_of(self.content)


def text_of(content: str | Sequence[Part]) -> str:
    """Return the content as one text; parts are set apart by line ends."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _message_tag(value: Any) -> str:
    role = value.get("role") if isinstance(value, dict) else None
    if role == "assistant":
        return "<answer>"
    return "<tool>" if role == "tool" else "<message>"


AnyMessage = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[AssistantMessage, Tag("<answer>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(_message_tag),
]


def check_order(messages: Sequence[AnyMessage]) -> None:
    """Raise where calls and what functions returned do not belong together."""
    missing: dict[str, None] = {}
    answerable: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in answerable:
                raise worded(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceding message with 'tool_calls'.",
                    f"messages.[{index}].role",
                )
            missing.pop(message.tool_call_id, None)
            continue
        _check_answered(missing, index)
        calls = (message.tool_calls or []) if isinstance(message, AssistantMessage) else []
        missing = dict.fromkeys(call.id for call in calls)
        answerable = set(missing)
    _check_answered(missing, len(messages) - 1)


def _check_answered(missing: dict[str, None], index: int) -> None:
    if missing:
        raise worded(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(missing),
            f"messages.[{index}].role",
        )


_RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize"),
    }
)
"""What the server says to the template, or other servers to their tokenizer."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """``variables`` are seen by the template as they are."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_TEMPLATE = TemplateOptions()


def _check_names(variables: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(_RESERVED & variables.keys()):
        raise worded(
            f"Invalid key in 'chat_template_kwargs': '{name}' is not a variable of chat templates. "
            "Leave it out, or send it as a field of the request.",
            "chat_template_kwargs",
        )
    return variables


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def variables_of(effort: Effort | None, others: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a template's variables: a client's own go before those of the ``effort``."""
    # Most templates know a switch alone, under one of two names.
    off = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return ({"reasoning_effort": effort} if effort else {}) | off | dict(others or {})


class TemplateVariables(Strict):
    """Variables for the template, such as ``enable_thinking``."""

    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_names)] | None = None


class TemplateFields(TemplateVariables):
    """The variables, and where the rendered conversation ends."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None

    @property
    def template(self) -> TemplateOptions:
        """What the chat template gets."""
        continues = self.continue_final_message is True
        return TemplateOptions(
            not continues and self.add_generation_prompt is not False,
            continues,
            variables_of(self.reasoning_effort, self.chat_template_kwargs),
        )

    @model_validator(mode="after")
    def _one_ending(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            problem = "'add_generation_prompt' and 'continue_final_message' cannot both be true."
            raise combination(problem, "continue_final_message")
        return self


Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]


class Function(Strict):
    """A function that may be called; ``strict`` wants arguments that are valid, always."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        described = {} if self.description is None else {"description": self.description}
        parameters = self.parameters or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": parameters},
        }


class OfFunction(Strict):
    """Functions are the only tools there are."""

    type: Literal["function"]


class Tool(OfFunction):
    """A tool as chat names it."""

    function: Function


class FunctionName(Strict):
    """This function must be called."""

    name: str


class NamedChoice(OfFunction):
    """The choice of a function as chat names it."""

    function: FunctionName


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
ChoiceMode = Literal["none", "auto", "required"]
NamedT = TypeVar("NamedT")
ModeOr = Annotated[
    Annotated[ChoiceMode, Tag("<mode>")] | Annotated[NamedT, Tag("<named>")],
    one_of("one of a string or an object", mode=str, named=dict),
]
"""Which function to call, as a client says it: chat and responses name one in two ways."""

ToolChoice = ChoiceMode | FunctionName | None
"""What may be called: nothing, anything, or this function."""


def check_choice(functions: Sequence[Function], choice: ToolChoice) -> None:
    """Raise where a call is demanded of a function that is not among the tools."""
    if not functions and (choice == "required" or isinstance(choice, FunctionName)):
        problem = "'tool_choice' is only allowed when 'tools' are specified."
        raise combination(problem, "tool_choice")
    if isinstance(choice, FunctionName) and choice.name not in {each.name for each in functions}:
        problem = f"Tool choice '{choice.name}' not found in 'tools' parameter."
        raise combination(problem, "tool_choice")


_PLAIN = 2**31
"""No bound on a token is below, and no vocabulary above."""


def check_tokens(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Let ``check`` judge an array of tokens only where a quick look finds something wrong.

    pydantic takes a tenth of a second for a million tokens, and a tenth of that is enough.
    """
    plain = type(given) is list and set(map(type, given)) == {int}  # bool is another type
    return given if plain and min(given) >= 0 and max(given) <= _PLAIN else check(given)


# One complaint is sent, so a long array of wrong elements needs no more than one made.
Tokens = Annotated[
    list[Annotated[int, Field(ge=0)]],
    Field(min_length=1, fail_fast=True),
    WrapValidator(check_tokens),
]


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
