"""A request on its way: the policy's decision, what is noted of it, and the PII scans of its text.

Law: the fields beside the prompt (``user``, ``metadata``) are each request's own. Requests of one
key may share a lookup and an upstream call, but not these fields.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gateway.cache.key import Tenant
from gateway.cache.lookup import End, restrict_storage, storage_plan
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan
from gateway.cache.ports import Scanner
from gateway.protocol.conversation import names_text, prompt_text
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.request import CacheRequest
from gateway.semantic.ports import Verification
from gateway.server.open.policy_file import ActivePolicy
from gateway.telemetry.observation import Observation
from gateway.upstream.pool.retry_budget import Forwarding
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Decision
from policies.policy import RequestFacts

INLINE_BYTES = 32_768
"""Longer bodies are scanned and rewritten in a thread."""


class RequestContext(NamedTuple):
    """What belongs to one request. ``local`` is whether the installation's own encoder answers it.

    ``batch_scan`` holds the scan of what all items of a batch share, once it is done. ``trace`` is
    set if the request is only explained; ``steps`` are the steps of its lookup.
    """

    request: CacheRequest
    active: ActivePolicy
    tenant: Tenant
    decision: Decision
    coalescer: Coalescer
    local: bool
    observation: Observation
    forwarding: Forwarding
    """Its way to the upstreams, the fallback model's calls included."""
    batch_scan: list[str | None] | None = None
    trace: "Trace | None" = None
    steps: "list[Step] | None" = None


class Verdict(NamedTuple):
    """A verifier's result for a candidate, and the score that the rule's budget needs."""

    verification: Verification
    threshold: float | None
    alias: bool


class Step(NamedTuple):
    """A state of a lookup, and the result of its work, or the fault in its place.

    A result is an entry or None, the kind of personal data found, the candidates' keys and
    similarities, or a ``Verdict``.
    """

    state: Any
    result: Any


@dataclass(slots=True)
class Trace:
    """The way of a request that is explained: nothing of it is sent, stored or learnt.

    ``context`` is set once the request is read. ``lookups`` are the steps of its lookup, or of each
    item of a batch; the last step is the end.
    """

    context: RequestContext = field(init=False)
    lookups: list[list[Step]] = field(default_factory=list)

    def begin_lookup(self) -> list[Step]:
        """Return the list for the steps of the next lookup."""
        self.lookups.append([])
        return self.lookups[-1]


def facts_of(request: CacheRequest, tenant: Tenant) -> RequestFacts:
    """Return all that a policy may look at."""
    return RequestFacts(
        endpoint=request.endpoint.value,
        model=request.model,
        headers=request.headers,
        credential_sha256=tenant.credential_sha256,
        organization=tenant.organization,
        project=tenant.project,
        last_user_text=request.last_user_text,
        system_text=request.system_text,
    )


async def scan_prompt(context: RequestContext, plan: Plan, scans: Scans) -> str | None:
    """Return the kind of the first finding in what makes the key. Raises ScanFailedError.

    Of an item of a batch that is the item; the other fields are scanned once for all items.
    """
    endpoint, body, query = plan.partition.endpoint, plan.body, plan.partition.query

    async def scan(body: dict[str, Any], query: str, size: int) -> str | None:
        read = partial(prompt_text, endpoint, body, query)
        text = await asyncio.to_thread(read) if size > INLINE_BYTES else read()
        if text is None:
            return "unreadable"
        return await scans.scan(context.active.scanner, text, plan.partition.scope)

    size, shared = len(context.request.raw), context.batch_scan
    if shared is None:
        return await scan(body, query, size)
    if not shared:
        rest = {name: value for name, value in body.items() if name != "input"}
        shared.append(await scan(rest, query, size))
    if shared[0] is not None:
        return shared[0]
    return await scan({"input": body["input"]}, "", len(body["input"]))


async def scan_names(
    request: CacheRequest, ends: Sequence[End], scans: Scans, scanner: Scanner
) -> Sequence[End]:
    """Return the ends of a request's lookups, set apart if texts beside the prompt are personal.

    If nothing may be stored, these texts are not read.
    """
    plan = next((plan for end in ends if (plan := storage_plan(end)) is not None), None)
    if plan is None or not plan.scans:
        return ends
    read = partial(names_text, request.endpoint, request.body)
    names = await asyncio.to_thread(read) if len(request.raw) > INLINE_BYTES else read()
    if not names:
        return ends
    try:
        found = await scans.scan(scanner, names, plan.partition.scope)
    except ScanFailedError:
        return [restrict_storage(end, Reason.SCAN_FAULT, personal=False) for end in ends]
    return (
        ends
        if found is None
        else [restrict_storage(end, Reason.PII, personal=True) for end in ends]
    )
