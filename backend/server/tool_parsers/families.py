"""How families of models write calls of functions."""

from collections.abc import Sequence

from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.streaming_json import (
    SPACE,
    CallableFunction,
    CallReader,
    CallsParser,
    Content,
    Event,
    Tag,
)

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
PYTHON_TAG = "<|python_tag|>"


class HermesToolCallParser(CallsParser):
    """Qwen's and Hermes' calls: ``{"name": …, "arguments": {…}}`` between tags.

    Text may stand around calls; space around them is markup. What follows an opening tag and is no
    call is text, the tag included.
    """

    markup = (OPEN_TAG, CLOSE_TAG)
    arguments_key = "arguments"
    before_call = f"{OPEN_TAG}\n"
    after_call = f"\n{CLOSE_TAG}"

    _is_behind_call = False
    """The closing tag may still come, and braces too many before it."""

    @classmethod
    def calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        return {
            "type": "tags_with_separator",
            "tags": cls._tags(functions),
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": not several,
        }

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        return {
            "type": "triggered_tags",
            "triggers": [OPEN_TAG],
            "tags": cls._tags(functions),
            "at_least_one": False,
            "stop_after_first": not several,
        }

    def _read_text(self, text: str, events: list[Event]) -> str:
        """Pass on what precedes the next opening tag; hold space, and what may begin a tag."""
        if self._is_behind_call:
            return self._read_closing(text)
        start = text.find(OPEN_TAG)
        end = start if start >= 0 else len(text) - longest_open_prefix(text, OPEN_TAG)
        shown = text[:end].rstrip(SPACE)
        events.append(Content(shown))
        if start < 0:
            self._held = text[len(shown) :]
            return ""
        self._begin_call(text[len(shown) : start] + OPEN_TAG)
        return text[start + len(OPEN_TAG) :]

    def _read_closing(self, text: str) -> str:
        text = text.lstrip(SPACE + "}")
        if text != CLOSE_TAG and CLOSE_TAG.startswith(text):
            self._held = text
            return ""
        self._is_behind_call = False
        return text.removeprefix(CLOSE_TAG)

    def _end_call(self) -> None:
        super()._end_call()
        self._is_behind_call = True

    def _rest(self) -> str:
        return "" if self._is_behind_call else super()._rest()


class LlamaToolCallParser(CallsParser):
    """Llama 3's calls: the answer is ``{"name": …, "parameters": {…}}`` alone.

    ``<|python_tag|>`` may precede it. Several calls are set apart by semicolons. An answer that
    does not begin so, or that calls no function that there is, is text: it may be JSON of the
    user's.
    """

    markup = (PYTHON_TAG,)
    arguments_key = "parameters"
    separators = SPACE + ";"

    _is_text = False
    """Whether no call can come any more."""

    @classmethod
    def calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        del several  # these models make one at a time
        return {"type": "or", "elements": cls._tags(functions)}

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        # What begins with a brace is a call.
        text = {"type": "regex", "pattern": r"([^{\s<][\s\S]*)?"}
        return {"type": "or", "elements": [cls.calls(functions, several=several), text]}

    def _accepts(self, name: str) -> bool:
        return name in self._names

    def _read_text(self, text: str, events: list[Event]) -> str:
        begun = text.lstrip(self.separators if self._num_calls else SPACE)
        begun = begun.removeprefix(PYTHON_TAG).lstrip(SPACE)
        if begun.startswith("{") and not self._is_text:
            self._begin_call(text.removesuffix(begun))
            return begun
        if self._is_text or not PYTHON_TAG.startswith(begun):
            self._is_text = True
            events.append(Content(text))
        else:
            self._held = text
        return ""

    def _give_up_call(self, reader: CallReader, events: list[Event]) -> str:
        self._is_text = True
        return super()._give_up_call(reader, events)
