"""The spans of a real semantic hit: embedding, candidate and verification."""

import pytest
from otlp_receiver import receiver

pytest_plugins = ["running_verifier"]

STORED, ASKED = "How do I reset my password?", "I want to reset my password, how?"
POLICY = """
version: 1
default: {exact: on, semantic: {max_wrong_hits: 20%}, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
async def otlp(monkeypatch):
    async with receiver() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{one.url}/v1/traces")
        yield one


async def test_a_semantic_hit_shows_what_was_found_and_how_sure_it_is(
    start_gateway, verifying_service, lenient_data, tmp_path, otlp
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(
        semantic_socket=verifying_service[0], data_dir=lenient_data, policy=policy
    )
    while (await gateway.get("/readyz")).status != 200:
        pass
    assert "fwd=miss" in (await gateway.ask(STORED)).cache
    while "hit" not in (await gateway.ask(ASKED)).cache:
        pass
    await gateway.stop()

    requests = otlp.named("POST /v1/chat/completions")
    hit = next(one for one in requests if one.attributes.get("refrain.reason") == "semantic")
    assert 0.5 < hit.attributes["refrain.similarity"] <= 1
    assert 0 <= hit.attributes["refrain.semantic_score"] <= 1
    assert hit.attributes["refrain.semantic_threshold"] == 0.0
    steps = [span for span in otlp.spans if span.ids[2] == hit.ids[1]]
    assert [span.name for span in steps] == [
        "refrain.lookup",
        "refrain.pii_scan",
        "refrain.embedding",
        "refrain.lookup",
        "refrain.verification",
    ]
    _, _, embedding, candidate, verification = steps
    assert embedding.attributes["refrain.candidates"] == 1
    assert embedding.attributes["refrain.similarity"] == hit.attributes["refrain.similarity"]
    assert candidate.attributes == {"refrain.lookup": "candidate", "refrain.found": True}
    assert verification.attributes["refrain.verification"] == "hit"
    score = verification.attributes["refrain.semantic_score"]
    assert score == hit.attributes["refrain.semantic_score"]
    assert not [body for _, body in otlp.bodies if b"password" in body]
