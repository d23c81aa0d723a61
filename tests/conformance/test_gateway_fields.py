"""Every field that OpenAI publishes for a cached endpoint is classified."""

import copy

import pytest
from openai_schema import (
    ABSENT,
    DESCRIPTION,
    PUBLISHED,
    description,
    properties,
    request_schema,
    resolved,
)

from gateway.protocol.endpoints.registry import SPECS
from policies.decision import Endpoint

pytestmark = pytest.mark.skipif(not DESCRIPTION.is_file(), reason=ABSENT)


@pytest.fixture(scope="module")
def published():
    return description()


def unclassified(published, endpoint: Endpoint) -> set[str]:
    return set(properties(published, request_schema(published, endpoint))) - set(
        SPECS[endpoint].fields
    )


@pytest.mark.parametrize("endpoint", PUBLISHED)
def test_every_published_field_is_classified(endpoint, published):
    assert len(properties(published, request_schema(published, endpoint))) >= 5
    assert not unclassified(published, endpoint)


@pytest.mark.parametrize(
    ("endpoint", "more"),
    [
        (Endpoint.CHAT, set()),
        (Endpoint.EMBEDDINGS, set()),
        (Endpoint.RESPONSES, set()),
        # Not published for completions, but with one meaning wherever servers take them.
        (
            Endpoint.COMPLETIONS,
            {
                "metadata",
                "prompt_cache_key",
                "prompt_cache_options",
                "prompt_cache_retention",
                "safety_identifier",
                "service_tier",
                "store",
            },
        ),
    ],
)
def test_nothing_else_is_classified_but_for_what_is_said_here(endpoint, more, published):
    fields = set(SPECS[endpoint].fields)
    assert fields - set(properties(published, request_schema(published, endpoint))) == more


@pytest.mark.parametrize("endpoint", PUBLISHED)
@pytest.mark.parametrize("way", ["properties", "allOf", "reference"])
def test_the_check_finds_an_invented_field_wherever_a_schema_may_hold_it(endpoint, way, published):
    changed = copy.deepcopy(published)
    schema = resolved(changed, request_schema(changed, endpoint))
    invented = {"type": "object", "properties": {"of_tomorrow": {"type": "string"}}}
    match way:
        case "properties":
            schema.setdefault("properties", {})["of_tomorrow"] = {"type": "string"}
        case "allOf":
            schema.setdefault("allOf", []).append({"anyOf": [invented]})
        case "reference":
            changed["components"]["schemas"]["Invented"] = invented
            reference = {"$ref": "#/components/schemas/Invented"}
            schema.setdefault("allOf", []).append(reference)
    assert unclassified(changed, endpoint) == {"of_tomorrow"}


def test_tools_that_openai_runs_are_told_from_those_of_the_client(published):
    """All published kinds of tool are looked at: a new one bypasses until it is known."""
    tools = resolved(published, {"$ref": "#/components/schemas/Tool"})["oneOf"]
    kinds = [kind for tool in tools for kind in properties(published, tool)["type"].get("enum", ())]
    looked_up = {
        kind
        for kind in kinds
        if SPECS[Endpoint.RESPONSES].bypass_reason(
            {"model": "m", "store": False, "tools": [{"type": kind}]}
        )
        is None
    }
    assert looked_up == {"function", "custom"}
    assert len(kinds) >= 16
