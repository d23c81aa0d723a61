"""The plan of a request's lookup, and whether the request may be looked up at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gateway.cache.key import (
    Digests,
    Partition,
    Tenant,
    compress_identity,
    field_digests,
    keyed_headers,
    partition_of,
    shared_partition,
)
from gateway.cache.ports import KEY_VERSION, Entry
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Question
from gateway.protocol.http.cache_status import Reason
from gateway.semantic.eligibility import semantic_query
from policies.decision import Decision, Endpoint, PiiAction, Scope
from policies.freshness import NO_GRACE, Directives, Freshness, Grace, freshness, jittered

_NO_FINGERPRINT = bytes(32)
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Plan:
    """A request that may be looked up. Equality of identity is by digests, never by text.

    What only a miss needs (question, fingerprint) is computed when it is asked for.
    ``personal_partition`` is the end user's own, where answers with personal data may be kept
    apart from shared entries.
    """

    body: dict[str, Any]
    partition: Partition
    decision: Decision
    directives: Directives
    secret: bytes = field(repr=False)
    """The server's, for field digests."""
    personal_partition: Partition | None = None
    key: bytes = field(init=False, repr=False, compare=False)
    """Exact cache key, 32 bytes."""

    def __post_init__(self) -> None:
        # No cached_property: on Python 3.11 that takes a lock, and each hit needs the key. What is
        # cached below is asked for only where it is not plain from the decision.
        object.__setattr__(self, "key", self.partition.key_of(self.body))

    @property
    def personal(self) -> "Plan | None":
        """Plan of the same request wholly within its end user's scope, where that is another."""
        return None if self.personal_partition is None else self._personal

    @cached_property
    def _personal(self) -> "Plan | None":
        if self.personal_partition is None:
            return None
        decision = replace(self.decision, scope=Scope.USER)
        return Plan(self.body, self.personal_partition, decision, self.directives, self.secret)

    @property
    def coalescing_key(self) -> bytes:
        """Identity of the misses that may share one upstream call.

        Where an answer with personal data may be kept, that is the scope of one end user. Where it
        repeats who asked, it is the scope of one caller.
        """
        key = self.key if self.personal is None else self.personal.key
        caller_key = SPECS[self.partition.endpoint].caller_key
        return key if caller_key is None else caller_key(key, self.body)

    @property
    def semantic_query(self) -> Question | Reason | None:
        """The question to look up by meaning, or the reason why the request has none."""
        return self._semantic_query if self.decision.semantic else None

    @cached_property
    def _semantic_query(self) -> Question | Reason:
        return semantic_query(self.partition.endpoint, self.body)

    @property
    def question(self) -> str | None:
        """Text to look up by meaning; None where only exact lookup is allowed."""
        found = self.semantic_query
        return found.text if isinstance(found, Question) else None

    @property
    def fingerprint(self) -> bytes:
        """Identity of everything except the question, 32 bytes; zeros where there is none."""
        return self._fingerprint if self.decision.semantic else _NO_FINGERPRINT

    @cached_property
    def _fingerprint(self) -> bytes:
        found = self.semantic_query
        if not isinstance(found, Question):
            return _NO_FINGERPRINT
        return self.partition.fingerprint_of(found.rest)

    @cached_property
    def _digests(self) -> Digests:
        partition = self.partition
        return field_digests(self.secret, partition.scope, partition.endpoint, self.body)

    def prepare(self) -> None:
        """Work out what an entry needs: of a large body, in a thread."""
        _ = self.fingerprint, self._digests

    @property
    def scans(self) -> bool:
        """Tell whether prompt and answer must pass the PII scan."""
        match self.decision.pii:
            case PiiAction.BYPASS:
                return True
            case PiiAction.USER:
                return self.decision.scope is not Scope.USER
            case PiiAction.ALLOW:
                return False

    def _belongs(self, entry: Entry) -> bool:
        partition = self.partition
        return (
            entry.key_version == KEY_VERSION
            and entry.scope == partition.scope
            and entry.endpoint == partition.endpoint
            and entry.model == self.body["model"]
            and entry.upstream == partition.upstream
            and entry.generation == partition.generation
        )

    def fresh_until(self, entry: Entry) -> float:
        """Return when an entry is no longer fresh: by its own expiry, and by the policy's now."""
        decision = self.decision
        lifetime = decision.lifetime
        if decision.jitter:
            lifetime = jittered(lifetime, decision.jitter, entry.key)
        return min(entry.expires_at, entry.stored_at + lifetime)

    def freshness_of(self, entry: Entry, now: float, *, graceful: bool = True) -> Freshness | None:
        """Judge an entry by its expiry, by what the policy gives now, and by the request.

        None where the entry is not of this request's partition, whatever it was looked up by.
        The policy's present lifetime and grace count so that shortening them holds for what is
        stored; lengthening them revives nothing.
        """
        if not self._belongs(entry):
            return None
        decision = self.decision
        grace = NO_GRACE
        if graceful and entry.grace:
            grace = Grace(
                min(entry.grace, decision.grace_revalidate), min(entry.grace, decision.grace_error)
            )
        return freshness(
            stored_at=entry.stored_at,
            expires_at=self.fresh_until(entry),
            now=now,
            directives=self.directives,
            grace=grace,
        )

    def entry(self, result: bytes, now: float, *, tokens: int = 0) -> Entry:
        """Make the entry that stores ``result`` as the answer to this request."""
        partition, lifetime = self.partition, self.decision.lifetime
        if self.decision.jitter:
            lifetime = jittered(lifetime, self.decision.jitter, self.key)
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
            expires_at=now + lifetime,
            result=result,
            question=self.question,
            tags=self.decision.tags,
            tokens=tokens,
            grace=max(self.decision.grace_revalidate, self.decision.grace_error),
            digests=self._digests,
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
    headers: Mapping[str, str] = NO_HEADERS,
) -> Plan | Reason:
    """Return the plan of a request, or the reason why it bypasses the cache.

    ``headers`` are by lower-case name.
    """
    if directives.no_store:
        return Reason.NO_STORE
    if (refused := SPECS[endpoint].bypass_reason(body)) is not None:
        return refused
    if not (decision.exact or decision.semantic):
        return Reason.POLICY
    temperature = body.get("temperature")
    if (
        decision.max_temperature is not None
        and isinstance(temperature, int | float)
        and temperature > decision.max_temperature
    ):
        return Reason.TEMPERATURE
    place = endpoint, upstream, query, decision.generation
    versions = keyed_headers(endpoint, headers) if SPECS[endpoint].keyed_headers else ()
    identities = (
        pii_identity,
        compress_identity(decision.compress, decision.prefix.documents),
        repr(versions) if versions else "",
    )
    personal = None
    if decision.scope is Scope.USER or decision.pii is PiiAction.USER:
        user = end_user(endpoint, body)
        if user:
            # Not remembered: a name comes from the body and may be megabytes long.
            personal = partition_of(place, identities, secret, Scope.USER, tenant, user=user)
    if decision.scope is not Scope.USER:
        partition = shared_partition(place, identities, secret, decision.scope, tenant)
        plan = Plan(body, partition, decision, directives, secret, personal_partition=personal)
    elif personal is not None:
        plan = Plan(body, personal, decision, directives, secret)
    else:
        return Reason.NO_USER
    # Without exact lookup, an entry without a question could be stored but never found.
    return plan if decision.exact or plan.question is not None else Reason.POLICY


def end_user(endpoint: Endpoint, body: dict[str, Any]) -> tuple[str, ...]:
    """Return the end user that the client names; empty if it names none."""
    names = SPECS[endpoint].end_users(body)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
