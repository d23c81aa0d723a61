"""What would become of a request, and why: the rule, the decision, the scan, the lookup.

Law: an explanation drives the same machine as a request does and changes nothing; it tells field
names, places, digests and figures, never an answer or another scope's anything, and of a prompt
only what the request asked about would change of its own (``explained_rewrite``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.cache.entry import KEY_VERSION, Entry
from gateway.cache.field_digests import differences, field_digests, nearest
from gateway.cache.key import Tenant, document_owner, identify
from gateway.cache.lookup import start
from gateway.cache.outcomes import Forward, Hit, Refused, set_apart
from gateway.cache.plan import Plan, plan_request
from gateway.cache.ports import ActivePolicy, Learned, PolicySource, Store, StoreError
from gateway.protocol.cache_status import Forwarded
from gateway.protocol.embeddings import item_body, items_of
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.errors import RequestError
from gateway.protocol.messages import Inbound
from gateway.protocol.prompt_size import prompt_tokens
from gateway.protocol.reasons import Reason
from gateway.semantic.eligibility.rules import sought
from gateway.semantic.ports import SemanticIndex, Verifier
from gateway.server.admin.explain_request import Inquiry, InquiryError, read_inquiry, written
from gateway.server.admin.explained_lookup import Drive
from gateway.server.admin.explained_rewrite import explained_rewrite
from gateway.server.admin.findings import Finding, findings
from gateway.server.admin.ineligible_wording import POLICY, SWITCHED_OFF, WORDING
from gateway.server.admin.selection import SelectionError
from gateway.server.pipeline import Pipeline
from gateway.server.request import facts_of, parse_request
from gateway.upstream.request import without_salt
from policies.decide import Condition, Decision, PiiAction, RequestFacts
from policies.freshness import parse_directives
from policies.pii import PiiScanner
from policies.wording import settings_of

PAGE = 256
MOST_COMPARED = 50_000
MOST_ITEMS = 64
"""Items of one batch of embeddings that are looked up."""
SCAN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains requests. Without a store only what the policy says; without an index no meaning."""

    policies: PolicySource
    store: Store | None
    semantic: SemanticIndex | None
    verifier: Verifier | None
    secret: bytes
    upstream: Callable[[Endpoint, str], str]
    """Name of who answers an endpoint and model."""
    now: Callable[[], float]
    salts_caches: bool = False
    without_index: str = "this gateway runs without an index of questions"
    holder: Callable[[Mapping[str, str]], str | None] = lambda _: None
    """Whose gateway key a request bears; raises RequestError where it may not ask at all."""
    barred: Callable[[bytes], bool] = lambda _: False
    """Tells of an entry's key that it is in quarantine."""
    learned: Learned | None = None

    async def explain(self, inquiry: Inquiry) -> dict[str, Any]:
        """Return the explanation, a JSON object."""
        told: dict[str, Any] = {
            "request": {"endpoint": inquiry.endpoint.value, "inferred": inquiry.inferred}
        }
        try:
            holder = self.holder(inquiry.headers)
            body, _, odd = parse_request(inquiry.endpoint, written(inquiry))
            if odd is not None:
                message = f"{odd} The request is forwarded as it came."
                told["outcome"] = {
                    "would": "bypass",
                    "reason": Reason.UNKNOWN_SHAPE.value,
                    "message": message,
                }
                return told
        except RequestError as error:
            told["outcome"] = {"would": "invalid", "message": str(error)}
            return told
        active = self.policies.active
        tenant = identify(inquiry.headers, holder)
        inbound = Inbound(inquiry.endpoint.value, inquiry.headers, (), b"", holder)
        facts = facts_of(inquiry.endpoint, body, inbound, tenant)
        decision = active.policy.decide(facts)
        told["request"] |= {"model": facts.model, "tenant": _whose(tenant, holder)}
        told["policy"] = {"source": active.policy.source, "generation": active.policy.generation}
        told["rules"] = [
            {"rule": each.rule, "failed": [_failed(failed, facts) for failed in each.failed]}
            for each in active.policy.considered(facts)
        ]
        told["decision"] = {"rule": decision.rule, "settings": settings_of(decision)}
        most, tokens = decision.max_prompt_tokens, prompt_tokens(inquiry.endpoint, body)
        told["prompt_tokens"] = tokens
        if most is not None and tokens > most:
            told["outcome"] = {"would": "refused", "reason": Reason.PROMPT_TOO_LONG.value}
            return told
        owner = document_owner(self.secret, tenant)
        told |= await explained_rewrite(inquiry, body, decision, owner)
        single = [body]
        if inquiry.endpoint is Endpoint.EMBEDDINGS:  # each item is an entry of its own
            single = [item_body(body, item) for item in items_of(body)[:MOST_ITEMS]]
        plans = [self._plan(inquiry, each, active, tenant, decision) for each in single]
        found = await _scanned(inquiry, body, active, decision)
        told["pii"] = {
            "scanned": decision.pii is not PiiAction.ALLOW,
            "findings": [
                {name: told for name, told in asdict(each).items() if name != "keyed"}
                for each in found
            ],
        }
        told["semantic"] = _eligibility(inquiry.endpoint, body, enabled=decision.semantic)
        looked_up = [plan for plan in plans if isinstance(plan, Plan)]
        if looked_up != plans:
            (reason, *_) = (plan for plan in plans if isinstance(plan, Reason))
            told["outcome"] = {"would": "bypass", "reason": reason.value}
            return told
        told |= await self._looked_up(looked_up, found)
        return told

    def _plan(
        self,
        inquiry: Inquiry,
        body: dict[str, Any],
        active: ActivePolicy,
        tenant: Tenant,
        decision: Decision,
    ) -> Plan | Reason:
        return plan_request(
            without_salt(body) if self.salts_caches else body,
            endpoint=inquiry.endpoint,
            upstream=self.upstream(inquiry.endpoint, body.get("model") or ""),
            query=inquiry.query,
            tenant=tenant,
            secret=self.secret,
            decision=decision,
            pii_identity=active.pii_identities[decision.pii],
            directives=parse_directives(inquiry.headers.get("cache-control")),
        )

    async def _looked_up(self, plans: Sequence[Plan], found: Sequence[Finding]) -> dict[str, Any]:
        """Look each plan up in turn; the first that is no hit speaks for all of them."""
        first = plans[0]
        if self.store is None:
            refused = first.scans and found and first.personal is None
            would = {"would": "bypass", "reason": Reason.PII.value} if refused else {}
            return {"outcome": would or {"would": "lookup"}}
        drive = Drive(
            self.store,
            self.semantic,
            self.verifier,
            [each for each in found if each.keyed],
            self.now,
            self.without_index,
            self.barred,
            self.learned,
        )
        try:
            ends = [(plan, await drive.run(start(plan))) for plan in plans]
            if first.scans and not all(each.keyed for each in found):
                ends = [(plan, set_apart(end, Reason.PII, personal=True)) for plan, end in ends]
        except StoreError as error:
            return {"outcome": {"would": "unknown", "message": f"The store failed: {error}"}}
        plan, end = next((each for each in ends if not isinstance(each[1], Hit)), ends[0])
        told: dict[str, Any] = {"lookup": drive.steps, "outcome": _outcome(end, self.now())}
        if len(plans) > 1:
            stored = sum(isinstance(each, Hit) for _, each in ends)
            told["items"] = {"asked": len(plans), "stored": stored}
        told["identity"] = {"key": plan.key.hex(), "scope": plan.partition.scope.hex()}
        if not isinstance(end, Hit) and _nothing_stored(end):
            told["nearest"] = await self._nearest(plan, self.store)
        return told

    async def _nearest(self, plan: Plan, store: Store) -> dict[str, Any]:
        """Find the entry of the same scope and endpoint that differs least."""
        partition = plan.partition
        compared = 0
        kept: Entry | None = None
        ours = field_digests(self.secret, partition.scope, partition.endpoint, plan.body)
        after: bytes | None = None
        walked = 0
        while walked < MOST_COMPARED:
            page = await store.walk(after, PAGE)
            walked += len(page.entries)
            near = [
                entry
                for entry in page.entries
                if entry.scope == partition.scope
                and entry.endpoint == partition.endpoint
                and entry.key != plan.key
            ]
            compared += len(near)
            rivals = [*([] if kept is None else [kept]), *near]
            best = nearest(ours, [entry.digests for entry in rivals])
            kept = None if best is None else rivals[best]
            after = page.after
            if after is None:
                break
        told: dict[str, Any] = {"entries": walked, "of_this_scope": compared, "entry": None}
        if kept is not None:
            told["entry"] = _summary(kept, self.now())
            told["differences"] = [
                asdict(each) for each in differences(ours, kept.digests)
            ] or _outside(plan, kept)
        return told


def _eligibility(endpoint: Endpoint, body: dict[str, Any], *, enabled: bool) -> dict[str, Any]:
    if not enabled:
        return {"eligible": False, "reason": POLICY, "why_not": SWITCHED_OFF}
    reason = sought(endpoint, body).ineligible
    if reason is None:
        return {"eligible": True, "reason": None, "why_not": None}
    return {"eligible": False, "reason": reason.value, "why_not": WORDING[reason]}


async def _scanned(
    inquiry: Inquiry, body: dict[str, Any], active: ActivePolicy, decision: Decision
) -> list[Finding]:
    if decision.pii is PiiAction.ALLOW:
        return []
    policy = active.policy
    async with asyncio.timeout(SCAN_SECONDS):
        scanner = await asyncio.to_thread(PiiScanner, policy.regions, policy.allowed)
        return await asyncio.to_thread(findings, scanner, inquiry.endpoint, body, inquiry.query)


def explain_action(
    pipeline: Pipeline, holder: Callable[[Mapping[str, str]], str | None]
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """Return the operator's action that explains what a pipeline does: JSON in, JSON out."""

    def upstream(endpoint: Endpoint, model: str) -> str:
        local = pipeline.local
        served = local if local is not None and local.serves(endpoint, model) else pipeline
        return served.coalescer.upstream.name

    explainer = Explainer(
        pipeline.policies,
        pipeline.store,
        pipeline.semantic,
        pipeline.verifier,
        pipeline.secret,
        upstream,
        pipeline.now,
        salts_caches=pipeline.outbox.salts_caches,
        holder=holder,
        barred=pipeline.coalescer.admitter.quarantine.holds,
        learned=pipeline.learned,
    )

    async def action(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            inquiry = read_inquiry(asked)
        except InquiryError as error:
            raise SelectionError(error.field or "body", error.expected) from None
        return await explainer.explain(inquiry)

    return action


def _whose(tenant: Tenant, holder: str | None) -> str:
    if holder is not None:
        return f"holder {holder}"
    if tenant.credential_sha256 is not None:
        return f"API key with SHA-256 {tenant.credential_sha256[:12]}…"
    named = tenant.organization or tenant.project
    return f"no API key, {named}" if named else "anonymous"


def _failed(condition: Condition, facts: RequestFacts) -> dict[str, Any]:
    """Say what a condition wanted and, where that is no content, what it met."""
    told: dict[str, Any] = {"key": condition.key, "wanted": list(condition.wanted)}
    match condition.key.split(".", 1):
        case ["endpoint"]:
            told["got"] = facts.endpoint
        case ["model"]:
            told["got"] = facts.model
        case ["header", name]:
            told["got"] = facts.headers.get(name)
    return told


def _nothing_stored(end: Forward | Refused) -> bool:
    return isinstance(end, Refused) or end.status.forwarded is Forwarded.MISS


def _outcome(end: Hit | Forward | Refused, now: float) -> dict[str, Any]:
    match end:
        case Hit():
            return {
                "would": "hit",
                "reason": end.status.reason.value,
                "cache_status": end.status.header(),
                "age": end.age,
                "ttl": end.status.ttl,
                "similarity": end.status.similarity,
                "score": end.status.score,
                "threshold": end.status.threshold,
                "entry": _summary(end.entry, now),
            }
        case Forward():
            reason = end.status.reason
            bypass = end.store is None
            return {
                "would": "bypass" if bypass else "miss",
                "forwarded": end.status.forwarded.value,
                "reason": None if reason is None else reason.value,
                "cache_status": end.status.header(),
            }
        case Refused():
            return {"would": "refused", "reason": Reason.ONLY_IF_CACHED.value}


def _summary(entry: Entry, now: float) -> dict[str, Any]:
    return {
        "key": entry.key.hex(),
        "rule": entry.rule,
        "tags": list(entry.tags),
        "age": max(0, int(now - entry.stored_at)),
        "ttl": int(entry.expires_at - now),
        "tokens": entry.tokens,
    }


def _outside(plan: Plan, entry: Entry) -> list[dict[str, Any]]:
    """Name what differs beside the fields of the body."""
    partition = plan.partition
    pairs = (
        ("upstream", entry.upstream != partition.upstream),
        ("generation", entry.generation != partition.generation),
        ("key version", entry.key_version != KEY_VERSION),
    )
    named = [name for name, differs in pairs if differs] or ["PII scan or query string"]
    return [{"field": name, "how": "differs"} for name in named]
