"""A conversation that grows: its items in order, within bounds. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from backend.server.protocol.errors import ApiError, invalid
from backend.server.protocol.messages import text_of
from backend.server.protocol.realtime import (
    ItemReference,
    RealtimeCall,
    RealtimeItem,
    RealtimeMessage,
    RealtimeOutput,
    UnknownRealtimeItem,
)

ROOT = "root"
"""As ``previous_item_id``: before all others."""

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Item:
    """One item, as it is told to clients and as the prompt has it."""

    id: str
    content: RealtimeItem
    status: Status = "completed"

    @property
    def size(self) -> int:
        """Characters that are kept of it, its id apart."""
        match self.content:
            case RealtimeMessage(content=content):
                return len(text_of(content))
            case RealtimeCall(call_id=call_id, name=name, arguments=text):
                return len(call_id) + len(name) + len(text)
            case RealtimeOutput(call_id=call_id, output=text):
                return len(call_id) + len(text)

    def body(self) -> dict[str, Any]:
        """Return it as clients read it."""
        fields = self.content.model_dump(exclude_none=True, exclude={"id", "namespace"})
        return {"id": self.id, "object": "realtime.item", "status": self.status, **fields}


class Conversation:
    """The items of one session."""

    def __init__(self, *, most_items: int, most_characters: int) -> None:
        """Refuse what goes beyond the bounds; the model's own answers never are."""
        self._most = most_items, most_characters
        self._items: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def get(self, item_id: str) -> Item:
        """Return the item with that id. Raises ApiError (404)."""
        return self._items[self._place(item_id, "item_id")]

    def check(self, item: Item) -> None:
        """Raise ApiError where the item cannot be added."""
        most_items, most_characters = self._most
        if len(self._items) >= most_items:
            message = (
                f"The conversation has {most_items} items, the most that are kept. Delete some."
            )
            raise ApiError(400, message, param="item", code="conversation_too_long")
        if sum(each.size for each in self._items) + item.size > most_characters:
            message = (
                f"The conversation would have more than {most_characters} characters. "
                "Delete some of its items."
            )
            raise ApiError(400, message, param="item", code="conversation_too_long")
        if any(each.id == item.id for each in self._items):
            raise invalid(f"The conversation has an item '{item.id}' already.", "item.id")
        if isinstance(item.content, RealtimeOutput):
            check_called(item.content, [each.content for each in self._items], "item.call_id")

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item, behind all others unless ``after`` says one; return what is before it.

        Raises ApiError (404) where there is no such item.
        """
        if after == ROOT:
            place = 0
        elif after is None:
            place = len(self._items)
        else:
            place = self._place(after, "previous_item_id") + 1
        self._items.insert(place, item)
        return self._items[place - 1].id if place else None

    def replace(self, item: Item) -> None:
        """Put an item in the place of one with its id, if that is still there."""
        self._items = [item if each.id == item.id else each for each in self._items]

    def delete(self, item_id: str) -> None:
        """Forget the item with that id. Raises ApiError (404)."""
        del self._items[self._place(item_id, "item_id")]

    def resolve(
        self, given: Sequence[RealtimeItem | ItemReference | UnknownRealtimeItem]
    ) -> list[RealtimeItem]:
        """Return what is named instead of the conversation. Raises ApiError."""
        found: list[RealtimeItem] = []
        for item in given:
            if isinstance(item, UnknownRealtimeItem):
                raise TypeError("its type is never valid")
            content = self.get(item.id).content if isinstance(item, ItemReference) else item
            if isinstance(content, RealtimeOutput):
                check_called(content, found, "response.input")
            found.append(content)
        return found

    def _place(self, item_id: str, param: str) -> int:
        for place, item in enumerate(self._items):
            if item.id == item_id:
                return place
        message = f"The conversation has no item '{item_id[:64]}'."
        raise ApiError(404, message, param=param, code="item_not_found")


def check_called(output: RealtimeOutput, before: Sequence[RealtimeItem], param: str) -> None:
    """Raise ApiError where no call stands before what it returned."""
    called = (each.call_id for each in before if isinstance(each, RealtimeCall))
    if output.call_id not in called:
        message = f"No tool call found for function call output with call_id {output.call_id[:64]}."
        raise invalid(message, param)
