"""docs/concepts/keys.md against the code: every field in its class, every reason of a bypass."""

import re
from pathlib import Path

from gateway.protocol.endpoints.key_fields import Field
from gateway.protocol.endpoints.registry import SPECS
from policies.decision import Endpoint

PAGE = (Path(__file__).parents[2] / "docs/concepts/keys.md").read_text()


def table(*head: str) -> list[list[str]]:
    """Return the rows of the table with this head."""
    _, _, rest = PAGE.partition(f"| {' | '.join(head)} |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def class_of(field: Field) -> str:
    if field.refusal is not None:
        return "bypass"
    return "key" if field.keyed else "neutral"


def test_each_field_is_documented_in_its_class():
    documented = {
        (words(path)[0], kind): words(fields)
        for path, kind, fields in table("Path", "Class", "Fields")
    }
    expected = {
        (endpoint.value, kind): names
        for endpoint, spec in SPECS.items()
        for kind in ("key", "neutral", "bypass")
        if (names := sorted(name for name, one in spec.fields.items() if class_of(one) == kind))
    }
    assert documented == expected


def test_each_bypass_is_documented_with_its_reason():
    documented = {
        words(field)[0]: words(reason) for field, _, reason in table("Field", "Bypasses", "Reason")
    }
    bypassing = {
        name
        for spec in SPECS.values()
        for name, one in spec.fields.items()
        if class_of(one) == "bypass"
    }
    assert set(documented) == bypassing
    values = {
        "store": True,
        "web_search_options": {},
        "model": "x-search-preview",
        "tools": [{"type": "mcp"}],
        "input": [{"type": "item_reference", "id": "x"}],
        "background": True,
        "conversation": "c",
        "previous_response_id": "r",
        "prompt": {"id": "p"},
    }
    for name, value in values.items():
        endpoint = Endpoint.CHAT if name == "web_search_options" else Endpoint.RESPONSES
        reason = SPECS[endpoint].bypass_reason({"model": "m", "store": False, name: value})
        assert reason in documented[name], name
