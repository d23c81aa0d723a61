"""From a client's JSON schema to one that xgrammar enforces whole. Pure.

xgrammar ignores many keywords without a word. A strict client gets such a keyword and its path
refused. Otherwise the keyword is left out, and the answer is valid under the rest.
"""

import re
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any
from urllib.parse import unquote

import orjson

from backend.grammar.schema_joins import SchemaJoins
from backend.grammar.schema_keywords import (
    KEYWORDS,
    MOST_DEPTH,
    NOT_ENFORCED,
    Path,
    Schema,
    SchemaError,
    shown,
    types_of,
    value_of,
)

MOST_BYTES = 64 * 1024
MOST_ENFORCED_BYTES = 4 * MOST_BYTES
"""What is enforced may be longer: a schema that refers to its own parts repeats them."""
MOST_SUBSCHEMAS = 2_000
MOST_COUNT = 2**31
"""A bound may name at most so many items or characters."""
DECIMALS = 6
"""The most that xgrammar writes in a bounded number."""

_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
_LOOKAROUND = re.compile(r"\(\?<?[=!]|\\[bB]")
# An escape, or a class; one that is not closed goes to the end, or looking for it would take time
# quadratic in the pattern's length.
_CLASS = re.compile(r"\\.|\[(\^?)((?:\\.|[^\]\\])*+)(?:\]|\\?\Z)", re.DOTALL)
# Outside of a class a pattern's characters stand in the JSON text as they are.
_UNWRITABLE = re.compile(r'"|\\[\\nrtfvcxu0]|[\x00-\x1f]')
# xgrammar takes what JSON would escape out of a class, unless the class has nothing else.
_ESCAPED = r'(?:"|\\["\\]|\\(?:x|u00|u\{0*)(?:22|5[cC]|[01]?[0-9a-fA-F])\}?)'
_UNWRITABLE_IN_CLASS = re.compile(rf"\\[nrtfvc0]|[\x00-\x1f]|\A(?:{_ESCAPED}(?:-{_ESCAPED})?)++\Z")

# One character or class, perhaps repeated, is the whole pattern.
_REPEATED = re.compile(
    r"\^?(?P<what>\\[dswDSW]|\[(?:\\.|[^\]\\])+\]|[0-9A-Za-z])"
    r"(?P<sign>[*+?]|\{(?P<fewest>\d+)(?P<comma>,)?(?P<most>\d+)?\})?\$?"
)

_INDEX = re.compile("[0-9]{1,9}")


def enforceable(schema: Any, *, strict: bool, left_out: list[str] | None = None) -> Schema:
    """Return the schema that is enforced. Raises SchemaError.

    ``left_out`` gets a text for each keyword that is not, where the client is not ``strict``.
    """
    size = len(orjson.dumps(schema))
    if size > MOST_BYTES:
        raise SchemaError((), f"the schema has {size} bytes, of which {MOST_BYTES} are allowed")
    translation = _Translation(schema, None if strict else [] if left_out is None else left_out)
    enforced = translation.schema(schema, (), 0)
    if translation.definitions:
        enforced["$defs"] = translation.definitions
    size = len(orjson.dumps(enforced))
    if size > MOST_ENFORCED_BYTES:
        problem = f"with what it refers to the schema has {size} bytes"
        raise SchemaError((), f"{problem}, of which {MOST_ENFORCED_BYTES} are allowed")
    return enforced


class _Translation:
    """Translates one schema; each method takes the keywords that are known and not null."""

    def __init__(self, root: Any, left_out: list[str] | None) -> None:
        self._root = root
        self._left_out = left_out
        self._joins = SchemaJoins(self._resolve, self._refuse)
        self._num_subschemas = 0
        self._names: dict[int, str] = {}
        """By the identity of what is referred to, which has many spellings."""
        self.definitions: dict[str, Schema] = {}

    def schema(self, schema: Any, path: Path, depth: int) -> Schema:
        self._num_subschemas += 1
        if depth > MOST_DEPTH or self._num_subschemas > MOST_SUBSCHEMAS:
            limit = f"{MOST_DEPTH} levels" if depth > MOST_DEPTH else f"{MOST_SUBSCHEMAS} schemas"
            raise SchemaError(path, f"the schema is larger than the {limit} that are allowed")
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise SchemaError(path, f"{shown(schema)} is not of type 'object', 'boolean'")
        for keyword, value in schema.items():
            if keyword in NOT_ENFORCED and value not in (False, None):
                self._refuse(path, f"'{keyword}' is not permitted")
        given = {
            keyword: value
            for keyword, value in schema.items()
            if keyword in KEYWORDS and (value is not None or keyword == "const")
        }
        combinations: dict[str, Callable[[Schema, Path, int], Schema]] = {
            "$ref": self._reference,
            "enum": self._values,
            "const": self._values,
            "anyOf": self._branches,
            "oneOf": self._branches,
            "allOf": self._all_of,
        }
        for keyword, translate in combinations.items():
            if keyword in given:
                return translate(given, path, depth)
        return self._typed(given, path, depth)

    def _refuse(self, path: Path, problem: str) -> None:
        """Refuse what is not enforced where the client is strict."""
        if self._left_out is None:
            raise SchemaError(path, problem)
        self._left_out.append(f"{'.'.join(map(str, path)) or 'schema'}: {problem}")

    def _reference(self, schema: Schema, path: Path, depth: int) -> Schema:
        reference, target = schema["$ref"], self._resolve(schema, path)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if beside.keys() == {"type"} and isinstance(target, dict):
            # The target may refer to itself, and is written once where it says the same.
            said = types_of(target, path)
            beside = {} if said and set(said) <= set(types_of(schema, path)) else beside
        if beside:
            return self._whole(self._joins.join(beside, target, path), path, depth)
        # Truth values are one object wherever they stand, and mean the same.
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"d{len(self._names)}"
            at = tuple(reference.split("/")[1:])
            self.definitions[name] = self.schema(target, at, depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _resolve(self, schema: Schema, path: Path) -> Any:
        """Return what ``$ref``, a JSON pointer (RFC 6901) in a fragment, leads to."""
        reference = value_of(schema, "$ref", path)
        first, *steps = unquote(reference).split("/")
        if first != "#":
            raise SchemaError(path, f"reference {shown(reference)} must begin with '#'")
        target = self._root
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and _INDEX.fullmatch(key) and int(key) < len(target):
                target = target[int(key)]
            else:
                raise SchemaError(path, f"reference {shown(reference)} points nowhere")
        return target

    def _values(self, schema: Schema, path: Path, _: int) -> Schema:
        keyword = "enum" if "enum" in schema else "const"
        values = value_of(schema, "enum", path) if keyword == "enum" else [schema["const"]]
        if not values:
            raise SchemaError(path, "'enum' must not be empty")
        beside = {key: value for key, value in schema.items() if key != keyword}
        fitting = [each for each in values if self._joins.holds(each, beside, path)]
        if not fitting:
            listed = ", ".join(f"'{key}'" for key in beside)
            raise SchemaError(path, f"no value of '{keyword}' is valid by {listed}")
        return {"enum": fitting}

    def _branches(self, schema: Schema, path: Path, depth: int) -> Schema:
        keyword = "anyOf" if "anyOf" in schema else "oneOf"
        if keyword == "oneOf":  # whether two branches admit one value is not decided here
            self._refuse(path, "'oneOf' is not permitted")
        branches = value_of(schema, keyword, path)
        if not branches:
            raise SchemaError(path, f"'{keyword}' must not be empty")
        shared = {key: value for key, value in schema.items() if key != keyword}
        built = []
        for index, each in enumerate(branches):
            at = (*path, keyword, index)
            if (joined := self._joins.join(shared, each, at)) is not False:
                built.append(self.schema(joined, at, depth + 1))
        if not built:
            raise SchemaError(path, f"no branch of '{keyword}' admits a value")
        return {"anyOf": built}

    def _all_of(self, schema: Schema, path: Path, depth: int) -> Schema:
        whole: Any = {key: value for key, value in schema.items() if key != "allOf"}
        for index, part in enumerate(value_of(schema, "allOf", path)):
            at = (*path, "allOf", index)
            # An error in the part is told with the part's place.
            whole = self._joins.join(whole, part, at)
        return self._whole(whole, path, depth)

    def _whole(self, joined: Any, path: Path, depth: int) -> Schema:
        if joined is False:
            raise SchemaError(path, "no value is valid under all that is said here")
        return self.schema(joined, path, depth + 1)

    def _typed(self, schema: Schema, path: Path, depth: int) -> Schema:
        # A schema that speaks of one type alone is taken to mean it.
        spoken_of = (KEYWORDS[keyword][1] for keyword in schema)
        types = types_of(schema, path) or dict.fromkeys(kind for kind in spoken_of if kind)
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
        return {"anyOf": built} if len(built) > 1 else {} if not built else built[0]

    def _object(self, schema: Schema, path: Path, depth: int) -> Schema:
        properties = {
            name: self.schema(inner, (*path, "properties", name), depth + 1)
            for name, inner in value_of(schema, "properties", path, {}).items()
            if inner is not False
        }
        required = value_of(schema, "required", path, [])
        additional = schema.get("additionalProperties", True)
        if not isinstance(additional, bool):
            additional = self.schema(additional, (*path, "additionalProperties"), depth + 1)
        for name in required:
            if not isinstance(name, str):
                raise SchemaError((*path, "required"), f"{shown(name)} is not of type 'string'")
            if name not in properties:
                if self._left_out is None or additional is False:
                    raise SchemaError(path, f"Extra required key {shown(name)} supplied")
                properties[name] = {} if additional is True else additional
        built: Schema = {"properties": properties} if properties else {}
        if required:
            built["required"] = list(dict.fromkeys(required))
        if "additionalProperties" in schema:
            built["additionalProperties"] = additional
        return built

    def _array(self, schema: Schema, path: Path, depth: int) -> Schema:
        built = _bounds(schema, "minItems", "maxItems", path)
        least, most = built.get("minItems", 0), built.get("maxItems")
        given = value_of(schema, "prefixItems", path, [])
        first = [
            self.schema(inner, (*path, "prefixItems", index), depth + 1)
            for index, inner in enumerate(given[:most])
        ]
        if first:
            built["prefixItems"] = first
        others = schema.get("items")
        if others is False or len(given) > len(first) or most == len(first):
            if least > len(first):
                problem = f"'minItems' is {least}, and only {len(first)} items are permitted"
                raise SchemaError(path, problem)
            built["items"] = False
        elif others is not None:
            built["items"] = self.schema(others, (*path, "items"), depth + 1)
        elif least > len(first):
            built["items"] = {}
        return built

    def _string(self, schema: Schema, path: Path, _: int) -> Schema:
        lengths = _bounds(schema, "minLength", "maxLength", path)
        form: Schema = {}
        pattern = value_of(schema, "pattern", path)
        if pattern is not None and (problem := _pattern_problem(pattern)):
            self._refuse((*path, "pattern"), problem)
        elif pattern is not None:
            form = {"pattern": pattern}
        if value_of(schema, "format", path) in _FORMATS and not form:
            form = {"format": schema["format"]}
        if not form:
            return lengths
        if (
            lengths
            and "pattern" in form
            and (repeated := _repeated(form["pattern"], lengths, path))
        ):
            return {"pattern": repeated}
        [first] = form
        also = ("format",) if first != "format" and schema.get("format") in _FORMATS else ()
        for other in (*lengths, *also):
            self._refuse(path, f"'{other}' is not permitted beside '{first}'")
        return form

    def _integer(self, schema: Schema, path: Path, _: int) -> Schema:
        limits = (keyword for keyword in schema if KEYWORDS[keyword][1] == "number")
        return {keyword: value_of(schema, keyword, path) for keyword in limits}

    def _number(self, schema: Schema, path: Path, _: int) -> Schema:
        limits = self._integer(schema, path, 0)
        if _between_decimals(limits):
            # xgrammar would take the empty text for such a number.
            self._refuse(path, f"no number with {DECIMALS} decimals lies within the bounds")
            return {}
        return limits


def _bounds(schema: Schema, least: str, most: str, path: Path) -> Schema:
    built = {
        keyword: int(value_of(schema, keyword, path))
        for keyword in (least, most)
        if keyword in schema
    }
    for keyword, value in built.items():
        if value < 0:
            raise SchemaError((*path, keyword), f"{value} is less than the minimum of 0")
        if value > MOST_COUNT:
            problem = f"{shown(schema[keyword])} is more than the {MOST_COUNT} that are allowed"
            raise SchemaError((*path, keyword), problem)
    if least in built and most in built and built[least] > built[most]:
        raise SchemaError(path, f"'{least}' is greater than '{most}'")
    return built


def _repeated(pattern: str, lengths: Mapping[str, int], path: Path) -> str | None:
    """Return the pattern of as many characters, if it is one of a class, repeated."""
    found = _REPEATED.fullmatch(pattern)
    if found is None:
        return None
    sign, fewest, comma, most = found["sign"], found["fewest"], found["comma"], found["most"]
    least = int(fewest) if fewest else int(sign == "+" or sign is None)
    limits = [lengths.get("maxLength"), int(most) if most else None]
    if sign == "?" or sign is None or (fewest and not comma):
        limits.append(least or 1)
    least = max(least, lengths.get("minLength", 0))
    bound = min((each for each in limits if each is not None), default=None)
    if bound is not None and bound < least:
        raise SchemaError(path, "no text of these lengths matches 'pattern'")
    return f"^{found['what']}{{{least},{'' if bound is None else bound}}}$"


def _between_decimals(limits: Mapping[str, int | float]) -> bool:
    """Say whether there are numbers within ``limits``, but none of at most six decimals."""
    exact = {keyword: Decimal(repr(limit)) for keyword, limit in limits.items()}
    lows = [(exact[key], key == "exclusiveMinimum") for key in exact if key.endswith("inimum")]
    highs = [(exact[key], key == "exclusiveMaximum") for key in exact if key.endswith("aximum")]
    if not lows or not highs:
        return False
    lowest, above = max(lows)
    highest, below = min(highs, key=lambda high: (high[0], not high[1]))
    if lowest > highest or (lowest == highest and (above or below)):
        return False  # there are none
    first = _scaled(lowest, ROUND_FLOOR) + 1 if above else _scaled(lowest, ROUND_CEILING)
    last = _scaled(highest, ROUND_CEILING) - 1 if below else _scaled(highest, ROUND_FLOOR)
    return first > last


def _scaled(limit: Decimal, rounding: str) -> Decimal:
    return limit.scaleb(DECIMALS).to_integral_value(rounding)


def _pattern_problem(pattern: str) -> str | None:
    """Say what of ``pattern`` cannot be enforced: JSON would have to write it with a backslash."""
    if _LOOKAROUND.search(pattern):
        return "lookarounds and word boundaries are not permitted"
    classes = [content for negated, content in _CLASS.findall(pattern) if not negated]
    outside = _CLASS.sub(lambda found: found[0] if found[0][0] == "\\" else "", pattern)
    if _UNWRITABLE.search(outside) or any(map(_UNWRITABLE_IN_CLASS.search, classes)):
        return "quotes, backslashes, control characters and character codes are not permitted"
    return None
