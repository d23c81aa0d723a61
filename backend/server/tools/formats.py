"""The formats in which models call functions: how to read them, and how to demand them.

What is demanded is written as xgrammar's structural tags: text with JSON at given places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.server.tools import llama, qwen
from backend.server.tools.events import ToolCallParser
from backend.server.tools.llama import LlamaToolCallParser
from backend.server.tools.qwen import QwenToolCallParser

Tag = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function and the schema that its arguments are held to."""

    name: str
    schema: Mapping[str, Any]


class ToolFormat(Protocol):
    """How one family of models calls functions."""

    def parser(
        self, names: Sequence[str], *, most_calls: int | None, eager: bool
    ) -> ToolCallParser:
        """Return fresh state for one choice. See ``CallReader`` for the two tempers."""
        ...

    def calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of one call, or of one or several."""
        ...

    def text_or_calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of an answer in which whatever is called is called rightly."""
        ...


class QwenFormat:
    """See ``qwen``."""

    def parser(
        self, names: Sequence[str], *, most_calls: int | None, eager: bool
    ) -> ToolCallParser:
        """See ToolFormat. A name that there is not is passed on: the client can tell the model."""
        del names
        return QwenToolCallParser(most_calls=most_calls, eager=eager)

    def calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """See ToolFormat."""
        return {
            "type": "tags_with_separator",
            "tags": [self._tag(function) for function in functions],
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": not several,
        }

    def text_or_calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """See ToolFormat."""
        return {
            "type": "triggered_tags",
            "triggers": [qwen.OPEN_TAG],
            "tags": [self._tag(function) for function in functions],
            "at_least_one": False,
            "stop_after_first": not several,
        }

    def _tag(self, function: CallableFunction) -> Tag:
        opening = f'{qwen.OPEN_TAG}\n{{"name": "{function.name}", "{qwen.ARGUMENTS_KEY}": '
        return _tag(opening, function, f"}}\n{qwen.CLOSE_TAG}")


class LlamaFormat:
    """See ``llama``. These models make one call at a time."""

    def parser(
        self, names: Sequence[str], *, most_calls: int | None, eager: bool
    ) -> ToolCallParser:
        """See ToolFormat."""
        return LlamaToolCallParser(names, most_calls=most_calls, eager=eager)

    def calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """See ToolFormat."""
        del several
        return {"type": "or", "elements": [self._tag(function) for function in functions]}

    def text_or_calls(self, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """See ToolFormat."""
        # What begins with a brace is a call.
        text = {"type": "regex", "pattern": r"([^{\s<][\s\S]*)?"}
        return {"type": "or", "elements": [self.calls(functions, several=several), text]}

    def _tag(self, function: CallableFunction) -> Tag:
        opening = f'{{"name": "{function.name}", "{llama.ARGUMENTS_KEY}": '
        return _tag(opening, function, "}")


FORMATS: Mapping[str, ToolFormat] = {"qwen": QwenFormat(), "llama": LlamaFormat()}


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template teaches, None when it knows nothing of tools."""
    if "tools" not in template:
        return None
    if qwen.OPEN_TAG in template:
        return FORMATS["qwen"]
    # Llama 3.2's small models are told of JSON alone, without the tag.
    if llama.PYTHON_TAG in template or ('"parameters"' in template and '"name"' in template):
        return FORMATS["llama"]
    return None


def _tag(opening: str, function: CallableFunction, closing: str) -> Tag:
    content = {"type": "json_schema", "json_schema": dict(function.schema)}
    return {"type": "tag", "begin": opening, "content": content, "end": closing}
