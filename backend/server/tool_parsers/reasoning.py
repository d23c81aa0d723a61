"""A model's reasoning, which it writes between ``<think>`` and ``</think>`` before its answer.

Law: events depend on the text alone, never on where it was cut into pieces. White space around the
reasoning, and before the answer, belongs to neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from backend.scheduler.request import ReasoningSpan
from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.streaming_json import Content, Event, Reasoning, ToolCallParser

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"
TAGS = (OPEN_TAG, CLOSE_TAG)


class PromptEnd(Enum):
    """What a rendered conversation leaves to the model."""

    OPEN = auto()
    """The reasoning has begun: the template wrote the opening tag."""
    CLOSED = auto()
    """There is to be none: the template wrote both tags."""
    PLAIN = auto()


def prompt_end(text: str, continued: int) -> PromptEnd:
    """Return how ``text`` ends; its last ``continued`` characters are a message to be continued."""
    end = text.rstrip()
    if not continued:
        if end.endswith(OPEN_TAG):
            return PromptEnd.OPEN
        return PromptEnd.CLOSED if end.endswith(CLOSE_TAG) else PromptEnd.PLAIN
    # A template may have written the tag before the message, and white space between.
    before = text[: len(text) - continued].rstrip()
    begins = max(len(before) - len(OPEN_TAG), 0)
    opened = text.rfind(OPEN_TAG, begins)
    return PromptEnd.OPEN if opened > text.rfind(CLOSE_TAG, begins) else PromptEnd.CLOSED


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one family of models reasons.

    ``always``: what the model writes is reasoning up to the closing tag, even where neither the
    template nor the model wrote the opening one.
    """

    always: bool

    def span(self, end: PromptEnd) -> ReasoningSpan:
        """Return where the reasoning stands in an answer to a prompt that ends so."""
        begun = end is PromptEnd.OPEN or (self.always and end is not PromptEnd.CLOSED)
        return ReasoningSpan(*TAGS, begun=begun)

    def parser(self, end: PromptEnd, inner: ToolCallParser | None) -> "ReasoningParser":
        """Return fresh state for one choice; ``inner`` reads what follows the reasoning."""
        return ReasoningParser(inner, begun=self.span(end).begun)


FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(always=True),
    "qwen3": ReasoningFormat(always=False),
}
# The first template of DeepSeek's R1 leaves the opening tag to the model, which often forgets it.
_DEEPSEEK = "<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}>"


def format_of(template: str) -> ReasoningFormat | None:
    """Return the format of a chat template, None if it knows nothing of reasoning."""
    if CLOSE_TAG not in template:
        return None
    return FORMATS["deepseek_r1" if _DEEPSEEK in template else "qwen3"]


class _Stage(Enum):
    BEGINNING = auto()
    REASONING = auto()
    AFTER = auto()
    """Behind the closing tag, where only white space has come."""
    ANSWER = auto()


class ReasoningParser:
    """State of one choice's text. A ``ToolCallParser`` that also finds reasoning."""

    def __init__(self, inner: ToolCallParser | None, *, begun: bool) -> None:
        """``begun``: what does not begin with a tag is reasoning."""
        self.answer_at = 0
        """How many characters came before the answer; final once the answer has begun."""
        self._inner = inner
        self._begun = begun
        self._stage = _Stage.BEGINNING
        self._held = ""
        self._begun_text = False

    def push(self, text: str) -> list[Event]:
        self._held += text
        return self._read(whole=False)

    def finish(self) -> list[Event]:
        events = self._read(whole=True)
        return events if self._inner is None else [*events, *self._inner.finish()]

    def _read(self, *, whole: bool) -> list[Event]:
        events: list[Event] = []
        if self._stage is _Stage.BEGINNING:
            self._begin(whole=whole)
        if self._stage is _Stage.REASONING and (text := self._reasoning(whole=whole)):
            events.append(Reasoning(text))
        if self._stage is _Stage.AFTER:
            self._drop(len(self._held) - len(self._held.lstrip()))
            if self._held:
                self._stage = _Stage.ANSWER
        if self._stage is _Stage.ANSWER and self._held:
            text, self._held = self._held, ""
            events += [Content(text)] if self._inner is None else self._inner.push(text)
        return events

    def _begin(self, *, whole: bool) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN_TAG):
            self._drop(len(self._held) - len(text) + len(OPEN_TAG))
            self._stage = _Stage.REASONING
        elif whole or not OPEN_TAG.startswith(text):
            self._stage = _Stage.REASONING if self._begun else _Stage.ANSWER

    def _reasoning(self, *, whole: bool) -> str:
        """Take the reasoning that is certain; white space waits for what comes after it."""
        end = self._held.find(CLOSE_TAG)
        known = end if end >= 0 else len(self._held)
        if end < 0 and not whole:
            known -= longest_open_prefix(self._held, CLOSE_TAG)
        text = self._held[:known].rstrip()
        if end >= 0:
            self._drop(end + len(CLOSE_TAG))
            self._stage = _Stage.AFTER
        else:
            self._drop(len(self._held) if whole else len(text))
        if not self._begun_text:
            text = text.lstrip()
            self._begun_text = bool(text)
        return text

    def _drop(self, characters: int) -> None:
        self.answer_at += characters
        self._held = self._held[characters:]
