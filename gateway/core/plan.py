"""What a request's lookup depends on, and whether it may be looked up at all."""

from dataclasses import dataclass
from typing import Any

from gateway.core.canonical import canonical_form
from gateway.core.conversation import semantic_question, without_question
from gateway.core.fields import bypass_reason
from gateway.core.key import Partition, Tenant, scope_id, shared_partition
from gateway.core.lazy import lazy
from gateway.core.types import KEY_VERSION, Endpoint, Entry, Reason
from policies.decide import Decision, PiiAction, Scope
from policies.freshness import Directives, Freshness, freshness


@dataclass(frozen=True)
class Plan:
    """A request that may be looked up. Equality of identity is by digests, never by text.

    What only a miss needs (question, fingerprint) is computed when it is asked for.
    """

    body: dict[str, Any]
    partition: Partition
    decision: Decision
    directives: Directives

    @lazy
    def key(self) -> bytes:
        """Exact cache key, 32 bytes."""
        return self.partition.cache_key(canonical_form(self.partition.endpoint, self.body))

    @lazy
    def question(self) -> str | None:
        """Text to look up by meaning; None where only exact lookup is allowed."""
        if not self.decision.semantic:
            return None
        question = semantic_question(self.partition.endpoint, self.body)
        return question if question is not None and question.strip() else None

    @lazy
    def fingerprint(self) -> bytes:
        """Identity of everything except the question, 32 bytes; zeros where there is none."""
        if self.question is None:
            return bytes(32)
        bare = without_question(self.body)
        return self.partition.fingerprint(canonical_form(self.partition.endpoint, bare))

    @property
    def scans(self) -> bool:
        """Tell whether prompt and answer must pass the PII scan."""
        return self.decision.pii is not PiiAction.ALLOW

    def belongs(self, entry: Entry) -> bool:
        """Check what a store returned against the request, whatever it was looked up by."""
        partition = self.partition
        return (
            entry.key_version == KEY_VERSION
            and entry.scope == partition.scope
            and entry.endpoint == partition.endpoint
            and entry.model == self.body["model"]
            and entry.upstream == partition.upstream
            and entry.generation == partition.generation
        )

    def freshness_of(self, entry: Entry, now: float) -> Freshness:
        """Judge an entry by its expiry, by the lifetime the policy gives now, and the request.

        The policy's present lifetime counts so that shortening it holds for what is stored.
        """
        return freshness(
            stored_at=entry.stored_at,
            expires_at=min(entry.expires_at, entry.stored_at + self.decision.lifetime),
            now=now,
            directives=self.directives,
        )

    def entry(self, result: bytes, now: float) -> Entry:
        """Make the entry that stores ``result`` as the answer to this request."""
        partition = self.partition
        return Entry(
            key=self.key,
            endpoint=partition.endpoint.value,
            model=self.body["model"],
            upstream=partition.upstream,
            generation=partition.generation,
            scope=partition.scope,
            fingerprint=self.fingerprint,
            rule=self.decision.rule,
            stored_at=now,
            expires_at=now + self.decision.lifetime,
            result=result,
            question=self.question,
            tags=self.decision.tags,
            grace=max(self.decision.grace_revalidate, self.decision.grace_error),
        )


def plan_request(
    body: dict[str, Any],
    *,
    endpoint: Endpoint,
    upstream: str,
    query: str,
    tenant: Tenant,
    secret: bytes,
    decision: Decision,
    pii_identity: str,
    directives: Directives,
) -> Plan | Reason:
    """Return the plan of a request, or the reason why it bypasses the cache."""
    if directives.no_store:
        return Reason.NO_STORE
    if (refused := bypass_reason(endpoint, body)) is not None:
        return refused
    if not (decision.exact or decision.semantic):
        return Reason.POLICY
    if decision.scope is Scope.USER:
        # Not kept for the next request: a name comes from the body and may be megabytes long.
        user = end_user(body)
        if not user:
            return Reason.NO_USER
        scope = scope_id(secret, decision.scope, tenant, user)
        partition = Partition(endpoint, upstream, query, decision.generation, scope, pii_identity)
    else:
        partition = shared_partition(
            endpoint,
            upstream,
            query,
            decision.generation,
            pii_identity,
            secret=secret,
            scope=decision.scope,
            tenant=tenant,
        )
    plan = Plan(body, partition, decision, directives)
    # Without exact lookup, what has no question could be stored but never be found.
    return plan if decision.exact or plan.question is not None else Reason.POLICY


def end_user(body: dict[str, Any]) -> tuple[str, ...]:
    """Return who the client says its end user is; empty when it does not.

    Both names count where they differ: one of them may stand for a whole application.
    """
    names = (body.get("safety_identifier"), body.get("user"))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
