"""One request, parsed and decided on: what holds for all of it, and who answers a miss."""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.cache.canonical import BodyError, LoneSurrogateError, parse_body
from gateway.cache.key import Tenant
from gateway.cache.lookup import State
from gateway.cache.ports import ActivePolicy
from gateway.protocol.conversation import last_user_text, system_text
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import ClientError
from gateway.protocol.messages import Inbound
from gateway.semantic.ports import LocalEncoder
from gateway.semantic.verification import Verification
from gateway.telemetry.observation import Observation
from gateway.upstream.coalescing.coalescer import Coalescer
from policies.decision import Decision
from policies.policy import RequestFacts

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


class Asked(NamedTuple):
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

    asked: Asked = field(init=False)
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
