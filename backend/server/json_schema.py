"""From a client's JSON schema to one that decoding can enforce whole.

Pure. What cannot be enforced is refused where the client asked for strictness, and left out where
it did not: then the answer is valid under what remains. Names and defaults that describe are
dropped, references rewritten, so that whatever comes out is understood by the grammar compiler.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from backend.server.number_bounds import DECIMALS, between_decimals
from backend.server.string_patterns import pattern_problem

MOST_BYTES = 64 * 1024
MOST_ENFORCED_BYTES = 4 * MOST_BYTES
"""Of what is enforced: a schema that refers to parts of its own has them once more."""
MOST_DEPTH = 32
MOST_SUBSCHEMAS = 2_000

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
# What a keyword says about values of other types: nothing.
_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
}
_COMBINATIONS = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "$ref"})
_NOT_ENFORCED = frozenset(
    {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"patternProperties", "propertyNames", "minProperties", "maxProperties"}
    | {"unevaluatedProperties", "unevaluatedItems", "contains", "minContains", "maxContains"}
    | {"uniqueItems", "multipleOf", "$dynamicRef", "$recursiveRef"}
)
_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
Path = tuple[str | int, ...]


class SchemaError(ValueError):
    """The schema cannot be enforced: ``path`` leads to where, ``problem`` says why."""

    def __init__(self, path: Path, problem: str) -> None:
        """``problem`` is a sentence without its end."""
        super().__init__(f"In context={path!r}, {problem}.")


def enforceable(schema: Any, *, strict: bool) -> dict[str, Any]:
    """Return the schema that is enforced. Raises SchemaError."""
    size = len(orjson.dumps(schema))
    if size > MOST_BYTES:
        raise SchemaError((), f"the schema has {size} bytes, of which {MOST_BYTES} are allowed")
    enforced = _Translation(schema, strict=strict).result()
    size = len(orjson.dumps(enforced))
    if size > MOST_ENFORCED_BYTES:
        problem = f"with what it refers to the schema has {size} bytes"
        raise SchemaError((), f"{problem}, of which {MOST_ENFORCED_BYTES} are allowed")
    return enforced


class _Translation:
    def __init__(self, root: Any, *, strict: bool) -> None:
        self._root = root
        self._strict = strict
        self._num_subschemas = 0
        self._names: dict[int, str] = {}
        """By the identity of what is referred to, which has many spellings."""
        self._definitions: dict[str, Any] = {}

    def result(self) -> dict[str, Any]:
        root = self._schema(self._root, (), 0)
        return root | {"$defs": self._definitions} if self._definitions else root

    def _schema(self, schema: Any, path: Path, depth: int) -> dict[str, Any]:
        self._num_subschemas += 1
        if depth > MOST_DEPTH or self._num_subschemas > MOST_SUBSCHEMAS:
            limit = f"{MOST_DEPTH} levels" if depth > MOST_DEPTH else f"{MOST_SUBSCHEMAS} schemas"
            raise SchemaError(path, f"the schema is larger than the {limit} that are allowed")
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise SchemaError(path, f"{_shown(schema)} is not of type 'object', 'boolean'")
        for keyword in schema:
            if keyword in _NOT_ENFORCED and schema[keyword] not in (False, None):
                self._refuse(path, keyword)
        present = [
            key
            for key in schema
            if key in _TYPE_OF_KEYWORD or key in _COMBINATIONS or key == "type"
        ]
        constraints = {key: schema[key] for key in present}
        for keyword, translate in self._combinations().items():
            if keyword in constraints:
                return translate(constraints, path, depth)
        return self._typed(constraints, path, depth)

    def _combinations(self) -> dict[str, Callable[[dict[str, Any], Path, int], dict[str, Any]]]:
        return {
            "$ref": self._reference,
            "enum": self._enum,
            "const": self._const,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "allOf": self._all_of,
        }

    def _refuse(self, path: Path, keyword: str, beside: str = "") -> None:
        """Refuse a keyword where the client is strict; otherwise it is not enforced."""
        if self._strict:
            raise SchemaError(path, f"'{keyword}' is not permitted{beside}")

    def _alone(self, schema: Mapping[str, Any], keyword: str, path: Path) -> None:
        for other in schema:
            if other != keyword:
                self._refuse(path, other, f" beside '{keyword}'")

    def _reference(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        self._alone(schema, "$ref", path)
        reference = _of_type(schema, "$ref", str, "string", path)
        target = self._resolve(reference, path)
        # Truth values are one object wherever they stand, and mean the same.
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"d{len(self._names)}"
            at = (
                tuple(reference.removeprefix("#").strip("/").split("/")) if "/" in reference else ()
            )
            self._definitions[name] = self._schema(target, at, depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _resolve(self, reference: str, path: Path) -> Any:
        target = self._root
        steps = unquote(reference).split("/")
        if steps[0] != "#":
            raise SchemaError(path, f"reference {_shown(reference)} must begin with '#'")
        for step in steps[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise SchemaError(path, f"reference {_shown(reference)} points nowhere")
        return target

    def _enum(self, schema: dict[str, Any], path: Path, _: int) -> dict[str, Any]:
        values = _of_type(schema, "enum", list, "array", path)
        if not values:
            raise SchemaError(path, "'enum' must not be empty")
        return self._values(schema, "enum", values, path)

    def _const(self, schema: dict[str, Any], path: Path, _: int) -> dict[str, Any]:
        return self._values(schema, "const", [schema["const"]], path)

    def _values(
        self, schema: dict[str, Any], keyword: str, values: list[Any], path: Path
    ) -> dict[str, Any]:
        self._alone({key: None for key in schema if key != "type"}, keyword, path)
        types = self._types(schema, path)
        fitting = [value for value in values if not types or _is_of(value, types)]
        if not fitting:
            raise SchemaError(path, f"no value of '{keyword}' is of type {_listed(types)}")
        return {"enum": fitting}

    def _any_of(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        return self._branches(schema, "anyOf", path, depth)

    def _one_of(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        # Whether two branches admit one value is not decided here.
        self._refuse(path, "oneOf")
        return self._branches(schema, "oneOf", path, depth)

    def _branches(
        self, schema: dict[str, Any], keyword: str, path: Path, depth: int
    ) -> dict[str, Any]:
        branches = _of_type(schema, keyword, list, "array", path)
        if not branches:
            raise SchemaError(path, f"'{keyword}' must not be empty")
        self._alone({key: None for key in schema if key != "type"}, keyword, path)
        shared = {"type": schema["type"]} if "type" in schema else {}
        return {
            "anyOf": [
                self._schema(
                    shared | branch
                    if isinstance(branch, dict) and "$ref" not in branch
                    else branch,
                    (*path, keyword, index),
                    depth + 1,
                )
                for index, branch in enumerate(branches)
            ]
        }

    def _all_of(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        parts = _of_type(schema, "allOf", list, "array", path)
        self._alone(schema, "allOf", path)
        if len(parts) != 1:
            self._refuse(path, "allOf")
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        if not parts or rest:
            return self._typed(rest, path, depth)
        return self._schema(parts[0], (*path, "allOf", 0), depth + 1)

    def _types(self, schema: Mapping[str, Any], path: Path) -> tuple[str, ...]:
        """Return the types that are admitted; empty for any."""
        given = schema.get("type", [])
        types = [given] if isinstance(given, str) else given
        if not isinstance(types, list) or not all(kind in _TYPES for kind in types):
            raise SchemaError(
                (*path, "type"), f"{_shown(given)} is not valid under any of the given schemas"
            )
        if "type" in schema and not types:
            raise SchemaError((*path, "type"), "[] should be non-empty")
        return tuple(dict.fromkeys(types))

    def _typed(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        types = self._types(schema, path)
        if not types:
            # A schema that speaks of one type alone is taken to mean it.
            types = tuple(
                dict.fromkeys(_TYPE_OF_KEYWORD[key] for key in schema if key in _TYPE_OF_KEYWORD)
            )
        if not types:
            return {}
        build = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": self._number,
            "integer": self._integer,
        }
        built = [
            {"type": kind} | (build[kind](schema, path, depth) if kind in build else {})
            for kind in types
        ]
        return built[0] if len(built) == 1 else {"anyOf": built}

    def _object(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        given = _of_type(schema, "properties", dict, "object", path, default={})
        properties = {
            name: self._schema(inner, (*path, "properties", name), depth + 1)
            for name, inner in given.items()
        }
        required = _of_type(schema, "required", list, "array", path, default=[])
        additional: Any = schema.get("additionalProperties")
        open_to = {} if additional is None else additional
        if not isinstance(open_to, bool):
            open_to = self._schema(open_to, (*path, "additionalProperties"), depth + 1)
        for name in required:
            if not isinstance(name, str):
                raise SchemaError((*path, "required"), f"{_shown(name)} is not of type 'string'")
            if name in properties:
                continue
            if self._strict or open_to is False:
                raise SchemaError(path, f"Extra required key {_shown(name)} supplied")
            properties[name] = {} if open_to is True else open_to
        built: dict[str, Any] = {"properties": properties} if properties else {}
        if properties and required:
            built["required"] = list(dict.fromkeys(required))
        if additional is not None:
            built["additionalProperties"] = open_to
        return built

    def _array(self, schema: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = _bounds(schema, "minItems", "maxItems", path)
        least, most = built.get("minItems", 0), built.get("maxItems")
        given = _of_type(schema, "prefixItems", list, "array", path, default=[])
        first = [
            self._schema(inner, (*path, "prefixItems", index), depth + 1)
            for index, inner in enumerate(given[:most])
        ]
        if first:
            built["prefixItems"] = first
        others = schema.get("items")
        if others is False or len(given) > len(first) or (most is not None and most == len(first)):
            if least > len(first):
                problem = f"'minItems' is {least}, and only {len(first)} items are permitted"
                raise SchemaError(path, problem)
            built["items"] = False
        elif others is not None:
            built["items"] = self._schema(others, (*path, "items"), depth + 1)
        elif least > len(first):
            built["items"] = {}
        return built

    def _string(self, schema: dict[str, Any], path: Path, _: int) -> dict[str, Any]:
        pattern = _of_type(schema, "pattern", str, "string", path, default=None)
        if pattern is not None and (problem := pattern_problem(pattern)):
            if self._strict:
                raise SchemaError((*path, "pattern"), problem)
            pattern = None
        lengths = _bounds(schema, "minLength", "maxLength", path)
        form = schema.get("format")
        if pattern is not None:
            for keyword in lengths:
                self._refuse(path, keyword, " beside 'pattern'")
            return {"pattern": pattern}
        if form in _FORMATS:
            for keyword in lengths:
                self._refuse(path, keyword, " beside 'format'")
            return {"format": form}
        return lengths

    def _integer(self, schema: dict[str, Any], path: Path, _: int) -> dict[str, Any]:
        return self._limits(schema, path)

    def _number(self, schema: dict[str, Any], path: Path, _: int) -> dict[str, Any]:
        built = self._limits(schema, path)
        if between_decimals(built):
            # xgrammar would take the empty text for such a number.
            if self._strict:
                problem = f"no number with {DECIMALS} decimals lies within the bounds"
                raise SchemaError(path, problem)
            return {}
        return built

    def _limits(self, schema: dict[str, Any], path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            value = schema.get(keyword)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SchemaError((*path, keyword), f"{_shown(value)} is not of type 'number'")
            built[keyword] = value
        return built


def _of_type(
    schema: Mapping[str, Any], key: str, kind: type, name: str, path: Path, **default: Any
) -> Any:
    value = schema.get(key)
    if value is None and "default" in default:
        return default["default"]
    if type(value) is not kind:
        raise SchemaError((*path, key), f"{_shown(value)} is not of type '{name}'")
    return value


def _bounds(schema: Mapping[str, Any], least: str, most: str, path: Path) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for keyword in (least, most):
        value = schema.get(keyword)
        if value is None:
            continue
        if type(value) is not int:
            raise SchemaError((*path, keyword), f"{_shown(value)} is not of type 'integer'")
        if value < 0:
            raise SchemaError((*path, keyword), f"{value} is less than the minimum of 0")
        built[keyword] = value
    if built.get(least, 0) > built.get(most, built.get(least, 0)):
        raise SchemaError(path, f"'{least}' is greater than '{most}'")
    return built


def _is_of(value: Any, types: tuple[str, ...]) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case str():
            return "string" in types
        case list():
            return "array" in types
        case _:
            return "object" in types


def _listed(types: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in types)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
