"""Values by schema: a Hypothesis strategy for whatever a published field may hold.

Values are of the schema's types, enumerations and shapes; bounds and formats are not kept, since
the gateway leaves them to the upstream. Schemas that go deeper than ``DEPTH`` end in short words.
"""

from typing import Any

from hypothesis import strategies as st
from openai_schema import resolved

DEPTH = 4
WORDS = st.text("ab :é", max_size=3)
NUMBERS = st.integers(-2, 40) | st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e-3, 2**53 + 1, 2**65])

SIMPLE = {"null": st.none(), "boolean": st.booleans(), "integer": NUMBERS, "number": NUMBERS}


def values(published: dict[str, Any], schema: dict[str, Any], depth: int = DEPTH) -> Any:
    """Return the strategy for values of a schema."""
    schema = resolved(published, schema)
    if schema.get("nullable"):
        return st.none() | values(published, {**schema, "nullable": False}, depth)
    if (enum := schema.get("enum")) is not None:
        return st.sampled_from(enum)
    if "const" in schema:
        return st.just(schema["const"])
    ways = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if ways:
        return st.one_of([values(published, way, depth) for way in ways]) if depth else WORDS
    match schema.get("type"):
        case str(kind) if kind in SIMPLE:
            return SIMPLE[kind]
        case "array" if depth:
            items = values(published, schema.get("items", {}), depth - 1)
            return st.lists(items, max_size=2)
        case "object" | None if depth and (schema.get("properties") or "allOf" in schema):
            return _objects(published, schema, depth)
        case "object":
            return st.dictionaries(WORDS, WORDS, max_size=2)
        case _:
            return WORDS


def _objects(published: dict[str, Any], schema: dict[str, Any], depth: int) -> Any:
    required = set(schema.get("required", ()))
    members = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        whole = resolved(published, part)
        required |= set(whole.get("required", ()))
        members |= whole.get("properties", {})
    strategies = {name: values(published, member, depth - 1) for name, member in members.items()}
    return st.fixed_dictionaries(
        {name: one for name, one in strategies.items() if name in required},
        optional={name: one for name, one in strategies.items() if name not in required},
    )
