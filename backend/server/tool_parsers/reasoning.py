"""A model's reasoning, which it writes before its answer, as its chat template has it.

Most models write it between two tags. gpt-oss writes messages, each in a channel.

Law: events depend on the text alone, never on where it was cut into pieces. White space around the
reasoning, and before the answer, belongs to neither.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from backend.scheduler.request import ReasoningSpan
from backend.scheduler.stopping import end_of_first, open_prefix
from backend.server.tool_parsers.streaming_json import (
    Content,
    Event,
    Reasoning,
    Tag,
    ToolCallParser,
    joined,
)


class PromptEnd(Enum):
    """What a rendered conversation leaves to the model."""

    OPEN = auto()
    """The reasoning has begun: the template wrote the opening tag."""
    CLOSED = auto()
    """There is to be none: the template wrote both tags."""
    PLAIN = auto()


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one family of models reasons: from one of the ``opening`` tags to a ``closing`` one.

    ``always``: what the model writes is reasoning up to the closing tag, even where neither the
    template nor the model wrote the opening one. The answer may stand in the two tags ``around``.
    """

    opening: tuple[str, ...] = ("<think>",)
    closing: tuple[str, ...] = ("</think>",)
    always: bool = False
    around: tuple[str, ...] = ()
    answer_begin: str = ""
    """What an answer begins with, where a grammar holds."""

    @property
    def markup(self) -> tuple[str, ...]:
        """The tags; a tokenizer may have special tokens for them."""
        return (*self.opening, *self.closing, *self.around)

    def prompt_end(self, text: str, continued: int) -> PromptEnd:
        """Return how ``text`` ends; a message to be continued is its end of ``continued``."""
        end = text.rstrip()
        if not continued:
            if end.endswith(self.opening):
                return PromptEnd.OPEN
            return PromptEnd.CLOSED if end.endswith(self.closing) else PromptEnd.PLAIN
        # A template may have written the tag before the message, and white space between.
        before = text[: len(text) - continued].rstrip()
        begins = max(len(before) - max(map(len, self.opening)), 0)
        opened, closed = (
            max(text.rfind(tag, begins) for tag in tags) for tags in (self.opening, self.closing)
        )
        return PromptEnd.OPEN if opened > closed else PromptEnd.CLOSED

    def span(self, end: PromptEnd) -> ReasoningSpan:
        """Return where the reasoning stands in an answer to a prompt that ends so."""
        return ReasoningSpan(self.opening, (self.closing,), begun=self._begun(end))

    def parser(self, end: PromptEnd, inner: ToolCallParser | None) -> "ReasoningParser":
        """Return fresh state for one choice; ``inner`` reads what follows the reasoning."""
        return ReasoningParser(self, inner, begun=self._begun(end))

    def before_grammar(self, end: PromptEnd, *, is_answer: bool) -> tuple[list[Tag], str]:
        """Return what may precede the text of a grammar, and a text of that.

        ``is_answer``: the grammar is that of an answer, and not of calls.
        """
        del is_answer
        if end is PromptEnd.CLOSED:
            return [], ""
        tags, passing = self._reasoning(end, {"type": "regex", "pattern": r"\n{0,2}"})
        return tags, passing + "\n\n"

    def _reasoning(self, end: PromptEnd, behind: Tag) -> tuple[list[Tag], str]:
        begun = self._begun(end)
        opening = "" if begun else self.opening[0]
        text = {"type": "tag", "begin": opening, "content": {"type": "any_text"}}
        tags: list[Tag] = [text | {"end": list(self.closing)}, behind]
        if not begun:
            tags = [{"type": "optional", "content": {"type": "sequence", "elements": tags}}]
        return tags, opening + self.closing[0]

    def _begun(self, end: PromptEnd) -> bool:
        return end is PromptEnd.OPEN or (self.always and end is not PromptEnd.CLOSED)


class HarmonyFormat(ReasoningFormat):
    """gpt-oss's messages: reasoning in the channel ``analysis``, the answer in ``final``.

    A message of the channel ``commentary`` is a call where it has a recipient, else an answer too.
    """

    __slots__ = ()

    @property
    def markup(self) -> tuple[str, ...]:
        return (*_MARKS, "<|constrain|>")

    def span(self, end: PromptEnd) -> ReasoningSpan:
        channels = ("<|channel|>final", "<|channel|>commentary")
        begun = end is PromptEnd.OPEN
        return ReasoningSpan(("<|channel|>",), (channels, ("<|message|>",)), begun=begun)

    def prompt_end(self, text: str, continued: int) -> PromptEnd:
        if not continued and text.rstrip().endswith(_FINAL):
            return PromptEnd.CLOSED
        return super().prompt_end(text, continued)

    def parser(self, end: PromptEnd, inner: ToolCallParser | None) -> "ReasoningParser":
        return HarmonyParser(self, inner, begun=self._begun(end))

    def before_grammar(self, end: PromptEnd, *, is_answer: bool) -> tuple[list[Tag], str]:
        if end is PromptEnd.CLOSED:
            return [], ""
        tags, passing = self._reasoning(end, {"type": "const_string", "value": _ASSISTANT})
        if not is_answer:
            return tags, passing + _ASSISTANT
        return [*tags, {"type": "const_string", "value": _FINAL}], passing + _ASSISTANT + _FINAL


_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ASSISTANT = "<|start|>assistant"
_TO = " to=functions."
_FINAL = "<|channel|>final<|message|>"
_HARMONY = HarmonyFormat(("<|channel|>analysis<|message|>",), ("<|end|>",), answer_begin=_FINAL)

FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(always=True),
    "qwen3": ReasoningFormat(),
    "hunyuan": ReasoningFormat(around=("<answer>", "</answer>")),
    "granite3.3": ReasoningFormat(around=("<response>", "</response>")),
    "granite3.2": ReasoningFormat(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "seed": ReasoningFormat(("<seed:think>",), ("</seed:think>",)),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",)),
    "command": ReasoningFormat(("<|START_THINKING|>",), ("<|END_THINKING|>",)),
    "harmony": _HARMONY,
}
# The first template of DeepSeek's R1 leaves the opening tag to the model, which often forgets it.
_DEEPSEEK = "<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}>"


_THINK = "</think>"
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "harmony": ("<|channel|>analysis",),
    "mistral": ("[/THINK]",),
    "seed": ("</seed:think>",),
    "command": ("<|END_THINKING|>",),
    "granite3.2": ("Here is my thought process:",),
    "deepseek_r1": (_THINK, _DEEPSEEK),
    "hunyuan": (_THINK, "<answer>"),
    "granite3.3": (_THINK, "<response></response>"),
    "qwen3": (_THINK,),
}
"""By what a template is known, the first that fits."""


def format_of(template: str) -> ReasoningFormat | None:
    """Return the format of a chat template, None if it knows nothing of reasoning."""
    for name, signs in _SIGNS.items():
        if all(sign in template for sign in signs):
            return FORMATS[name]
    return None


class _Stage(Enum):
    BEGINNING = auto()
    REASONING = auto()
    AFTER = auto()
    """Behind the closing tag, where only white space has come."""
    ANSWER = auto()


class ReasoningParser:
    """State of one choice's text. A ``ToolCallParser`` that also finds reasoning."""

    def __init__(self, form: ReasoningFormat, inner: ToolCallParser | None, *, begun: bool) -> None:
        """``begun``: what does not begin with a tag is reasoning."""
        self.answer_at = 0
        """How many characters came before the answer; final once the answer has begun."""
        self._form = form
        self._inner = inner
        self._begun = begun
        self._stage = _Stage.BEGINNING
        self._held = ""
        self._begun_text = False
        self._around = form.around
        self._around_end = ""
        """The tag that may end the answer."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends within the reasoning."""
        return self._stage is _Stage.REASONING

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
            self._begin_answer(whole=whole)
        if self._stage is _Stage.ANSWER and (text := self._answer(whole=whole)):
            events += self._say(text)
        return events

    def _say(self, text: str) -> list[Event]:
        return [Content(text)] if self._inner is None else self._inner.push(text)

    def _begin(self, *, whole: bool) -> None:
        text = self._held.lstrip()
        opening = self._form.opening
        if text.startswith(opening):
            self._drop(len(self._held) - len(text) + end_of_first(text, opening))
            self._stage = _Stage.REASONING
        elif whole or not any(tag.startswith(text) for tag in opening):
            after = _Stage.AFTER if self._around else _Stage.ANSWER
            self._stage = _Stage.REASONING if self._begun else after

    def _reasoning(self, *, whole: bool) -> str:
        """Take the reasoning that is certain; white space waits for what comes after it."""
        closing = self._form.closing
        if (end := end_of_first(self._held, closing)) >= 0:
            tag = next(tag for tag in closing if self._held.endswith(tag, 0, end))
            text = self._held[: end - len(tag)].rstrip()
            self._drop(end)
            self._stage = _Stage.AFTER
        else:
            known = len(self._held) - (0 if whole else open_prefix(self._held, closing))
            text = self._held[:known].rstrip()
            self._drop(len(self._held) if whole else len(text))
        if not self._begun_text:
            text = text.lstrip()
            self._begun_text = bool(text)
        return text

    def _begin_answer(self, *, whole: bool) -> None:
        self._drop(len(self._held) - len(self._held.lstrip()))
        opening = self._around[0] if self._around else ""
        if opening and self._held.startswith(opening):
            self._drop(len(opening))
            self._around_end, self._around = self._around[1], ()
            self._begin_answer(whole=whole)
        elif self._held and (whole or not opening.startswith(self._held)):
            self._stage = _Stage.ANSWER

    def _answer(self, *, whole: bool) -> str:
        """Take the answer that is certain; the tag that ends it is markup at the text's end."""
        held, tag = self._held, self._around_end
        self._held = ""
        if not tag:
            return held
        end = held.find(tag)
        while end >= 0 and held[end + len(tag) :].strip():
            end = held.find(tag, end + 1)
        if end < 0 and whole:
            return held
        text = held[: end if end >= 0 else len(held) - open_prefix(held, (tag,))].rstrip()
        self._held = "" if whole else held[len(text) :]
        return text

    def _drop(self, characters: int) -> None:
        self.answer_at += characters
        self._held = self._held[characters:]


class HarmonyParser(ReasoningParser):
    """Reads gpt-oss's messages, whose white space is their own.

    The inner parser gets the text of answers, and calls as they are, from ``<|channel|>`` on.
    """

    _MARK = re.compile("|".join(map(re.escape, _MARKS)))

    def __init__(self, form: ReasoningFormat, inner: ToolCallParser | None, *, begun: bool) -> None:
        super().__init__(form, inner, begun=begun)
        self._stage = _Stage.REASONING if begun else _Stage.ANSWER
        self._header: str | None = None
        """What has come of a message before its text."""
        self._is_first = not begun
        """Whether the answer may still begin with a recipient, as the prompt ends with a role."""
        self._in_call = False
        self._answered = False
        self._separator = ""

    @property
    def is_reasoning(self) -> bool:
        return not self._answered and (self._header is not None or super().is_reasoning)

    def _read(self, *, whole: bool) -> list[Event]:
        events: list[Event] = []
        if self._is_first:
            begun = self._held.startswith(_TO)
            if not whole and not begun and _TO.startswith(self._held):
                return events
            self._is_first, self._header = False, "" if begun else None
        while (found := self._MARK.search(self._held)) is not None:
            events += self._take(found.start())
            self._drop(len(found[0]))
            events += self._take_mark(found[0])
        known = len(self._held) - (0 if whole else open_prefix(self._held, _MARKS))
        return joined([*events, *self._take(known)])

    def _take(self, length: int) -> list[Event]:
        text = self._held[:length]
        if text and self._header is None and self._stage is _Stage.ANSWER:
            self._answered = True
        self._drop(length)
        if not text:
            return []
        if self._header is not None:
            self._header += text
            return []
        if self._stage is _Stage.ANSWER:
            return self._say(text)
        text, self._separator, self._begun_text = self._separator + text, "", True
        return [Reasoning(text)]

    def _take_mark(self, mark: str) -> list[Event]:
        if mark in ("<|start|>", "<|channel|>"):
            self._header = (self._header or "") + mark
            return []
        if mark != "<|message|>":
            ends_call, self._in_call = self._in_call, False
            self._header, self._stage = None, _Stage.ANSWER
            return [] if not ends_call or self._inner is None else self._inner.push(mark)
        header, self._header = (self._header or "").removeprefix(_ASSISTANT), None
        self._in_call = "to=functions." in header
        thinks = "<|channel|>analysis" in header and not self._in_call
        self._stage = _Stage.REASONING if thinks else _Stage.ANSWER
        if thinks and self._begun_text:
            self._separator = "\n"
        if not self._in_call or self._inner is None:
            return []
        self._answered = True
        return self._inner.push(header + mark)

    def _drop(self, characters: int) -> None:
        self.answer_at += 0 if self._answered else characters
        self._held = self._held[characters:]
