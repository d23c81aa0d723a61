"""One request: its parsed body, the policy's decision, its trace, and the PII scan of its text.

Law: the fields beside the prompt (``user``, ``metadata``) are each request's own. Requests of one
key may share a lookup and an upstream call, but not these fields.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gateway.cache.key import Tenant
from gateway.cache.lookup import End, State, kept_plan, set_apart
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan
from gateway.cache.ports import ActivePolicy, Scanner
from gateway.protocol.cache_status import Reason
from gateway.protocol.conversation import (
    is_readable,
    last_user_text,
    names_text,
    prompt_text,
    system_text,
)
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import ClientError
from gateway.protocol.exact_json import BodyError, LoneSurrogateError, parse_body
from gateway.protocol.messages import Inbound
from gateway.semantic.ports import LocalEncoder, Verification
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from policies.decision import Decision, Endpoint
from policies.policy import RequestFacts

INLINE_BYTES = 32_768
"""Longer bodies are scanned and rewritten in a thread."""

MOST_PARTS = 500_000
"""Objects, arrays and members of a request: a hundred thousand messages have fewer."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The installation's own encoder, as who answers requests that name it."""

    encoder: LocalEncoder
    coalescer: Coalescer

    def serves(self, model: str) -> bool:
        """Tell whether embeddings by this model are for this encoder.

        It is named with or without its maker, and has no name until it is loaded.
        """
        name = self.encoder.name
        return bool(name) and model in (name, f"sentence-transformers/{name}")


class Parsed(NamedTuple):
    """The body of a request.

    ``odd`` is why the request is forwarded only: OpenAI refuses its shape, and other servers take
    it. Then ``body`` is the little that routing reads, and ``whole`` is what was sent.
    """

    body: dict[str, Any]
    whole: dict[str, Any]
    odd: ClientError | None = None


class RequestContext(NamedTuple):
    """One request on its way. ``local`` is whether the installation's own encoder answers it.

    ``odd_body`` is the whole body of a request that is forwarded only, see ``Parsed``. ``beside``
    holds what the scan of a batch's other fields came to, once there is one, for all items.
    ``trace`` is there where the request is only explained; ``steps`` are those of its lookup.
    """

    endpoint: Endpoint
    inbound: Inbound
    body: dict[str, Any]
    active: ActivePolicy
    tenant: Tenant
    decision: Decision
    coalescer: Coalescer
    local: bool
    seen: Observation
    odd_body: dict[str, Any] | None = None
    beside: list[str | None] | None = None
    trace: "Trace | None" = None
    steps: "list[Step] | None" = None

    def note(self, state: State, came: object = None) -> None:
        """Note in the trace, where there is one, what the work of a state came to."""
        if self.steps is not None:
            self.steps.append(Step(state, came))


class Verdict(NamedTuple):
    """What a verifier said of a candidate, and the score that the rule's budget needs."""

    verification: Verification
    threshold: float | None
    alias: bool


class Step(NamedTuple):
    """A state of a lookup, and what its work came to: a value, or the fault in its place.

    That is an entry or None, the kind of personal data found, the candidates' keys and
    similarities, or a ``Verdict``.
    """

    state: Any
    came: Any


@dataclass(slots=True)
class Trace:
    """What became of a request that is explained: nothing of it is sent, stored or learnt.

    ``asked`` is set where the request was read, ``odd`` as in ``Parsed``.
    ``lookups`` are the steps of its lookup, or of each item of a batch; the last is how it ends.
    """

    asked: RequestContext = field(init=False)
    odd: ClientError | None = None
    lookups: list[list[Step]] = field(default_factory=list)

    def begin_lookup(self) -> list[Step]:
        """Return where the steps of the next lookup are noted."""
        self.lookups.append([])
        return self.lookups[-1]


def facts_of(
    endpoint: Endpoint, body: dict[str, Any], inbound: Inbound, tenant: Tenant
) -> RequestFacts:
    """Return all that a policy may look at."""
    return RequestFacts(
        endpoint=endpoint.value,
        model=body.get("model") or "",
        headers=inbound.headers,
        credential_sha256=tenant.credential_sha256,
        organization=tenant.organization,
        project=tenant.project,
        last_user_text=last_user_text(endpoint, body),
        system_text=system_text(endpoint, body),
    )


def parse_request(endpoint: Endpoint, raw: bytes) -> Parsed:
    """Return the body of a request, checked for its shape. Raises ClientError."""
    if len(raw) > MOST_PARTS:
        _refuse_too_many(raw)
    odd: ClientError | None = None
    try:
        body = parse_body(raw)
    except LoneSurrogateError as error:
        body, odd = error.body, ClientError(400, str(error))
    except BodyError as error:
        raise ClientError(400, str(error)) from None
    odd = SPECS[endpoint].validate(body) or odd
    return Parsed(body if odd is None else _routed_by(endpoint, body), body, odd)


def _refuse_too_many(raw: bytes) -> None:
    # A parser holds up everybody for as long as it takes: a million small objects take a second.
    if _parts(raw) <= MOST_PARTS:
        return
    # A colon after a quote is never part of a text, where quotes are escaped.
    if raw.count(b'":') > MOST_PARTS or _parts(_TEXT.sub(b"", raw)) > MOST_PARTS:
        message = f"Your request has more than {MOST_PARTS:,} objects, arrays and members."
        raise ClientError(413, message, code="request_too_large")


def _parts(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[") + raw.count(b":")


def _routed_by(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return what routing reads of a request that is forwarded as it came."""
    names = ("model", "previous_response_id") if SPECS[endpoint].keeps_by_id else ("model",)
    little: dict[str, Any] = {
        name: body[name]
        for name in names
        if isinstance(body.get(name), str) and _is_text(body[name])
    }
    if body.get("stream") is True:
        # Usage is not asked for: what the client sent is not touched.
        little |= {"stream": True, "stream_options": {"include_usage": True}}
    if isinstance(body.get("store"), bool):
        little["store"] = body["store"]
    return little


def _is_text(value: str) -> bool:
    return value.isascii() or value.encode("utf-8", "replace") == value.encode(
        "utf-8", "surrogatepass"
    )


async def scan_prompt(asked: RequestContext, plan: Plan, scans: Scans) -> str | None:
    """Return the kind of the first finding in what makes the key. Raises ScanFailedError.

    Of an item of a batch that is the item; the other fields are scanned once for all items.
    """
    if not is_readable(plan.partition.endpoint, plan.body):
        return "unreadable"

    async def found(body: dict[str, Any], query: str, size: int) -> str | None:
        read = partial(prompt_text, plan.partition.endpoint, body, query)
        text = await asyncio.to_thread(read) if size > INLINE_BYTES else read()
        return await scans.scan(asked.active.scanner, text, plan.partition.scope)

    body, query, size = plan.body, plan.partition.query, len(asked.inbound.raw)
    if asked.beside is None:
        return await found(body, query, size)
    if not asked.beside:
        rest = {name: value for name, value in body.items() if name != "input"}
        asked.beside.append(await found(rest, query, size))
    if asked.beside[0] is not None:
        return asked.beside[0]
    return await found({"input": body["input"]}, "", len(body["input"]))


def plan_to_scan(ends: Sequence[End], endpoint: Endpoint, body: dict[str, Any]) -> Plan | None:
    """Return a plan for which these fields must be scanned, None where nothing would be stored.

    No coroutine: most requests are hits or have none of these fields.
    """
    if SPECS[endpoint].neutral.isdisjoint(body):
        return None
    plan = next((plan for end in ends if (plan := kept_plan(end)) is not None), None)
    return plan if plan is not None and plan.scans else None


async def without_names(
    ends: Sequence[End], body: dict[str, Any], plan: Plan, scans: Scans, scanner: Scanner
) -> list[End]:
    """Return the ends of a request's lookups, set apart where these fields hold personal data.

    The fields are scanned once, for however many items.
    """
    try:
        text = names_text(plan.partition.endpoint, body)
        found = await scans.scan(scanner, text, plan.partition.scope)
    except ScanFailedError:
        return [set_apart(end, Reason.SCAN_FAULT, personal=False) for end in ends]
    if found is None:
        return list(ends)
    return [set_apart(end, Reason.PII, personal=True) for end in ends]
