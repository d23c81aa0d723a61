"""deploy/monitoring: dashboard and rules name metrics, labels and values that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from metric_pages import engine_page, exposed, gateway_page

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
GROUPS = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "refrain.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
PROVISIONING = MONITORING / "grafana" / "provisioning"

OBSERVABILITY = (ROOT / "docs" / "operations" / "observability.md").read_text()
WORDS = set(re.findall(r"`([^`]+)`", OBSERVABILITY))
"""Every word that the operators' page lists, values of labels among them."""
OF_PROMETHEUS = {"instance", "job"}
SELECTOR = re.compile(r"\b((?:refrain[_:]|up\b)[\w:]*)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)")


def labels_of_metrics() -> dict[str, set[str]]:
    """Labels by the name of each metric, a histogram's series and recorded ones included."""
    found: dict[str, set[str]] = {"up": set()}
    for name, (kind, labels) in {**exposed(gateway_page()), **exposed(engine_page())}.items():
        if kind == "histogram":
            found |= {f"{name}_{part}": set(labels) for part in ("sum", "count")}
            found[f"{name}_bucket"] = {*labels, "le"}
        else:
            found[name] = set(labels)
    for name, query in RECORDED.items():
        found[name] = {label for group in GROUPING.findall(query) for label in names(group)}
    return found


def names(text: str) -> list[str]:
    return [name for name in re.split(r"[\s,]+", text) if name]


def faults(query: str, labels: dict[str, set[str]]) -> Iterator[str]:
    """Yield what in a query is not exposed: a metric, a label, or a label's value."""
    of_query: set[str] = set()
    for name, matchers in SELECTOR.findall(query):
        if name not in labels:
            yield f"no metric {name}"
            continue
        known = labels[name] | OF_PROMETHEUS
        of_query |= known
        for label, operator, value in MATCHER.findall(matchers):
            if label not in known:
                yield f"{name} has no label {label}"
            elif label in OF_PROMETHEUS:
                continue
            elif operator in ("=", "!="):
                yield from () if value in WORDS else (f"{label} is never {value}",)
            elif not any(re.fullmatch(value, word) for word in WORDS):
                yield f"{label} never matches {value}"
    for group in GROUPING.findall(query):
        yield from (f"no label {name} in {query}" for name in names(group) if name not in of_query)


def queries() -> Iterator[tuple[str, str]]:
    yield from ((str(rule.get("alert", rule.get("record"))), rule["expr"]) for rule in RULES)
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("place", "query"), [*queries()])
def test_a_query_names_what_is_exposed(place, query):
    assert SELECTOR.search(query), "no metric at all"
    assert list(faults(query, labels_of_metrics())) == []


@pytest.mark.parametrize(
    "query",
    [
        "rate(refrain_request_total[5m])",
        "rate(refrain_time_to_first_token_seconds[5m])",
        'refrain_requests_total{result="hit"}',
        'refrain_requests_total{outcome="hits"}',
        'refrain_requests_total{outcome=~"hits|mis"}',
        "sum by (model) (rate(refrain_requests_total[5m]))",
        "refrain:hits:rate5m",
    ],
)
def test_a_query_of_something_else_is_found(query):
    assert len(list(faults(query, labels_of_metrics()))) == 1


def test_every_alert_says_what_happened_and_names_its_runbook_entry():
    page = (ROOT / "docs" / "operations" / "runbook.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    entries = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    for name, alert in ALERTS.items():
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        assert alert["annotations"]["summary"], name
        file, _, entry = alert["annotations"]["runbook"].partition("#")
        assert (file, entry in entries) == ("docs/operations/runbook.md", True), name


def test_the_runbook_lists_every_alert_with_its_entry():
    page = (ROOT / "docs" / "operations" / "runbook.md").read_text()
    rows = re.findall(r"^\| (`Refrain[^|]*) \| (.*) \|$", page, re.MULTILINE)
    listed = {name: row for names, row in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(listed) == set(ALERTS)
    for name, alert in ALERTS.items():
        _, _, entry = alert["annotations"]["runbook"].partition("#")
        assert f"(#{entry})" in listed[name], name


def test_every_alert_and_record_is_documented():
    page = (ROOT / "docs" / "operations" / "observability.md").read_text()
    assert set(re.findall(r"`(Refrain\w+|refrain:[\w:]+)`", page)) == {*ALERTS, *RECORDED}


def test_the_dashboard_is_what_grafana_provisions():
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "refrain.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    assert DASHBOARD["uid"] == "refrain"
    assert "id" not in DASHBOARD, "an id belongs to one installation"
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert {panel["type"] for panel in PANELS} == {"row", "stat", "timeseries"}
    for panel in PANELS:
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": source["uid"]}


def test_panels_lie_beside_one_another():
    places = [panel["gridPos"] for panel in PANELS]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize(
    "check",
    [
        ("check", "rules", "rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_rules_and_configuration(check):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: Debian has it in the package prometheus")
    done = subprocess.run(
        ["promtool", *check], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_or_trivial():
    """An alert whose query joins or divides has a case in rules_test.yaml."""
    tests = yaml.safe_load((MONITORING / "rules_test.yaml").read_text())["tests"]
    tried = {case["alertname"] for test in tests for case in test["alert_rule_test"]}
    assert tried <= set(ALERTS)
    composed = {
        name for name, alert in ALERTS.items() if re.search(r"/|\b(and|or|unless)\b", alert["expr"])
    }
    assert composed - tried == set()
