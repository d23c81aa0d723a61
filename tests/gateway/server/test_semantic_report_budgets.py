"""Which budgets are kept, by rule; nothing is said before the verifier is known."""

import pytest

from gateway.server.admin.semantic_report import Budgets
from gateway.server.open.policy_file import PolicyFile

POLICY = """
version: 1
rules:
  - {name: strict, match: {model: a}, semantic: {max_wrong_hits: 0.1%}}
  - {name: exact-only, match: {model: b}, semantic: off}
  - {name: shadow, match: {model: c}, semantic: {max_wrong_hits: 0.5%, shadow: on}}
default: {exact: on, semantic: {max_wrong_hits: 2%}, freshness: 1h, scope: tenant, pii: bypass}
"""


@pytest.fixture
def policies(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return PolicyFile(path)


def threshold(budget):
    return 0.9 if budget >= 0.01 else None


def test_rules_with_a_budget_that_nothing_keeps_are_named_in_one_line(policies, caplog):
    budgets = Budgets(policies, lambda: True, threshold)
    assert budgets.budgets_met() == {"strict": False, "shadow": False, "default": True}
    assert budgets.budgets_missed() == {"strict": 0.001, "shadow": 0.005}
    budgets.warn()
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert "strict 0.1%, shadow 0.5%:" in line.getMessage()


def test_where_all_are_kept_nothing_is_told(policies, caplog):
    budgets = Budgets(policies, lambda: True, lambda _: 0.9)
    assert budgets.budgets_missed() == {}
    budgets.warn()
    assert not caplog.records


def test_before_the_verifier_is_known_nothing_is_told(policies, caplog):
    budgets = Budgets(policies, lambda: False, lambda _: None)
    assert budgets.budgets_met() == budgets.budgets_missed() == {}
    budgets.warn()
    assert not caplog.records
