"""A rule's error budget decides on a real semantic hit, and is seen wherever one looks."""

import orjson
import pytest

from gateway.cli.operator.admin_api import report_text
from gateway.semantic.calibrations import Traffic

pytest_plugins = ["running_verifier"]

STORED, ASKED = "How do I reset my password?", "I want to reset my password, how?"
POLICY = """
version: 1
rules:
  - {name: strict, match: {model: strict}, semantic: {max_wrong_hits: 0.1%}}
default: {exact: on, semantic: {max_wrong_hits: 20%}, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
def noted(monkeypatch):
    """What gateways that start later note. A pipeline keeps the bound method, so patch it first."""
    candidates = []
    monkeypatch.setattr(Traffic, "note", lambda _traffic, candidate: candidates.append(candidate))
    return candidates


@pytest.fixture
async def gateway(start_gateway, verifying_service, lenient_data, tmp_path):
    """A gateway whose verifier is calibrated to take any score at 20 %, and none at 0.1 %."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    gateway = await start_gateway(
        semantic_socket=verifying_service[0],
        semantic_timeout=30.0,
        verifier_timeout=30.0,
        data_dir=lenient_data,
        policy=policy,
        decision_log=tmp_path / "decisions.jsonl",
    )
    while (await gateway.get("/readyz")).status != 200:
        pass
    return gateway


async def test_a_budget_decides_and_is_seen_everywhere(gateway, tmp_path, verifying_service):
    for model in ("m", "strict"):
        assert "fwd=miss" in (await gateway.ask(STORED, model=model)).cache
    assert "; hit; " in (await gateway.ask(ASKED, model="m")).cache
    assert "fwd=miss" in (await gateway.ask(ASKED, model="strict")).cache

    ready = (await gateway.get("/readyz")).json
    assert ready["verifier"] == {
        "kind": "model",
        "name": "tiny",
        "digest": verifying_service[1][:16],
        "calibration": "own",
        "calibration_hits": 100,
    }
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_semantic_candidates_total{result="hit"} 1.0' in page
    assert 'refrain_semantic_candidates_total{result="budget"} 1.0' in page
    assert "refrain_semantic_score_count 2.0" in page

    await gateway.stop()
    lines = [
        orjson.loads(line) for line in (tmp_path / "decisions.jsonl").read_bytes().splitlines()
    ]
    (found,) = [line for line in lines if line["reason"] == "semantic"]
    assert 0 <= found["score"] <= 1
    assert found["threshold"] == 0.0
    assert found["decision"]["max_wrong_hits"] == 0.2


async def test_the_surest_candidate_of_a_lookup_is_counted_and_no_exact_hit(noted, gateway):
    for _ in range(3):
        await gateway.ask(STORED, model="m")
    assert noted == []
    assert "; hit; " in (await gateway.ask(ASKED, model="m")).cache
    assert "; hit; " in (await gateway.ask(ASKED.upper(), model="m")).cache
    first, again = noted
    assert first.features.characters == len(ASKED)
    assert first.min_similarity == 0.75
    assert first.pair == again.pair


async def test_traffic_unlike_the_calibration_is_seen_everywhere(gateway, monkeypatch):
    class Far:
        def distances(self):
            return {"cosine": 0.41, "score": 0.1}

    monkeypatch.setattr(Traffic, "_current", lambda _traffic: Far())
    text = "cosine 0.41 (limit 0.25); calibrate on your own traffic"
    ready = (await gateway.get("/readyz")).json
    assert ready["verifier"]["unlike"].endswith(text)
    report = (await gateway.get("/admin/semantic")).json
    assert report["unlike"] == ready["verifier"]["unlike"]
    assert report["distances"] == {"cosine": 0.41, "score": 0.1}
    assert next(report_text(report)) == report["unlike"]
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_semantic_calibration_distance{feature="cosine"} 0.41' in page


def warned(caplog):
    """Lines about budgets; the gateway has started while the test was set up."""
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    told = [line for line in records if "no threshold keeps the budget" in line.getMessage()]
    return [(line.levelname, "of strict 0.1%:" in line.getMessage()) for line in told]


async def test_a_budget_that_nothing_keeps_is_told(gateway, caplog, tmp_path):
    reply = await gateway.get("/readyz")
    assert reply.status == 200
    assert reply.json["budgets_not_kept"] == {"strict": 0.001}
    while not warned(caplog):
        await gateway.get("/readyz")
    rules = (await gateway.get("/admin/semantic")).json["rules"]
    assert list(rules) == ["strict"]
    assert rules["strict"]["budget_kept"] is False
    assert rules["strict"]["comparisons"] == 0
    assert rules["strict"]["next"].startswith("no threshold keeps the budget")

    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("0.1%", "10%"))
    while (await gateway.get("/readyz")).json["budgets_not_kept"]:
        pass
    assert (await gateway.get("/admin/semantic")).json["rules"] == {}
    policy.write_text(POLICY)
    while len(warned(caplog)) < 2:
        await gateway.get("/readyz")
    assert warned(caplog) == [("WARNING", True)] * 2
