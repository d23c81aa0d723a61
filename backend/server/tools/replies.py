"""Chat replies whose text is read: OpenAI's objects with reasoning and calls of functions."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backend.scheduler.request import FinishReason, TokenLogprobs
from backend.server.replies import ChatForm, FinishedChoice, Logprobs
from backend.server.tool_parsers import AnswerFormat
from backend.server.tool_parsers.streaming_json import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    ToolCallParser,
    gather,
)

REASONING = "reasoning_content"
"""DeepSeek's name, which SGLang and most clients share."""

_CALLED = "tool_calls"


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True)
class _Choice:
    """One streamed choice: its text so far, as the parser has it."""

    parser: ToolCallParser
    called: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of text that is held back."""


class ReadChatForm:
    """Implements ``ReplyForm`` around that of plain chat."""

    def __init__(
        self, chat: ChatForm, reading: AnswerFormat, new_id: Callable[[], str] = _new_id
    ) -> None:
        """``new_id`` names calls."""
        self.whole_kind = chat.whole_kind
        self.chunk_kind = chat.chunk_kind
        self._chat = chat
        self._reading = reading
        self._new_id = new_id
        self._choices: dict[int, _Choice] = {}

    def whole(self, index: int, choice: FinishedChoice) -> dict[str, Any]:
        """See ReplyForm."""
        parser = self._reading.parser(eager=self._reading.demanded)
        events = [*parser.push(choice.text), *parser.finish()]
        content, calls = gather(events)
        written = self._chat.whole(index, replace(choice, text=content))
        if reasoning := "".join(each.text for each in events if isinstance(each, Reasoning)):
            written["message"] |= {"content": content or None, REASONING: reasoning}
        if not calls:
            return written
        written["message"] |= {
            "content": content or None,
            "tool_calls": [
                {
                    "id": self._new_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ],
        }
        return written | {"finish_reason": self._reason(choice.finish_reason, called=True)}

    def opening(self, index: int, prompt: Logprobs) -> dict[str, Any] | None:
        """See ReplyForm."""
        self._choices[index] = _Choice(self._reading.parser(eager=True))
        return self._chat.opening(index, prompt)

    def text(self, index: int, text: str, logprobs: Logprobs) -> list[dict[str, Any]]:
        """See ReplyForm."""
        choice = self._choices[index]
        choice.logprobs += logprobs
        return self._chunks(index, choice, choice.parser.push(text))

    def finish(self, index: int, reason: FinishReason) -> list[dict[str, Any]]:
        """See ReplyForm."""
        choice = self._choices.pop(index)
        chunks = self._chunks(index, choice, choice.parser.finish())
        last = self._chunk(index, choice, {})
        return [*chunks, last | {"finish_reason": self._reason(reason, called=choice.called)}]

    def _chunks(self, index: int, choice: _Choice, events: Sequence[Event]) -> list[dict[str, Any]]:
        return [self._chunk(index, choice, self._delta(choice, event)) for event in events]

    def _chunk(self, index: int, choice: _Choice, delta: dict[str, Any]) -> dict[str, Any]:
        logprobs, choice.logprobs = choice.logprobs, []
        return self._chat.chunk(index, delta, logprobs)

    def _delta(self, choice: _Choice, event: Event) -> dict[str, Any]:
        match event:
            case Reasoning(text):
                return {REASONING: text}
            case Content(text):
                return {"content": text}
            case CallStart(number, name):
                choice.called = True
                call = {
                    "index": number,
                    "id": self._new_id(),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                return {"tool_calls": [call]}
            case CallArguments(number, text):
                return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}

    @staticmethod
    def _reason(reason: FinishReason, *, called: bool) -> str:
        return _CALLED if called and reason is FinishReason.STOP else reason.value
