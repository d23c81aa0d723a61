"""Calls as Llama 3 models write them: the answer is ``{"name": …, "parameters": {…}}`` alone.

``<|python_tag|>`` may precede it. Several calls are set apart by semicolons. An answer that does
not begin so, or that calls no function that there is, is text: it may be JSON of the user's.
"""

from collections.abc import Sequence

from backend.server.tool_parsers.streaming_json import (
    SPACE,
    CallableFunction,
    CallReader,
    CallsParser,
    Content,
    Event,
    Tag,
)

PYTHON_TAG = "<|python_tag|>"


class LlamaToolCallParser(CallsParser):
    """Finds calls at the answer's beginning."""

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
