"""Finds calls of functions in a text that comes in pieces; a format's class says how they look."""

from collections.abc import Sequence
from typing import ClassVar

from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.markup_calls import MarkupReader, Schemas, Script
from backend.server.tool_parsers.streaming_json import (
    SPACE,
    CallableFunction,
    CallReader,
    Content,
    Event,
    ReadStatus,
    Tag,
    joined,
    json_tag,
)

Reader = CallReader | MarkupReader
_PIECE = 4096
"""Characters."""


class CallsParser:
    """A ``ToolCallParser``; subclasses know where calls are."""

    markup: ClassVar[tuple[str, ...]] = ()
    """Tags, which may be special tokens of a tokenizer."""
    call: ClassVar[tuple[str, str]]
    """What stands around the arguments of a call that is demanded; ``%s`` is the name."""
    around: ClassVar[tuple[str, str]] = ("", "")
    """What stands around all calls that are demanded."""
    between: ClassVar[str] = ""
    one_at_a_time: ClassVar[bool] = False
    """Whether models make no second call in an answer."""
    style: ClassVar[str] = "json"
    """How the arguments are written, in xgrammar's words."""
    arguments_key: ClassVar[str] = "arguments"
    script: ClassVar[Script | None] = None
    """Reads calls that are no JSON objects."""
    listed: ClassVar[bool] = False
    """Whether brackets may stand around calls, and commas between them."""
    separators: ClassVar[str] = SPACE
    """What behind a call is no text."""

    def __init__(
        self,
        functions: Schemas | None = None,
        *,
        max_calls: int | None = None,
        eager: bool = True,
    ) -> None:
        """Begin; what follows ``max_calls`` calls is left out.

        ``functions`` have the schemas of their arguments.
        """
        self._functions: Schemas = functions or {}
        self._max_calls = max_calls
        self._eager = eager
        self._num_calls = 0
        self._reader: Reader | None = None
        """It reads the call that has begun."""
        self._before = ""
        """The markup before that call, which is text where it is none."""
        self._held = ""
        """Text that is not understood yet."""

    @classmethod
    def calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of one call, or of one or several."""
        inner: Tag = {
            "type": "tags_with_separator",
            "tags": cls._tags(functions),
            "separator": cls.between,
            "at_least_one": True,
            "stop_after_first": cls.one_at_a_time or not several,
        }
        begin, end = cls.around
        return {"type": "tag", "begin": begin, "content": inner, "end": end} if begin else inner

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        """Return the tag of an answer in which each call is valid."""
        raise NotImplementedError

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        # Each beginning of a call copies what follows, so a long text comes in pieces.
        for start in range(0, len(text), _PIECE):
            self._push(text[start : start + _PIECE], events)
        return joined(events)

    def _push(self, text: str, events: list[Event]) -> None:
        text, self._held = self._held + text, ""
        while text and self._num_calls != self._max_calls:
            if self._reader is None:
                text = self._read_text(text, events)
            else:
                text = self._read_call(self._reader, text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        while self._reader is not None:
            if self._reader.announced:
                self._end_call()
            else:
                # Within what was no call there may be one.
                events += self.push(self._give_up_call(self._reader, events))
        return joined([*events, Content(self._rest())])

    def _accepts(self, name: str) -> bool:
        """Say whether a call of ``name`` is one; a client can tell the model of a wrong name."""
        return bool(name)

    def _read_text(self, text: str, events: list[Event]) -> str:
        """Take ``text`` up to the next call, and return what follows."""
        raise NotImplementedError

    def _read_call(self, reader: Reader, text: str, events: list[Event]) -> str:
        read, rest = reader.push(text)
        events += read
        if reader.status is ReadStatus.READ:
            self._end_call()
        elif reader.status is ReadStatus.FAILED:
            rest = self._give_up_call(reader, events) + rest
        return rest

    def _begin_call(self, before: str, item: str) -> str:
        """Begin to read ``item``, and return it; ``before`` is the markup before it."""
        self._before = before
        script = type(self).script
        if script is None or (self.listed and item.startswith("{")):
            self._reader = CallReader(
                self._num_calls, self.arguments_key, accepts=self._accepts, eager=self._eager
            )
        else:
            self._reader = MarkupReader(
                self._num_calls,
                script,
                accepts=self._accepts,
                schemas=self._functions,
                eager=self._eager,
            )
        return item

    def _end_call(self) -> None:
        self._num_calls += 1
        self._reader = None

    def _give_up_call(self, reader: Reader, events: list[Event]) -> str:
        """Show what was before it, and return what followed to be read as text."""
        events.append(Content(self._before))
        self._reader = None
        return reader.text

    def _rest(self) -> str:
        """Return what of the text that was held back is to be shown at the end."""
        return self._held.rstrip(self.separators) if self._num_calls else self._held

    @classmethod
    def _tags(cls, functions: Sequence[CallableFunction]) -> list[Tag]:
        begin, end = cls.call
        return [
            {
                "type": "tag",
                "begin": begin.replace("%s", each.name),
                "content": json_tag(each.schema, cls.style),
                "end": end,
            }
            for each in functions
        ]


class TaggedCallsParser(CallsParser):
    """Calls begin behind tags. Text may stand around them; space around calls is markup.

    What follows an opening tag and is no call is text, the tag included.
    """

    opening: ClassVar[tuple[str, ...]]
    """The first stands before every call that is demanded."""
    closing: ClassVar[tuple[str, ...]] = ()
    """Tags behind a call, each of which may be missing."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Other tags that may be special tokens."""
    separators = SPACE + "}"  # models close a bracket too many

    _behind = ""
    """What is to be skipped behind a call, empty elsewhere."""

    def __init_subclass__(cls) -> None:
        cls.markup = (*cls.opening, *cls.closing, *cls.inner)

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        tags = [cls.calls(functions, several=several)] if cls.around[0] else cls._tags(functions)
        return {
            "type": "triggered_tags",
            "triggers": [cls.opening[0]],
            "tags": tags,
            "at_least_one": False,
            "stop_after_first": not several,
        }

    def _read_text(self, text: str, events: list[Event]) -> str:
        """Pass on what precedes the next opening tag; hold space, and what may begin a tag."""
        if self._behind:
            return self._read_behind(text)
        found = [(at, tag) for tag in self.opening if (at := text.find(tag)) >= 0]
        start, tag = min(found, default=(-1, ""))
        open_prefix = max(longest_open_prefix(text, tag) for tag in self.opening)
        end = start if found else len(text) - open_prefix
        shown = text[:end].rstrip(SPACE)
        events.append(Content(shown))
        text = text[len(shown) :]
        item = text[end - len(shown) + len(tag) :]
        if self.listed:
            item = item.lstrip(SPACE + "[")
        if not found or (self.listed and not item):
            self._held = text
            return ""
        return self._begin_call(text.removesuffix(item), item)

    def _read_behind(self, text: str) -> str:
        begun = text.lstrip(self._behind)
        for tag in self.closing:
            if begun.startswith(tag):
                self._behind = SPACE
                return begun[len(tag) :]
        is_comma = self.listed and begun.startswith(",")
        item = begun.lstrip(SPACE + ",")
        if any(tag.startswith(begun) for tag in ("", *self.closing)) or (is_comma and not item):
            self._held = text
            return ""
        self._behind = ""
        if is_comma:
            return self._begin_call(text.removesuffix(item), item)
        passed = text.removesuffix(begun)
        return passed[len(passed.rstrip(SPACE)) :] + begun

    def _end_call(self) -> None:
        super()._end_call()
        self._behind = self.separators

    def _rest(self) -> str:
        return "" if self._behind else super()._rest()


class WholeCallsParser(CallsParser):
    """The answer is calls alone, perhaps behind a tag.

    An answer that does not begin so, or that calls no function that there is, is text: it may be
    JSON of the user's.
    """

    tag: ClassVar[str]
    begins: ClassVar[str]
    """How a call begins."""

    _is_text = False
    """Whether no call can come any more."""

    @classmethod
    def text_or_calls(cls, functions: Sequence[CallableFunction], *, several: bool) -> Tag:
        # What begins with a bracket is a call.
        text = {"type": "regex", "pattern": rf"([^\{cls.begins}\s<][\s\S]*)?"}
        return {"type": "or", "elements": [cls.calls(functions, several=several), text]}

    def _accepts(self, name: str) -> bool:
        return name in self._functions

    def _read_text(self, text: str, events: list[Event]) -> str:
        begun = text.lstrip(self.separators if self._num_calls else SPACE)
        begun = begun.removeprefix(self.tag).lstrip(SPACE)
        is_item = self.listed and self._num_calls > 0
        if not self._is_text and begun and (is_item or begun.startswith(self.begins)):
            if item := begun.lstrip(SPACE + "[") if self.listed else begun:
                return self._begin_call(text.removesuffix(item), item)
            self._held = text
        elif self._is_text or not self.tag.startswith(begun):
            self._is_text = True
            events.append(Content(text))
        else:
            self._held = text
        return ""

    def _give_up_call(self, reader: Reader, events: list[Event]) -> str:
        self._is_text = True
        return super()._give_up_call(reader, events)
