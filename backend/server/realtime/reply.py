"""One response as events: text as it comes, then everything once more when it is done. Pure.

The Responses API's order of events, with the realtime API's names, and items that also join the
conversation. What a model thinks before it answers is not told: there are no events for it.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from backend.server.protocol.errors import ApiError
from backend.server.protocol.realtime import RealtimeCall, RealtimeMessage
from backend.server.protocol.responses import TextItemPart
from backend.server.realtime.conversation import Conversation, Item, Status
from backend.server.replies import Object, Usage
from backend.server.tool_parsers import AnswerFormat
from backend.server.tool_parsers.streaming_json import CallArguments, CallStart, Content, Event

End = Literal["completed", "incomplete", "cancelled", "failed"]

_REASONS = {"incomplete": "max_output_tokens", "cancelled": "client_cancelled"}


def new_id(prefix: str) -> str:
    """Return an id that nothing else has."""
    return prefix + uuid.uuid4().hex[:24]


class RealtimeReply:
    """Takes an answer as it comes, and returns events."""

    def __init__(
        self, described: Object, form: AnswerFormat, conversation: Conversation | None
    ) -> None:
        """Begin with ``described``, the response's fields that are known from the start.

        ``conversation`` is what its items join, None for none.
        """
        self.id: str = described["id"]
        self._described = described
        self._parser = form.parser(eager=True)
        self._conversation = conversation
        self._output: list[Object] = []
        self._item: Item | None = None
        self._texts: list[str] = []

    def begin(self) -> Object:
        return {"type": "response.created", "response": self._response("in_progress", None)}

    def push(self, text: str) -> list[Object]:
        pieces = [Content(text)] if self._parser is None else self._parser.push(text)
        return list(self._written(pieces))

    def end(self, status: End, usage: Usage, error: ApiError | None = None) -> list[Object]:
        """Return the last events; ``error`` is why it has failed."""
        events: list[Object] = []
        whole = status in {"completed", "incomplete"}
        if whole:
            events += self._written([] if self._parser is None else self._parser.finish())
        if whole and self._item is None and not self._output:
            events += self._begin_message()
        events += self._end_item("completed" if status == "completed" else "incomplete")
        response = self._response(status, usage)
        details: Object = {"type": status}
        if (reason := _REASONS.get(status)) is not None:
            details["reason"] = reason
        if error is not None:
            details["error"] = {"type": error.kind, "code": error.code, "message": error.message}
        response["status_details"] = None if status == "completed" else details
        return [*events, {"type": "response.done", "response": response}]

    def _response(self, status: str, usage: Usage | None) -> Object:
        return {
            **self._described,
            "object": "realtime.response",
            "status": status,
            "status_details": None,
            "output": [*self._output],
            "usage": None if usage is None else usage_body(usage),
        }

    def _written(self, pieces: Sequence[Event]) -> Iterator[Object]:
        for piece in pieces:
            match piece:
                case Content(text) if text:
                    if self._item is None or not isinstance(self._item.content, RealtimeMessage):
                        yield from self._end_item("completed")
                        yield from self._begin_message()
                    yield self._delta("response.output_text.delta", text)
                case CallStart(_, name):
                    yield from self._end_item("completed")
                    call = RealtimeCall(
                        type="function_call", call_id=new_id("call_"), name=name, arguments=""
                    )
                    yield from self._begin_item(call)
                case CallArguments(_, text):
                    yield self._delta("response.function_call_arguments.delta", text)

    def _delta(self, kind: str, text: str) -> Object:
        self._texts.append(text)
        return {"type": kind, **self._where(), "delta": text}

    def _where(self) -> Object:
        if self._item is None:
            raise RuntimeError("there is no item yet")
        content = self._item.content
        where = {**self._place(), "item_id": self._item.id}
        if isinstance(content, RealtimeCall):
            return {**where, "call_id": content.call_id}
        return {**where, "content_index": 0}

    def _place(self) -> Object:
        return {"response_id": self.id, "output_index": len(self._output)}

    def _begin_message(self) -> Iterator[Object]:
        yield from self._begin_item(_message(()))
        part = {"type": "text", "text": ""}
        yield {"type": "response.content_part.added", **self._where(), "part": part}

    def _begin_item(self, content: RealtimeMessage | RealtimeCall) -> Iterator[Object]:
        self._item, self._texts = Item(new_id("item_"), content, "in_progress"), []
        body = self._item.body()
        yield {"type": "response.output_item.added", **self._place(), "item": body}
        if self._conversation is not None:
            before = self._conversation.add(self._item)
            yield {"type": "conversation.item.added", "previous_item_id": before, "item": body}

    def _end_item(self, status: Status) -> Iterator[Object]:
        item = self._item
        if item is None:
            return
        text = "".join(self._texts)
        content: RealtimeMessage | RealtimeCall
        if isinstance(item.content, RealtimeCall):
            content = item.content.model_copy(update={"arguments": text})
            whole = {"name": content.name, "arguments": text}
            kind = "response.function_call_arguments.done"
            yield {"type": kind, **self._where(), **whole}
        else:
            content = _message((text,))
            yield {"type": "response.output_text.done", **self._where(), "text": text}
            part = {"type": "text", "text": text}
            yield {"type": "response.content_part.done", **self._where(), "part": part}
        done = Item(item.id, content, status)
        if self._conversation is not None:
            self._conversation.replace(done)
            yield {"type": "conversation.item.done", "item": done.body()}
        yield {"type": "response.output_item.done", **self._place(), "item": done.body()}
        self._output.append(done.body())
        self._item = None


def _message(texts: Sequence[str]) -> RealtimeMessage:
    parts = [TextItemPart(type="output_text", text=text) for text in texts]
    return RealtimeMessage.model_construct(type="message", role="assistant", content=parts)


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return tokens as the realtime API counts them: all of them are text."""
    none = {"audio_tokens": 0, "image_tokens": 0}
    cached = usage.cached_tokens
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, **none},
            **none,
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }
