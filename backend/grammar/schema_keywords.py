"""The keywords of a JSON schema that are enforced, and a client's mistakes in them. Pure."""

from typing import Any

# For each keyword the type of its value ("": any, or a schema) and of the values it constrains.
KEYWORDS = {
    "properties": ("object", "object"),
    "required": ("array", "object"),
    "additionalProperties": ("", "object"),
    "items": ("", "array"),
    "prefixItems": ("array", "array"),
    **dict.fromkeys(("minItems", "maxItems"), ("integer", "array")),
    **dict.fromkeys(("pattern", "format"), ("string", "string")),
    **dict.fromkeys(("minLength", "maxLength"), ("integer", "string")),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("number", "number")
    ),
    "$ref": ("string", ""),
    "enum": ("array", ""),
    "const": ("", ""),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), ("array", "")),
    "type": ("", ""),
}
TYPES = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
NOT_ENFORCED = frozenset(
    {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"patternProperties", "propertyNames", "minProperties", "maxProperties"}
    | {"unevaluatedProperties", "unevaluatedItems", "contains", "minContains", "maxContains"}
    | {"uniqueItems", "multipleOf", "$dynamicRef", "$recursiveRef"}
)

MOST_DEPTH = 32
Schema = dict[str, Any]
Path = tuple[str | int, ...]


class SchemaError(ValueError):
    """The schema cannot be enforced: ``path`` leads to where, ``problem`` says why."""

    def __init__(self, path: Path, problem: str) -> None:
        """``problem`` is a sentence without its end."""
        super().__init__(f"In context={path!r}, {problem}.")


def value_of(schema: Schema, keyword: str, path: Path, default: Any = None) -> Any:
    """Return the value of ``keyword``. Raises SchemaError where it is not of its type."""
    value = schema.get(keyword, default)
    name = KEYWORDS[keyword][0]
    if name and keyword in schema and not TYPES[name](value):
        raise SchemaError((*path, keyword), f"{shown(value)} is not of type '{name}'")
    return value


def types_of(schema: Schema, path: Path) -> tuple[str, ...]:
    """Return the types that are admitted; empty for any."""
    given = schema.get("type", ())
    types = [given] if isinstance(given, str) else given
    known = isinstance(types, list | tuple) and all(
        isinstance(kind, str) and kind in TYPES for kind in types
    )
    if not known:
        problem = f"{shown(given)} is not valid under any of the given schemas"
        raise SchemaError((*path, "type"), problem)
    if given == []:
        raise SchemaError((*path, "type"), "[] should be non-empty")
    return tuple(dict.fromkeys(types))


def shown(value: Any) -> str:
    """Return ``value`` for an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
