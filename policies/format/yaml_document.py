"""YAML text to plain data, with the line of every key and of every problem.

Law: the file means what it looks like. Scalars follow YAML 1.2's core schema, so that ``NO`` is
Norway and ``1:30`` is no number of seconds; ``on`` and ``off`` stay words for the schema to
read. Duplicate keys are refused, tags are refused, and size, depth and the number of values that
aliases may unfold to are bounded.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

MAX_CHARACTERS = 512 * 1024
MAX_DEPTH = 16
MAX_VALUES = 50_000

Path = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_EXPECTED_BUT_GOT = re.compile(r"expected (.*?), but (?:found|got) (.*)")
_TRUE = ("true", "True", "TRUE")
_SCALARS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]{0,17})$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
)
_STRUCTURES = ("str", "map", "seq")
_ALLOWED_TAGS = {_TAG + name for name in (*_STRUCTURES, *(name for name, _, _ in _SCALARS))}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right; ``line`` counts from 1 and ``key`` is empty for the whole file."""

    source: str
    line: int
    key: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}: " + (f"{self.key}: " if self.key else "")
        return f"{where}expected {self.expected}, got {self.got}"


class PolicyError(Exception):
    """The file is no policy; ``problems`` are all that were found, in order of line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands and how it reads there."""

    line: int
    text: str


@dataclass(slots=True)
class Document:
    """A file's data, the place of every value by path, and the problems so far."""

    source: str
    data: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, expected: str, got: str | None = None) -> Problem:
        """Return a problem at ``path``, or at the nearest enclosing path in the file."""
        known = path
        while known not in self.places:
            known = known[:-1]
        place = self.places[known]
        return Problem(self.source, place.line, key_path(path), expected, got or place.text)


def key_path(path: Path) -> str:
    """Write a path as ``rules[2].match.model``."""
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return written.removeprefix(".")


def policy_text(data: bytes, source: str) -> str:
    """Decode a policy file. Raises PolicyError where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"the byte 0x{data[error.start]:02x}"
        raise PolicyError((Problem(source, line, "", "UTF-8 text", got),)) from error


def read_document(text: str, source: str) -> Document:
    """Read one YAML document. Raises PolicyError where the text cannot be read as one."""
    if len(text) > MAX_CHARACTERS:
        most = f"a file of at most {MAX_CHARACTERS} characters"
        raise PolicyError((Problem(source, 1, "", most, f"one of {len(text)}"),))
    try:
        node = _Loader(text).get_single_node()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        got = f"the character {chr(error.character)!r}"
        raise PolicyError((Problem(source, line, "", "printable text", got),)) from error
    except yaml.MarkedYAMLError as error:
        raise PolicyError((_syntax_problem(error, text, source),)) from error
    reading = _Reading(Document(source))
    if node is None:
        reading.document.places[()] = Place(1, "an empty file")
    else:
        reading.document.data = reading.value(node, (), node.start_mark.line + 1)
    return reading.document


class _Loader(yaml.SafeLoader):
    """Composes nodes, none deeper than MAX_DEPTH.

    Scalars are resolved by YAML 1.2's core schema, without octal, hexadecimal, infinities and NaN.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(
                problem=f"more than {MAX_DEPTH} levels of nesting", problem_mark=mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _first)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    # The end of the text is past its last line when that ends in a line feed.
    last = max(1, len(text.splitlines()))
    line = 1 if mark is None else min(mark.line + 1, last)
    found = error.problem or error.context or "a syntax error"
    if "'\\t'" in found:
        return Problem(source, line, "", "spaces for indentation", "a tab")
    if "expected a single document" in (error.context or ""):
        return Problem(source, line, "", "one YAML document", "a second one")
    context = f" ({error.context})" if error.problem and error.context else ""
    named = _EXPECTED_BUT_GOT.match(found)
    if named is not None:
        return Problem(source, line, "", named[1] + context, named[2])
    return Problem(source, line, "", "valid YAML", found.removeprefix("found ") + context)


class _Reading:
    """Turns nodes into data, noting places and problems on the way."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._values = 0

    def value(self, node: yaml.Node, path: Path, line: int) -> Any:
        """Return the data of the node at ``path``; its key is on ``line``."""
        self._values += 1
        # An alias may contain itself, so depth is bounded here once more.
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            bound = f"at most {MAX_VALUES} values and {MAX_DEPTH} levels, aliases unfolded"
            raise PolicyError((Problem(self.document.source, line, "", bound, "more"),))
        self.document.places[path] = Place(line, _as_written(node))
        if node.tag not in _ALLOWED_TAGS:
            self._note(line, path, "a value without a tag", f"the tag {node.tag}")
            return None
        if node.tag == _TAG + "null":
            left_out = "a value; leave the key out where there is none to give"
            self._note(line, path, left_out, "nothing")
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._members(node, path))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.value(each, (*path, at), each.start_mark.line + 1) for at, each in items]
        return _scalar(node)

    def _members(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if key_node.tag != _TAG + "str":
                word = "a key that is a word; put it in quotes if it is meant"
                self._note(line, path, word, _as_written(key_node))
            elif key in seen:
                once = f"each key once (it is on line {seen[key]} already)"
                self._note(line, (*path, key), once, "it again")
            else:
                seen[key] = line
                yield key, self.value(value_node, (*path, key), line)

    def _note(self, line: int, path: Path, expected: str, got: str) -> None:
        problem = Problem(self.document.source, line, key_path(path), expected, got)
        self.document.problems.append(problem)


def _scalar(node: yaml.Node) -> Any:
    text = str(node.value)
    kinds: dict[str, Callable[[str], Any]] = {
        "bool": _TRUE.__contains__,
        "int": int,
        "float": float,
    }
    return kinds.get(node.tag.removeprefix(_TAG), str)(text)


def _as_written(node: yaml.Node) -> str:
    """Describe a node in a message: a scalar in the file's own form, cut if it is long."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list" if node.value else "an empty list"
    if node.tag == _TAG + "null":
        return "nothing"
    text = str(node.value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return repr(text) if node.tag == _TAG + "str" else text
