"""Messages of a conversation, as OpenAI's clients write them, and in which order they may come."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from backend.server.fields import Strict, one_of, only


class TextPart(Strict):
    """A content part; text is the only modality there is."""

    type: Literal["text"]
    text: str


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
        """Return the content; parts are set apart by line ends."""
        return _text(self.content)


class ToolMessage(Message):
    """What a function returned."""

    tool_call_id: str


class CalledFunction(Strict):
    """``arguments`` is JSON text; a model may have left it unfinished."""

    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """Return what chat templates read: arguments as an object, if that is what they are."""
        try:
            arguments = orjson.loads(self.arguments or "{}")
        except ValueError:
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


class ToolCall(Strict):
    """A call that a model made."""

    id: str
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return what chat templates read."""
        return {"id": self.id, "type": self.type, "function": self.function.for_template()}


class AssistantMessage(Strict):
    """What a model answered earlier; clients send such messages back as they got them."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    function_call: Annotated[Any, only()] = None

    def text(self) -> str:
        """Return the content, empty when there was none."""
        return "" if self.content is None else _text(self.content)


def _text(content: str | list[TextPart]) -> str:
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
                raise _disorder(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceding message with 'tool_calls'.",
                    index,
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
        raise _disorder(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(missing),
            index,
        )


def _disorder(problem: str, index: int) -> PydanticCustomError:
    context = {"problem": problem, "param": f"messages.[{index}].role"}
    return PydanticCustomError("disorder", "{problem}", context)
