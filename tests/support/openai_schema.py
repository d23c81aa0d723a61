"""OpenAI's published API description: its request schemas, with every reference resolved."""

import os
from pathlib import Path
from typing import Any

import orjson

from policies.decision import Endpoint

DATA = Path(os.environ.get("REFRAIN_DATA") or Path(__file__).parents[2] / "../shared/data")
DESCRIPTION = DATA / "openai-openapi.json"
_OTHERS = frozenset({Endpoint.RERANK, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
"""Reranking is Cohere's and Jina's, messages are Anthropic's."""
PUBLISHED = tuple(each for each in Endpoint if each not in _OTHERS)
"""The endpoints that OpenAI has."""
ABSENT = f"OpenAI's API description is not at {DESCRIPTION}"


def description() -> dict[str, Any]:
    """Read the description; the file must be there."""
    published: dict[str, Any] = orjson.loads(DESCRIPTION.read_bytes())
    return published


def request_schema(published: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Return the schema of the endpoint's request body."""
    post = published["paths"][endpoint.value.removeprefix("/v1")]["post"]
    schema: dict[str, Any] = post["requestBody"]["content"]["application/json"]["schema"]
    return schema


def resolved(published: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow references until there is none."""
    while (reference := schema.get("$ref")) is not None:
        schema = published
        for step in reference.removeprefix("#/").split("/"):
            schema = schema[step]
    return schema


def properties(published: dict[str, Any], schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every property a value of the schema may have, from all that it is made of."""
    schema = resolved(published, schema)
    found: dict[str, dict[str, Any]] = {}
    for way in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(way, ()):
            found |= properties(published, part)
    return found | schema.get("properties", {})
