"""Isolation: requests that differ in what decides the answer share no key.

The fields and their values are drawn from OpenAI's published schema: each pair of requests differs
in one field.
"""

import itertools
import json
from typing import Any

import pytest
from example_requests import planned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_schema import ABSENT, DESCRIPTION, PUBLISHED, description, properties, request_schema
from schema_values import values

from gateway.cache.plan import Plan
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.exact_json import parse_body
from policies.decision import Endpoint

MANY = settings(database=None, suppress_health_check=list(HealthCheck))
EXAMPLES = max(12, settings().max_examples // 50)
ABSENCE = object()
BODIES: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [{"role": "user", "content": "q"}]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "q"},
    Endpoint.EMBEDDINGS: {"model": "m", "input": "q"},
    Endpoint.RESPONSES: {"model": "m", "input": "q", "store": False},
}


def meaning(value: Any, text: str = "") -> Any:
    """Return what is equal for two values exactly if no upstream tells them apart.

    ``text`` names the kind of a text part, where a message may be one or may be its text.
    """
    match value:
        case bool() | str() | None:
            return (type(value), value)
        case int() | float():
            return ("number", value)
        case list():
            return [meaning(item, text) for item in value]
    members = dict(value)
    match members.get("content"):
        case [{"type": kind, "text": str(only)} as part] if text and kind == text:
            if len(part) == 2:
                members["content"] = only
    return {name: meaning(item) for name, item in members.items()}


def in_order(value: Any) -> Any:
    """Return what is equal for two meanings only if their keys have one order."""
    match value:
        case dict():
            return [(name, in_order(item)) for name, item in value.items()]
        case list():
            return [in_order(item) for item in value]
    return value


def meant(endpoint: Endpoint, field: str, value: Any) -> Any:
    if value is ABSENCE:
        return value
    if (endpoint, field) == (Endpoint.EMBEDDINGS, "input"):
        match value:
            case [str() | list() as only]:
                value = only
    folds = {(Endpoint.CHAT, "messages"): "text", (Endpoint.RESPONSES, "input"): "input_text"}
    kind = folds.get((endpoint, field), "")
    return meaning(value, kind) if isinstance(value, list) else meaning(value)


def plan_with(endpoint: Endpoint, field: str, value: Any) -> Plan | None:
    body = {**BODIES[endpoint], field: value}
    if value is ABSENCE:
        del body[field]
    # Whether it may be asked by meaning is for other tests; here all is exact.
    plan = planned(parse_body(json.dumps(body).encode()), endpoint=endpoint, semantic=False)
    return plan if isinstance(plan, Plan) else None


def check_pairs(endpoint: Endpoint, field: str, drawn: Any) -> int:
    """Check requests that differ in one field; return how many pairs of them were looked up."""
    known = SPECS[endpoint].fields[field]
    pairs = 0

    @settings(MANY, max_examples=EXAMPLES)
    @given(st.lists(drawn, min_size=4, max_size=6))
    def check(found):
        nonlocal pairs
        plans = [(value, plan_with(endpoint, field, value)) for value in (ABSENCE, *found)]
        for (one, plan), (other, peer) in itertools.combinations(plans, 2):
            if plan is None or peer is None:
                assert known.refusal is not None
                continue
            one_means, other_means = (meant(endpoint, field, value) for value in (one, other))
            same = one_means == other_means
            pairs += not same
            if same and in_order(one_means) != in_order(other_means):
                continue  # where the order of keys counts is for other tests
            assert (plan.key == peer.key) == (same or not known.keyed)

    check()
    return pairs


@pytest.mark.skipif(not DESCRIPTION.is_file(), reason=ABSENT)
def test_of_ten_thousand_pairs_that_differ_in_one_field_none_shares_a_key_but_for_neutral_ones():
    published = description()
    pairs = sum(
        check_pairs(endpoint, field, values(published, schema))
        for endpoint in PUBLISHED
        for field, schema in properties(published, request_schema(published, endpoint)).items()
    )
    assert pairs >= 10_000
