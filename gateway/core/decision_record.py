"""What is written down of a request so that an edited policy can be tried on it later.

Law: no plain text unless the operator asked for it, and never a credential. Identities are keyed
digests, and of the conditions that looked at text only their truth is kept.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.canonical import canonical_form
from gateway.core.key import Tenant, scope_ids
from gateway.core.plan import end_user
from gateway.core.replay import written_decision
from gateway.core.types import Endpoint
from policies.decide import Decision, RequestFacts, Scope

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the first half of a record, all that is known before the lookup."""

    secret: bytes
    with_text: bool
    with_requests: bool = False
    """Whether whole bodies are written down, so that it can be told where prompts part."""

    def record(
        self,
        body: dict[str, Any],
        tenant: Tenant,
        facts: RequestFacts,
        decision: Decision,
        *,
        truths: Mapping[str, bool],
        upstream: str,
        query: str,
    ) -> dict[str, Any]:
        """Return the record; its outcome is added when the request has ended."""
        where = f"{facts.endpoint}\0{upstream}\0{query}\0".encode("utf-8", "surrogatepass")
        identity = where + canonical_form(Endpoint(facts.endpoint), body)
        temperature = body.get("temperature")
        record: dict[str, Any] = {
            "endpoint": facts.endpoint,
            "model": facts.model,
            "rule": decision.rule,
            "decision": written_decision(decision),
            "form": hmac.digest(self.secret, b"form" + identity, "sha256")[:_ID_BYTES].hex(),
            "scopes": self._scopes(body, tenant),
            "temperature": temperature if isinstance(temperature, int | float) else None,
            "conditions": dict(truths),
        }
        if self.with_text:
            record |= {"text": facts.last_user_text, "system": facts.system_text}
        if self.with_requests:
            record["request"] = body
        return record

    def _scopes(self, body: dict[str, Any], tenant: Tenant) -> dict[str, str | None]:
        ids = scope_ids(self.secret, tenant, end_user(body))
        return {
            scope.value: ids[scope][:_ID_BYTES].hex() if scope in ids else None for scope in Scope
        }
