"""One JSON schema that holds a value to two of them. Pure.

xgrammar reads no keyword beside ``$ref``, ``anyOf`` or ``enum``. So what stands there is joined
with what is referred to, or with each branch, and tells which values are left.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backend.grammar.schema_keywords import (
    KEYWORDS,
    MOST_DEPTH,
    NOT_ENFORCED,
    TYPES,
    Path,
    Schema,
    SchemaError,
    shown,
    types_of,
    value_of,
)

MOST_JOINS = 20_000
"""References within choices could else make work without end."""

_LEAST = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems"})
_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("minimum", "minLength", "minItems"), lambda size, limit: size >= limit),
    **dict.fromkeys(("maximum", "maxLength", "maxItems"), lambda size, limit: size <= limit),
    "exclusiveMinimum": lambda size, limit: size > limit,
    "exclusiveMaximum": lambda size, limit: size < limit,
}
_CHOICES = ("anyOf", "oneOf")
_READ = {"$ref", "required", "properties", "enum", "allOf", *_CHOICES}


class SchemaJoins:
    """Joins the parts of one schema."""

    def __init__(
        self, resolve: Callable[[Schema, Path], Any], refuse: Callable[[Path, str], None]
    ) -> None:
        """``resolve`` follows ``$ref``; ``refuse`` is told, and may raise, what does not hold."""
        self._resolve = resolve
        self._refuse = refuse
        self._num_joins = 0

    def _count(self, depth: int, path: Path) -> None:
        self._num_joins += depth > 0
        if depth > MOST_DEPTH + 1 or self._num_joins > MOST_JOINS:
            limits = f"{MOST_DEPTH} levels or {MOST_JOINS} joins"
            problem = f"it is larger than the {limits} that are allowed"
            raise SchemaError(path, f"{problem}; perhaps a reference leads to itself")

    def join(self, one: Any, other: Any, path: Path, depth: int = 0) -> Any:
        """Return one schema for both, False where no value is valid. Raises SchemaError.

        What cannot be joined is refused and taken from ``other``.
        """
        for each in (one, other):
            if not isinstance(each, dict | bool):
                raise SchemaError(path, f"{shown(each)} is not of type 'object', 'boolean'")
        if isinstance(one, bool) or isinstance(other, bool):
            return (one and other) if other is not True else one
        self._count(depth + 1, path)
        one, other = _known(one, path), _known(other, path)
        if "$ref" in other and not one.keys() <= {"type"}:
            rest = {key: value for key, value in other.items() if key != "$ref"}
            both = self.join(one, rest, path, depth + 1)
            return self.join(both, self._resolve(other, path), path, depth + 1)
        joined = {**one, **other}
        for key in one.keys() & other.keys():
            joined[key] = self._both(key, (one[key], other[key]), (*path, key), depth + 1)
            if joined[key] is None:
                return False
        for key in _CHOICES:
            if key in one and key in other:  # the branches of both hold
                joined["allOf"] = [*joined.get("allOf", ()), {key: one[key]}]
        self._properties(one, other, joined, (*path, "properties"), depth + 1)
        if ("prefixItems" in one) != ("prefixItems" in other) and "items" in joined:
            self._refuse(path, "'items' is not permitted beside 'prefixItems' of another schema")
        return joined

    def _both(self, key: str, values: tuple[Any, Any], path: Path, depth: int) -> Any:
        """Return what a keyword says in both schemas, None where nothing is valid."""
        one, other = values
        if key in ("type", "enum"):
            if key == "type":
                return _common(types_of({key: one}, path), types_of({key: other}, path)) or None
            return [each for each in other if _among(each, one)] or None
        if _same(one, other) or key in _CHOICES:
            return other
        match one, other:
            case dict(), dict() if key == "properties":
                names = one.keys() & other.keys()
                common = {
                    name: self.join(one[name], other[name], (*path, name), depth) for name in names
                }
                return {**one, **other, **common}
            case list(), list() if key in ("required", "allOf"):
                return [*one, *other]
            case int() | float(), int() | float() if key in _LIMITS:
                return max(one, other) if key in _LEAST else min(one, other)
            case _ if key in ("items", "additionalProperties"):
                return self.join(one, other, path, depth)
            case _ if key == "const":
                return None
        self._refuse(path[:-1], f"'{key}' is not permitted twice")
        return other

    def _properties(
        self, one: Schema, other: Schema, joined: Schema, path: Path, depth: int
    ) -> None:
        """Hold each one's properties to what the other says of properties that it does not name."""
        for these, those in ((one, other), (other, one)):
            rule = these.get("additionalProperties", True)
            unnamed = those.get("properties", {}).keys() - these.get("properties", {}).keys()
            if rule is not True and unnamed:
                held = {
                    name: self.join(rule, each, (*path, name), depth) if name in unnamed else each
                    for name, each in joined["properties"].items()
                }
                joined["properties"] = held

    def holds(self, value: Any, schema: Any, path: Path, depth: int = 0) -> bool:
        """Say whether ``value`` is valid by those keywords of ``schema`` that are decided here.

        Others are refused. Raises SchemaError.
        """
        if not isinstance(schema, dict):
            return schema is not False
        self._count(depth, path)
        for key, limit in _known(schema, path).items():
            kind = KEYWORDS.get(key, ("", ""))[1]
            if kind and not TYPES[kind](value):
                continue
            if key == "$ref":
                fits = self.holds(value, self._resolve(schema, path), path, depth + 1)
            elif key in ("allOf", *_CHOICES):
                held = [self.holds(value, each, path, depth + 1) for each in limit]
                fits = {"allOf": all(held), "anyOf": any(held), "oneOf": sum(held) == 1}[key]
            else:
                fits = self._fits(value, key, schema, path)
            if not fits:
                return False
        return True

    def _fits(self, value: Any, key: str, schema: Schema, path: Path) -> bool:
        limit: Any = value_of(schema, key, path) if key in KEYWORDS else None
        if key in _LIMITS:
            return _LIMITS[key](len(value) if isinstance(value, str | list) else value, limit)
        if key == "type":
            return any(TYPES[name](value) for name in types_of(schema, path))
        if key in ("enum", "const"):
            return _among(value, limit if key == "enum" else [limit])
        if key == "required":
            return all(name in value for name in limit if isinstance(name, str))
        self._refuse(path, f"'{key}' is not permitted beside 'enum'")
        return True


def _known(schema: Schema, path: Path) -> Schema:
    """Return the keywords that say something of values."""
    known = {
        key: value
        for key, value in schema.items()
        if (key in KEYWORDS or key in NOT_ENFORCED) and (value is not None or key == "const")
    }
    for key in known.keys() & _READ:
        value_of(known, key, path)
    return known


def _same(one: Any, other: Any) -> bool:
    # In JSON 1 is 1.0, and neither is true.
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _among(value: Any, values: Iterable[Any]) -> bool:
    return any(_same(value, each) for each in values)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    """Return the types that both admit: an integer is a number."""
    return [
        kind
        for kind in dict.fromkeys((*one, *other))
        if all(kind in kinds or (kind == "integer" and "number" in kinds) for kinds in (one, other))
    ]
