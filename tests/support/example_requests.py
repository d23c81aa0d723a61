"""Requests, plans and entries for tests of the pure cores: everything given, nothing read."""

from dataclasses import replace
from typing import Any

from gateway.cache.key import ANONYMOUS, Tenant
from gateway.cache.plan import Plan, plan_request
from gateway.cache.ports import Entry
from gateway.protocol.http.cache_status import Reason
from policies.decision import Decision, Endpoint, PiiAction, Scope
from policies.freshness import Directives

SECRET = b"s" * 32
STORED_AT = 1_000.0
LIFETIME = 600.0

DECISION = Decision(
    rule="default",
    exact=True,
    semantic=True,
    min_similarity=0.9,
    lifetime=LIFETIME,
    scope=Scope.TENANT,
    pii=PiiAction.BYPASS,
    generation=1,
)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a parsed chat request; without messages it asks one question."""
    return {"model": "m", "messages": list(messages) or [user("How do I pay?")], **fields}


def planned(
    body: dict[str, Any] | None = None,
    *,
    endpoint: Endpoint = Endpoint.CHAT,
    upstream: str = "http://up/v1",
    query: str = "",
    tenant: Tenant = ANONYMOUS,
    directives: Directives | None = None,
    pii_identity: str = "bypass/1",
    **decided: Any,
) -> Plan | Reason:
    """Plan a request; ``decided`` changes the policy's decision."""
    return plan_request(
        chat() if body is None else body,
        endpoint=endpoint,
        upstream=upstream,
        query=query,
        tenant=tenant,
        secret=SECRET,
        decision=replace(DECISION, **decided),
        pii_identity=pii_identity,
        directives=directives or Directives(),
    )


def plan_of(*args: Any, **kwargs: Any) -> Plan:
    """Plan a request that does not bypass."""
    plan = planned(*args, **kwargs)
    assert isinstance(plan, Plan), plan
    return plan


def entry_of(plan: Plan, **changes: Any) -> Entry:
    """Return the entry that answers ``plan``, stored at STORED_AT."""
    return replace(plan.entry(b"{}", STORED_AT), **changes)
