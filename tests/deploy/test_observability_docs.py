"""The page on observability against the code: each metric, span attribute, reason and log line."""

import re
import time
from dataclasses import replace
from pathlib import Path

import orjson
from metric_pages import engine_page, exposed, gateway_page, seen
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv._incubating.metrics.process_metrics import PROCESS_UPTIME
from opentelemetry.trace import SpanKind

from gateway.prompts.outcome import NotRewritten, Rewrite, Step
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.request import CacheRequest
from gateway.telemetry.observation import AnswerFacts, CallFacts, Observation, Place
from gateway.telemetry.otel.tracing import Tracing
from policies.decision import Endpoint
from scripted_upstream import completion

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


def spans_where_everything_happens():
    """The spans of a request in which everything happened, by name."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    trace = tracing.begin(1.0, time.perf_counter, {"host": "127.0.0.1:8080"})
    observation = seen(outcome="error", streamed=True, stored=True, trace=trace)
    place = Place("b", "127.0.0.1", 8000)
    parameters = {"max_tokens": 1, "n": 2, "seed": 3, "dimensions": 4, "top_k": 5}
    parameters |= {"temperature": 1, "top_p": 1, "frequency_penalty": 1, "presence_penalty": 1}
    body = {"model": "m", "messages": [], "response_format": {"type": "text"}, **parameters}
    request = CacheRequest(Endpoint.CHAT, {**body, "stream": True}, b"", {}, (), "")
    call = CallFacts(usage=observation.call.usage, answer=AnswerFacts("m", "id", ("stop",)))
    for status in (503, 200):
        attempt = trace.attempt(call, place)
        attempt.status = status
        attempt.note_chunk()
    trace.end_call(call, request, None, {})
    answer = completion("hi", model="m")
    entry = replace(observation.hit.entry, result=orjson.dumps(answer))
    hit = replace(observation.hit, entry=entry)
    observation.lookup = observation.lookup._replace(hit=hit)
    observation.finish()
    tracing.close()
    return exporter.get_finished_spans()


def test_span_attributes_are_documented_and_documented_ones_exist():
    spans = spans_where_everything_happens()
    documented = {"request": set(), "upstream": set()}
    for name, on, _ in table("Attribute"):
        for span in on.split(", "):
            documented.setdefault(span, set()).add(words(name)[0])
    for span, kind in (("request", SpanKind.SERVER), ("upstream", SpanKind.CLIENT)):
        found = {name for each in spans if each.kind is kind for name in each.attributes}
        assert documented[span] == found, span
    source = (ROOT / "gateway" / "server" / "open" / "traced.py").read_text()
    of_steps = set(re.findall(r'"(refrain\.\w+)": ', source))
    assert (
        of_steps
        == documented["lookup"]
        | documented["embedding"]
        | documented["verification"]
        | documented["rewrite"]
        | documented["admission"]
    )


def test_spans_are_documented_and_documented_spans_exist():
    documented = [name for row in table("Span") for name in words(row[0])]
    source = (ROOT / "gateway" / "server" / "open" / "traced.py").read_text()
    steps = set(re.findall(r'^[A-Z]+ = "(refrain\.\w+)"', source, re.MULTILINE))
    source = (ROOT / "backend" / "server" / "tracing.py").read_text()
    steps |= set(re.findall(r'"(refrain\.\w+)"', source.partition("get_tracer")[2])) - {
        "refrain.engine"
    }
    assert steps == {name for name in documented if name.startswith("refrain.")}


def test_metrics_over_otlp_are_documented_and_documented_ones_exist():
    source = (ROOT / "gateway" / "telemetry" / "otel" / "metrics.py").read_text()
    constants = re.findall(r"gen_ai_metrics\.(GEN_AI_\w+)", source)
    names = {getattr(gen_ai_metrics, constant) for constant in constants}
    documented = {words(row[0])[0] for row in table("OTLP metric")}
    assert documented == names | {PROCESS_UPTIME}


def test_reasons_are_documented_and_documented_reasons_exist():
    rows = table("Reason") + table("Word", EXACT_ONLY)
    assert sorted(words(row[0])[0] for row in rows) == sorted(reason.value for reason in Reason)


def test_what_is_changed_before_it_is_sent_and_why_not_is_documented():
    assert {words(row[0])[0] for row in table("Rewrite")} == {each.value for each in Rewrite}
    assert {words(row[0])[0] for row in table("Compressed")} == {each.value for each in Step}
    why_not = [*table("Not rewritten"), *table("Not compressed")]
    assert {words(row[0])[0] for row in why_not} == {each.value for each in NotRewritten}


def test_outcomes_are_documented():
    said = set(words((Observation.__doc__ or "").replace("``", "`"))) - {"finish"}
    assert {words(row[0])[0] for row in table("Outcome")} == said - {"outcome"}


def test_log_lines_to_search_for_exist():
    packages = ("gateway", "embeddings", "backend", "policies")
    sources = [file.read_text() for name in packages for file in (ROOT / name).rglob("*.py")]
    lines = table("Words in the line")
    assert lines
    for row in lines:
        for said in words(row[0]):
            assert any(said in source for source in sources), said
