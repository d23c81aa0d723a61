"""The page on observability against the code: each metric, span attribute, reason and log line."""

import re
from pathlib import Path

import pytest
from metric_pages import engine_page, exposed, gateway_page, seen
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.prompts.outcome import NotRewritten, Rewrite, Step
from gateway.protocol.cache_status import Reason
from gateway.telemetry.observation import Observation
from gateway.telemetry.tracing import Tracing

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations" / "observability.md").read_text()
EXACT_ONLY = (ROOT / "docs" / "concepts" / "caching.md").read_text()


def table(header: str, text: str = TEXT) -> list[list[str]]:
    """Rows of the tables whose first column has this header, cells stripped."""
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == header:
            inside = True
        elif inside and not cells[0].startswith("---"):
            rows.append(cells)
    return rows


def words(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_metrics_are_documented_and_documented_metrics_exist():
    documented = {
        words(name)[0]: (kind, tuple(sorted(words(labels))))
        for name, kind, labels, _ in table("Metric")
    }
    assert documented == {**exposed(gateway_page()), **exposed(engine_page())}


def test_no_other_metric_is_named_in_text_or_queries():
    known = set(exposed(gateway_page())) | set(exposed(engine_page()))
    for page in ("observability.md", "deploy.md", "runbook.md", "troubleshooting.md"):
        text = (ROOT / "docs" / "operations" / page).read_text()
        for name in re.findall(r"\brefrain_\w+", text):
            assert re.sub("_(bucket|sum|count)$", "", name) in known, f"{page}: {name}"


@pytest.mark.parametrize(("outcome", "failed"), [("miss", False), ("error", True)])
def test_span_attributes_are_documented_and_documented_ones_exist(outcome, failed):
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    observation = seen(outcome=outcome)
    tracing.begin(observation, {})
    observation.finish()
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert {words(row[0])[0] for row in table("Attribute")} == set(span.attributes)
    assert span.name == "chat m"
    assert span.resource.attributes["service.name"] == "refrain"
    assert span.status.is_ok is not failed


def test_reasons_are_documented_and_documented_reasons_exist():
    rows = table("Reason") + table("Word", EXACT_ONLY)
    assert sorted(words(row[0])[0] for row in rows) == sorted(reason.value for reason in Reason)


def test_what_is_changed_before_it_is_sent_and_why_not_is_documented():
    assert {words(row[0])[0] for row in table("Rewrite")} == {each.value for each in Rewrite}
    assert {words(row[0])[0] for row in table("Compressed")} == {each.value for each in Step}
    why_not = [*table("Not rewritten"), *table("Not compressed")]
    assert {words(row[0])[0] for row in why_not} == {each.value for each in NotRewritten}


def test_outcomes_are_documented():
    said = set(words((Observation.__doc__ or "").replace("``", "`"))) - {"declined", "finish"}
    assert {words(row[0])[0] for row in table("Outcome")} == said - {"outcome"}


def test_log_lines_to_search_for_exist():
    packages = ("gateway", "embeddings", "backend", "policies")
    sources = [file.read_text() for name in packages for file in (ROOT / name).rglob("*.py")]
    lines = table("Words in the line")
    assert lines
    for row in lines:
        for said in words(row[0]):
            assert any(said in source for source in sources), said
