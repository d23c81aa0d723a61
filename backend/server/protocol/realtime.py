"""GET /v1/realtime: what clients send, OpenAI's events (GA) with text alone.

Audio, images and what is stored elsewhere are refused by name; nothing is left out in silence.
"""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag

from backend.server.protocol import Closed, Strict, one_of, only
from backend.server.protocol.errors import ApiError
from backend.server.protocol.messages import MAX_TOOLS, ModeOr
from backend.server.protocol.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    MessageItem,
    NamedFunction,
    TextItemPart,
)

MAX_INPUT_ITEMS = 1_000
_ID = Annotated[str, Field(min_length=1, max_length=64)]


class RealtimeMessage(MessageItem):
    """A message; its content is always an array."""

    id: _ID | None = None
    type: Literal["message"]
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[TextItemPart], Field(min_length=1)]


class RealtimeCall(FunctionCallItem):
    """A call that a model made."""

    id: _ID | None = None


class RealtimeOutput(FunctionOutputItem):
    """What a function returned."""

    id: _ID | None = None
    output: str


class ItemReference(Strict):
    """An item of the conversation, by its id."""

    type: Literal["item_reference"]
    id: _ID


_Kind = Literal["message", "function_call", "function_call_output", "item_reference"]


class UnknownRealtimeItem(Strict):
    """Refused: its type names what is not supported."""

    type: Literal["message", "function_call", "function_call_output"]


def _item_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if kind in get_args(_Kind) else "<unknown>"


RealtimeItem = RealtimeMessage | RealtimeCall | RealtimeOutput
"""What a conversation is made of."""

_Item = Annotated[
    Annotated[RealtimeMessage, Tag("<message>")]
    | Annotated[RealtimeCall, Tag("<function_call>")]
    | Annotated[RealtimeOutput, Tag("<function_call_output>")]
    | Annotated[UnknownRealtimeItem, Tag("<unknown>")],
    Discriminator(lambda value: _item_tag(value).replace("<item_reference>", "<unknown>")),
]
_ItemOrReference = Annotated[
    Annotated[RealtimeMessage, Tag("<message>")]
    | Annotated[RealtimeCall, Tag("<function_call>")]
    | Annotated[RealtimeOutput, Tag("<function_call_output>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[UnknownRealtimeItem, Tag("<unknown>")],
    Discriminator(_item_tag),
]
_MostTokens = Annotated[
    Annotated[int, Field(ge=1), Tag("<number>")] | Annotated[Literal["inf"], Tag("<word>")],
    one_of('an integer or "inf"', number=int, word=str),
]


class ResponseFields(Closed):
    """How to answer: a session says it for all responses, and each response for itself."""

    instructions: str | None = None
    max_output_tokens: _MostTokens | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ModeOr[NamedFunction] | None = None
    parallel_tool_calls: bool | None = None
    # Not OpenAI's any more, but the engine's other endpoints have them.
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None

    output_modalities: Annotated[Any, only(["text"])] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only({})] = None
    prompt: Annotated[Any, only()] = None
    reasoning: Annotated[Any, only({}, {"effort": "none"})] = None

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer, None for what the context has room for."""
        return None if isinstance(self.max_output_tokens, str) else self.max_output_tokens

    def updated(self, other: "ResponseFields") -> Self:
        """Return these fields with those that ``other`` was given."""
        given = other.model_fields_set & type(self).model_fields.keys()
        return self.model_copy(update={name: getattr(other, name) for name in given})


class Session(ResponseFields):
    """What holds for a whole session."""

    type: Literal["realtime"]
    model: str | None = None
    truncation: Annotated[Any, only("disabled")] = None
    tracing: Annotated[Any, only()] = None
    include: Annotated[Any, only([])] = None


class Response(ResponseFields):
    """What one response is asked for; ``input`` takes the conversation's place."""

    conversation: Literal["auto", "none"] | None = None
    metadata: dict[str, str] | None = None
    input: Annotated[list[_ItemOrReference], Field(max_length=MAX_INPUT_ITEMS)] | None = None


class Event(Strict):
    """What every event may carry: an id of the client's, repeated in errors."""

    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(Event):
    """Change what is given of the session."""

    session: Session


class ItemCreate(Event):
    """Add an item to the conversation."""

    item: _Item
    previous_item_id: str | None = None


class ItemRetrieve(Event):
    """Tell one item."""

    item_id: str


class ItemDelete(Event):
    """Forget one item."""

    item_id: str


class ResponseCreate(Event):
    """Answer the conversation."""

    response: Response | None = None


class ResponseCancel(Event):
    """Stop the response that is being generated."""

    response_id: str | None = None


EVENTS: dict[str, type[Event]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}
_AUDIO = ("input_audio_buffer.", "output_audio_buffer.", "conversation.item.truncate")


def schema_of(event: dict[str, Any]) -> type[Event]:
    """Return the schema that an event's type names. Raises ApiError (400)."""
    kind = event.get("type")
    if not isinstance(kind, str):
        raise ApiError(400, "Missing required parameter: 'type'.", param="type")
    if (schema := EVENTS.get(kind)) is not None:
        return schema
    if kind.startswith(_AUDIO):
        message = f"'{kind}' is about audio, which this server does not have. Send text."
        raise ApiError(400, message, param="type", code="unsupported_event")
    known = ", ".join(f"'{name}'" for name in EVENTS)
    message = f"Invalid value: '{kind[:100]}'. Supported values are: {known}."
    raise ApiError(400, message, param="type", code="invalid_value")
