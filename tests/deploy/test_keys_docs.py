"""docs/keys.md against the code: every field in its class, every reason of a bypass."""

import re
from pathlib import Path

from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.key_fields import Role
from policies.decision import Endpoint

PAGE = (Path(__file__).parents[2] / "docs/keys.md").read_text()


def table(*head: str) -> list[list[str]]:
    """Return the rows of the table with this head."""
    _, _, rest = PAGE.partition(f"| {' | '.join(head)} |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_each_field_is_documented_in_its_class():
    documented = {
        (words(path)[0], kind): words(fields)
        for path, kind, fields in table("Path", "Class", "Fields")
    }
    expected = {
        (endpoint.value, role.value): names
        for endpoint, spec in SPECS.items()
        for role in Role
        if (names := sorted(name for name, field in spec.fields.items() if field.role is role))
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
        if one.role is Role.BYPASS
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
