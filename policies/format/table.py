"""Mappings and lists of the file: a mapping is a table, and a row of it one key.

Law: one row is all that the format knows of a key. From it come the reader with its messages, the
JSON schema, the field of the decision, and the words that describe a decision.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from policies.format.synonyms import KEYS
from policies.format.values import ON_OFF, JsonSchema, UnexpectedValueError, Value, is_off
from policies.format.yaml_document import Document, Path

OFF: JsonSchema = {"enum": ["off", False, "no"]}
Definitions = dict[str, JsonSchema]


class Kind(Protocol):
    """The allowed values of a key."""

    def load(self, value: object, spot: "Spot", /) -> Any:
        """Return the meaning of a value, or of its readable part. Raises UnexpectedValueError."""

    def json_schema(self, definitions: Definitions, /) -> JsonSchema:
        """Return its schema; schemas of tables go to ``definitions``."""

    def words(self, value: Any, /) -> Any:
        """Return the file's form of a value."""
        return value


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a document, which notes the problems there."""

    document: Document
    path: Path = ()

    def load(self, kind: Kind, value: object, *steps: str | int) -> Any:
        """Return the meaning of the value these steps further in; None if it is refused."""
        inside = Spot(self.document, (*self.path, *steps))
        try:
            return kind.load(value, inside)
        except UnexpectedValueError as refused:
            inside.note(str(refused))

    def note(self, expected: str, *steps: str | int, got: str | None = None) -> None:
        """Note the expected and the found value; without ``got`` the value here or around it."""
        path = (*self.path, *steps)
        while got is None and path not in self.document.places:
            path = path[:-1]
        self.document.problems.append(self.document.problem(path, expected, got))


@dataclass(frozen=True, slots=True, eq=False)
class ListOf:
    """A list of values of one kind."""

    item: Kind
    least: int = 1
    most: int | None = None
    single: bool = True
    """Whether a single value is a list of one."""
    into: Callable[[list[Any]], Any] = list
    """Makes the result from the values of the list."""

    def load(self, value: object, spot: Spot, /) -> Any:
        if not self.single and not isinstance(value, list):
            raise UnexpectedValueError("a list")
        values = value if isinstance(value, list) else [value]
        if len(values) < self.least:
            raise UnexpectedValueError("at least one value")
        if self.most is not None and len(values) > self.most:
            raise UnexpectedValueError(f"at most {self.most} values")
        return self.into([spot.load(self.item, each, at) for at, each in enumerate(values)])

    def json_schema(self, definitions: Definitions, /) -> JsonSchema:
        item = self.item.json_schema(definitions)
        many: JsonSchema = {"type": "array", "items": item}
        many |= {"minItems": self.least} if self.least else {}
        many |= {"maxItems": self.most} if self.most else {}
        return {"anyOf": [item, many]} if self.single else many

    def words(self, values: Any, /) -> list[Any]:
        in_order = sorted(values) if isinstance(values, frozenset) else values
        return [self.item.words(value) for value in in_order]


def unique(values: list[Any]) -> tuple[Any, ...]:
    """Return the values in their order, each once."""
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True, eq=False)
class MapOf(Kind):
    """A mapping with names from the operator as keys."""

    name: Value
    item: Kind
    least: int = 0

    def load(self, value: object, spot: Spot, /) -> Any:
        if not isinstance(value, dict):
            raise UnexpectedValueError("a mapping")
        if len(value) < self.least:
            raise UnexpectedValueError("at least one key")
        return {
            spot.load(self.name, name, name): spot.load(self.item, each, name)
            for name, each in value.items()
        }

    def json_schema(self, definitions: Definitions, /) -> JsonSchema:
        name = self.name.json_schema(definitions)
        schema: JsonSchema = {"type": "object", "additionalProperties": False}
        schema["patternProperties"] = {name["pattern"]: self.item.json_schema(definitions)}
        schema |= {"propertyNames": {"not": name["not"]}} if "not" in name else {}
        return schema | ({"minProperties": self.least} if self.least else {})


@dataclass(frozen=True, slots=True, eq=False)
class Short:
    """A short way to write a mapping."""

    read: Callable[[object], dict[str, Any]]
    """Returns the mapping that it stands for. Raises UnexpectedValueError."""
    schema: tuple[JsonSchema, ...]
    what: str
    """The expected values if neither form fits."""
    words: Callable[[dict[str, Any]], Any] = lambda mapping: mapping
    """Takes the mapping in words and returns the file's form."""


def on_or_off(such_as: str) -> Short:
    """Return the short way by which on and off set ``enabled`` and nothing else."""

    def words(mapping: dict[str, Any]) -> Any:
        enabled = mapping.pop("enabled")
        return mapping if enabled == "on" else enabled

    what = f"on, off or a mapping such as {such_as}"
    return Short(lambda value: {"enabled": ON_OFF.read(value)}, (ON_OFF.schema,), what, words)


def only_off(such_as: str) -> Short:
    """Return the short way of a table that is ``off`` or a mapping."""

    def read(_: object) -> dict[str, Any]:
        raise UnexpectedValueError("off")

    return Short(read, (OFF,), f"off or a mapping such as {such_as}")


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """A row: one key of a mapping, with a help text and examples of its values."""

    name: str
    kind: Kind
    about: str
    examples: tuple[Any, ...] = ()
    """None needed of a choice."""
    sets: str | None = None
    """The field that the value becomes. None: the field of the key's name, or, for a table, the
    fields that its keys set."""
    unset: Any = None
    """The value where the mapping does not say; None: nothing is set then."""
    hide: str | None = None
    """A description leaves the key out if the value has this word."""
    required: bool = False

    def fields(self, value: Any, inherited: Any) -> dict[str, Any]:
        """Return the fields that the value sets, by name."""
        if not isinstance(self.kind, Table):
            return {self.sets or self.name: value}
        if self.sets is None:
            return self.kind.fields(value, inherited)
        return {self.sets: self.kind.settings(value, getattr(inherited, self.sets))}

    def words(self, settings: Any) -> Any:
        name = self.sets or (None if isinstance(self.kind, Table) else self.name)
        return self.kind.words(settings if name is None else getattr(settings, name))

    def json_schema(self, definitions: Definitions, neutral: Any) -> JsonSchema:
        """Return the schema; ``neutral`` are the settings where nothing is set."""
        schema = self.kind.json_schema(definitions)
        schema["description"] = self.about
        if self.examples:
            schema["examples"] = list(self.examples)
        if self.unset is not None:
            schema["default"] = self.unset
        elif neutral is not None:
            words = self.words(neutral)
            word = ", ".join(words) if isinstance(words, list) else words
            schema["description"] += f" Unset: as in the default settings, or else {word}."
        return schema


class Table:
    """A mapping of the file that knows all its keys."""

    def __init__(
        self,
        name: str,
        about: str,
        *keys: Key,
        short: Short | None = None,
        filled: bool = True,
        neutral: Any = None,
        off: Any = None,
        refuse: Callable[[dict[str, Any]], str | None] = lambda _: None,
    ) -> None:
        """Take the name in the JSON schema, a help text, and the rows.

        One that must be ``filled`` has at least one key. Help texts tell of the settings that are
        ``neutral``, and the word off stands for the settings ``off``. ``refuse`` returns what was
        expected where keys that are right by themselves do not fit together.
        """
        self.name = name
        self.about = about
        self.keys = keys
        self._short = short
        self._filled = filled
        self._neutral = neutral
        self._off = off
        self._refuse = refuse

    def load(self, value: object, spot: Spot, /) -> dict[str, Any]:
        mapping = self._mapping(value)
        names = [key.name for key in self.keys]
        problems = len(spot.document.problems)
        found: dict[str, Any] = {}
        for key in self.keys:
            if key.name in mapping:
                found[key.name] = spot.load(key.kind, mapping[key.name], key.name)
            elif key.required:
                spot.note("this required key", key.name, got="nothing")
            elif key.unset is not None:
                found[key.name] = key.unset
        for name in [each for each in mapping if each not in names]:
            expected = f"one of the keys {', '.join(names)}{self._meant(name)}"
            spot.note(expected, name, got=f"the unknown key {name!r}")
        wrong = self._refuse(found) if len(spot.document.problems) == problems else None
        if wrong is not None:
            raise UnexpectedValueError(wrong)
        return found

    def _meant(self, name: str) -> str:
        """Return a hint at the key that an unknown one stands for."""
        word = name.lower().replace("-", "_")
        path = KEYS.get(word, word)
        if (route := self._route(path.split("."))) is not None:
            *above, last = route
            below = f", below {'.'.join(above)}" if above else ""
            return f" (did you mean {last}{below}?)"
        near = difflib.get_close_matches(name, [key.name for key in self.keys], n=1, cutoff=0.5)
        if near:
            return f" (did you mean {near[0]}?)"
        return f" (did you mean {path} of the rule?)" if word in KEYS and path != "exact" else ""

    def _route(self, path: list[str]) -> list[str] | None:
        """Return the way from this table to the key that a path ends with, the shortest first."""
        last = path[-1]
        if any(key.name == last for key in self.keys):
            return [last]
        for key in self.keys:
            if isinstance(key.kind, Table) and (rest := key.kind._route(path)) is not None:  # noqa: SLF001
                return [key.name, *rest]
        return None

    def _mapping(self, value: object) -> dict[str, Any]:
        if self._off is not None and is_off(value):
            return {key.name: key.words(self._off) for key in self.keys}
        if self._short is not None and not isinstance(value, dict):
            try:
                return self._short.read(value)
            except UnexpectedValueError:
                raise UnexpectedValueError(self._short.what) from None
        names = ", ".join(key.name for key in self.keys)
        if not isinstance(value, dict):
            raise UnexpectedValueError(f"a mapping with keys of {names}")
        if self._filled and not value:
            raise UnexpectedValueError(f"at least one of the keys {names}")
        return value

    def fields(self, mapping: dict[str, Any], inherited: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in self.keys:
            if key.name in mapping:
                found |= key.fields(mapping[key.name], inherited)
        return found

    def settings(self, mapping: dict[str, Any], inherited: Any) -> Any:
        return replace(inherited, **self.fields(mapping, inherited))

    def words(self, settings: Any, /) -> Any:
        """Return the settings in the words of the file, short where that is possible."""
        if self._off is not None and settings == self._off:
            return "off"
        every = {key: key.words(settings) for key in self.keys}
        written = {key.name: words for key, words in every.items() if words != key.hide}
        return written if self._short is None else self._short.words(written)

    def json_schema(self, definitions: Definitions, /) -> JsonSchema:
        """Define the table, and return a reference to it beside its short ways."""
        definitions[self.name] = {
            "type": "object",
            "description": self.about,
            "properties": {
                key.name: key.json_schema(definitions, self._neutral) for key in self.keys
            },
            "required": [key.name for key in self.keys if key.required],
            "additionalProperties": False,
            "minProperties": int(self._filled),
        }
        reference = {"$ref": f"#/$defs/{self.name}"}
        return {"anyOf": [*self._short.schema, reference]} if self._short else reference
