"""Work that is remembered saves only those time who share answers as well."""

from typing import Any

import pytest

from gateway.prompts.rewrite.tool_rules import KnownTools
from running_gateway import StartGateway

POLICY = """
version: 1
default:
  exact: on
  semantic: off
  freshness: 1h
  scope: {scope}
  pii: bypass
  prefix: {{tools: sorted}}
"""
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("b", "a")
]


@pytest.mark.parametrize(("scope", "shared"), [("tenant", False), ("public", True)])
async def test_tools_are_known_to_whoever_shares_the_scope(
    start_gateway: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    scope: str,
    shared: bool,
):
    met: list[int] = []
    forms = KnownTools.forms

    def watched(self: KnownTools, *given: Any) -> Any:
        known = forms(self, *given)
        met.append(len(known))
        return known

    monkeypatch.setattr(KnownTools, "forms", watched)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(scope=scope))
    gateway = await start_gateway(policy=policy)
    for number, key in enumerate(("one", "one", "two")):
        headers = {"Authorization": f"Bearer {key}"}
        assert (await gateway.ask(f"{number}?", headers=headers, tools=TOOLS)).status == 200
    assert met == [0, 2, 2 if shared else 0]
