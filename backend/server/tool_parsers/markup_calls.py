"""Reads one call that is markup: a header before JSON, XML of parameters, or a call as in Python.

Each form is a script, which takes text and yields where it needs more of it.
"""

import ast
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from backend.scheduler.stopping import longest_open_prefix
from backend.server.tool_parsers.streaming_json import (
    SPACE,
    Brackets,
    CallArguments,
    CallStart,
    Event,
    ReadStatus,
    is_object,
)

_MOST_HEADER = 256
"""Characters of a header: a name has at most 64."""
_MOST_SCHEMAS = 64
"""So many are looked at for one parameter's types, since references may go round."""

_BOUNDED = "bounded"
"""Beside types: a string that is not any string."""

Schemas = Mapping[str, Mapping[str, Any]]
"""The schema of each function's arguments."""
Script = Callable[["MarkupReader"], Generator[None, None, None]]


class NoCallError(Exception):
    """What follows is no call, or no more of one."""


class MarkupReader:
    """A ``CallReader`` that follows a script. An eager one passes arguments on as they come."""

    def __init__(
        self,
        index: int,
        script: Script,
        *,
        accepts: Callable[[str], bool],
        schemas: Schemas,
        eager: bool,
    ) -> None:
        self.status = ReadStatus.OPEN
        self.announced = False
        self.schemas = schemas
        self._index = index
        self._accepts = accepts
        self._eager = eager
        self._read: list[str] = []
        self._rest = ""
        self._name = ""
        self._events: list[Event] = []
        self._arguments: list[str] = []
        self._steps = script(self)

    @property
    def text(self) -> str:
        """All text that came, until the call was announced."""
        return "".join(self._read)

    def push(self, text: str) -> tuple[list[Event], str]:
        """Take the next piece; return events, and the text behind a call that is READ."""
        if not self.announced:
            self._read.append(text)
        self._rest += text
        try:
            next(self._steps)
        except StopIteration:
            self.status = ReadStatus.READ
        except NoCallError:
            self.status = ReadStatus.READ if self.announced else ReadStatus.FAILED
        events, self._events = self._events, []
        return events, self._rest if self.status is ReadStatus.READ else ""

    def begin(self, name: str) -> None:
        """Say which function is called. Raises NoCallError where there is none of this name."""
        if not self._accepts(name):
            raise NoCallError
        self._name = name
        if self._eager:
            self._announce()

    def argue(self, text: str) -> None:
        """Add to the JSON text of the arguments."""
        if self._eager:
            self._events.append(CallArguments(self._index, text))
        else:
            self._arguments.append(text)

    def end(self) -> None:
        """Say that the arguments are whole. Raises NoCallError where they are not valid."""
        if not self._eager:
            arguments = "".join(self._arguments)
            if not is_object(arguments):
                raise NoCallError
            self._announce()
            self._events.append(CallArguments(self._index, arguments))

    def _announce(self) -> None:
        self.announced = True
        self._events.append(CallStart(self._index, self._name))

    def until(self, *ends: str) -> Generator[None, None, tuple[str, str]]:
        """Take text up to the first of ``ends``, and that; return both.

        Raises NoCallError where none comes in time.
        """
        longest = max(map(len, ends))
        while True:
            found = [(at, end) for end in ends if (at := self._rest.find(end)) >= 0]
            at, end = min(found, default=(len(self._rest) - longest, ""))
            if at > _MOST_HEADER:
                raise NoCallError
            if end:
                before, self._rest = self._rest[:at], self._rest[at + len(end) :]
                return before, end
            yield

    def pieces(
        self, end: str, followers: Sequence[str], take: Callable[[str], None]
    ) -> Generator[None, None, str]:
        """Pass text on as it comes, up to an ``end`` with one of ``followers`` behind; return it.

        So a value may have the end's text in it.
        """
        while True:
            at = self._rest.find(end)
            if at < 0:
                self._take(len(self._rest) - longest_open_prefix(self._rest, end), take)
                yield
                continue
            self._take(at, take)
            behind = self._rest[len(end) :].lstrip(SPACE)
            if follower := next((each for each in followers if behind.startswith(each)), ""):
                self._rest = behind[len(follower) :]
                return follower
            if any(each.startswith(behind) for each in followers):
                yield
            else:
                self._take(len(end), take)

    def _take(self, length: int, take: Callable[[str], None]) -> None:
        text, self._rest = self._rest[:length], self._rest[length:]
        if text:
            take(text)

    def json_object(self, begun: str) -> Generator[None, None, None]:
        """Pass a JSON object, which has ``begun``, on as the arguments.

        Raises NoCallError where it breaks off.
        """
        self._rest = begun + self._rest
        brackets = Brackets()
        while True:
            for at, character in enumerate(self._rest):
                if not brackets.fits(character):
                    self._take(at, self.argue)
                    raise NoCallError
                if character == "}" and brackets.depth == 0:
                    self._take(at + 1, self.argue)
                    return
            self._take(len(self._rest), self.argue)
            yield

    def python_arguments(self) -> Generator[None, None, str]:
        """Take text up to the bracket that closes arguments; line ends in strings are escaped."""
        taken: list[str] = []
        quote, depth, escaped = "", 0, False
        while True:
            for at, character in enumerate(self._rest):
                if quote:
                    taken.append("\\n" if character == "\n" and not escaped else character)
                    quote = quote if escaped or character != quote else ""
                    escaped = character == "\\" and not escaped
                    continue
                if character in "<>":  # markup: no call goes on with it
                    raise NoCallError
                if character == ")" and depth == 0:
                    self._rest = self._rest[at + 1 :]
                    return "".join(taken)
                depth += (character in "([{") - (character in ")]}")
                quote = character if character in "'\"" else ""
                taken.append(character)
            self._rest = ""
            yield


def header_then_json(header: str) -> Script:
    """Return the script of a ``header``, a regular expression with the name, and an object."""
    pattern = re.compile(header.replace("NAME", r"([\w.-]+)"))

    def script(reader: MarkupReader) -> Generator[None, None, None]:
        text, brace = yield from reader.until("{")
        if (found := pattern.fullmatch(text)) is None:
            raise NoCallError
        reader.begin(found[1])
        yield from reader.json_object(brace)
        reader.end()

    return script


@dataclass(frozen=True, slots=True)
class Xml:
    """A header and parameters between tags, the last of which ends the call."""

    header: str
    key: str
    value: str
    """Begins a value; the closing tag of a key may precede it."""
    value_end: str
    end: str
    key_end: str = ""
    lines: bool = False
    """Values stand on lines of their own: a line end at either end is markup."""

    def script(self) -> Script:
        """Return the script: parameters as the function's schema says, else as JSON if they are."""
        pattern = re.compile(self.header.replace("NAME", r"([\w.-]+)"))

        def script(reader: MarkupReader) -> Generator[None, None, None]:
            text, tag = yield from reader.until(self.key, self.end)
            if (found := pattern.fullmatch(text)) is None:
                raise NoCallError
            reader.begin(found[1])
            schema = reader.schemas.get(found[1], {})
            properties = schema.get("properties")
            opening = "{"
            while tag == self.key:
                key, _ = yield from reader.until(self.value)
                key = key.strip().removesuffix(self.key_end)
                reader.argue(f"{opening}{_json(key)}: ")
                opening = ", "
                known = properties.get(key) if isinstance(properties, Mapping) else None
                tag = yield from self._value(reader, _types(known, schema))
            reader.argue("{}" if opening == "{" else "}")
            reader.end()

        return script

    def _value(self, reader: MarkupReader, types: frozenset[str]) -> Generator[None, None, str]:
        """Pass a value on, strings as they come; its last line end waits for what comes behind."""
        is_string, is_first, held = types == {"string"}, self.lines, ""
        read: list[str] = []

        def take(text: str) -> None:
            nonlocal is_first, held
            text = held + (text.removeprefix("\n") if is_first else text)
            is_first, held = False, "\n" if self.lines and text.endswith("\n") else ""
            text = text.removesuffix(held)
            if is_string:
                reader.argue(_json(text)[1:-1])
            else:
                read.append(text)

        reader.argue('"' if is_string else "")
        tag = yield from reader.pieces(self.value_end, (self.key, self.end), take)
        reader.argue('"' if is_string else _typed("".join(read), types))
        return tag


def python_call(reader: MarkupReader) -> Generator[None, None, None]:
    """Read ``name(key=value, ...)``. It is known to be a call only once it is whole."""
    name, _ = yield from reader.until("(")
    if re.fullmatch(r"[\w.-]+", name := name.strip()) is None:
        raise NoCallError
    text = yield from reader.python_arguments()
    call = _python(f"f({text})")
    if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
        raise NoCallError
    arguments = _json({str(each.arg): _literal(each.value) for each in call.keywords})
    reader.begin(name)
    reader.argue(arguments)
    reader.end()


def _python(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoCallError from None


_KINDS: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
"""Names of the types of JSON."""
_WORDS = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.List(items) | ast.Tuple(items):
            return [_literal(item) for item in items]
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {str(_literal(key)): _literal(value) for key, value in pairs}
        case _:
            raise NoCallError


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # half of a surrogate pair, a number of more than 64 bits
        raise NoCallError from None


def _typed(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that was written bare: strings without quotes."""
    if _BOUNDED in types:
        text = text.strip()  # under a grammar space may stand around it
    try:
        value, written = orjson.loads(text), text.strip()
    except ValueError:
        try:
            value = _literal(_python(text.strip()))
            written = _json(value)
        except NoCallError:
            return _json(text)
    if isinstance(value, str) or ("string" in types and types.isdisjoint(_KINDS[type(value)])):
        return _json(text)
    return written


def _types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a parameter may have, none where its schema does not say."""
    types: set[str] = set()
    left = [schema]
    for _ in range(_MOST_SCHEMAS):
        if not left:
            break
        each = left.pop()
        if not isinstance(each, Mapping):
            continue
        if isinstance(pointer := each.get("$ref"), str):
            left.append(_found(pointer, root))
        kind = each.get("type")
        values = [each["const"]] if "const" in each else each.get("enum")
        if isinstance(kind, str | list):
            types.update([kind] if isinstance(kind, str) else map(str, kind))
        elif isinstance(values, list):
            types.update(*(_KINDS[type(value)] for value in values))
        if not each.keys().isdisjoint(("enum", "const", "pattern", "format", "maxLength")):
            types.add(_BOUNDED)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := each.get(key), list):
                left += branches
    return frozenset(types)


def _found(pointer: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for key in pointer.split("/")[1:]:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
