"""Items of a conversation, as clients of the Responses API write them, and the messages they are.

What a model answered in one turn is several items here, and one message to a chat template.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from backend.server.fields import Strict, one_of, only
from backend.server.message_fields import (
    AnyMessage,
    AssistantMessage,
    CalledFunction,
    Message,
    TextPart,
    ToolCall,
    ToolMessage,
)


class TextItemPart(Strict):
    """A content part; text is the only modality there is."""

    type: Literal["input_text", "output_text"]
    text: str


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
    """What another model thought, which this one is not told."""

    type: Literal["reasoning"]


class UnknownItem(Strict):
    """Refused: its type names what is not supported."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"]


_TAGS = {
    "message": "<message>",
    "function_call": "<call>",
    "function_call_output": "<output>",
    "reasoning": "<reasoning>",
}


def _item_tag(value: Any) -> str:
    if not isinstance(value, dict):
        return "<message>"
    kind = value.get("type", "message")
    return _TAGS.get(kind, "<unknown>") if isinstance(kind, str) else "<unknown>"


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<call>")]
    | Annotated[FunctionOutputItem, Tag("<output>")]
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
        raise _disorder("'input' has nothing to be answered.")
    missing: dict[str, None] = {}
    called: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
            missing[item.call_id] = None
        elif isinstance(item, FunctionOutputItem):
            if item.call_id not in called:
                raise _disorder(
                    f"No tool call found for function call output with call_id {item.call_id}."
                )
            missing.pop(item.call_id, None)
    for call_id in missing:
        raise _disorder(f"No tool output found for function call {call_id}.")


def _disorder(problem: str) -> PydanticCustomError:
    return PydanticCustomError("disorder", "{problem}", {"problem": problem, "param": "input"})


def messages_of(given: str | Sequence[Item]) -> Iterator[AnyMessage]:
    """Yield the messages that the items amount to."""
    if isinstance(given, str):
        yield Message(role="user", content=given)
        return
    turn = _Turn()
    for item in given:
        if isinstance(item, ReasoningItem | UnknownItem):
            continue
        if isinstance(item, FunctionCallItem):
            turn.call(item)
            continue
        if isinstance(item, MessageItem) and item.role == "assistant":
            if not turn.calls:
                yield from turn.end()
            turn.say(item)
            continue
        yield from turn.end()
        if isinstance(item, FunctionOutputItem):
            output = _content(item.output)
            yield ToolMessage(role="tool", content=output, tool_call_id=item.call_id)
        else:
            yield Message(role=item.role, content=_content(item.content))
    yield from turn.end()


class _Turn:
    """What the model answered at one go: text, and calls after it."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._texts: list[str] = []

    def say(self, item: MessageItem) -> None:
        self._texts.append(Message(role="assistant", content=_content(item.content)).text())

    def call(self, item: FunctionCallItem) -> None:
        function = CalledFunction(name=item.name, arguments=item.arguments)
        self.calls.append(ToolCall(id=item.call_id, type="function", function=function))

    def end(self) -> Iterator[AnyMessage]:
        """Yield the message, if there is one, and begin another."""
        if self._texts or self.calls:
            yield AssistantMessage(
                role="assistant", content="".join(self._texts), tool_calls=self.calls or None
            )
        self.calls, self._texts = [], []


def _content(content: str | list[TextItemPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content] or ""
