"""One request, parsed and decided on: what holds for all of it, and who answers a miss."""

from dataclasses import dataclass
from typing import Any, NamedTuple, assert_never

from gateway.core.canonical import BodyError, parse_body
from gateway.core.conversation import last_user_text, system_text
from gateway.core.errors import ClientError
from gateway.core.key import Tenant
from gateway.core.types import Endpoint
from gateway.core.validation import (
    validate_chat,
    validate_completion,
    validate_embeddings,
    validate_response,
)
from gateway.exchange import Inbound
from gateway.forwarding import Forwarder
from gateway.observation import Observation
from gateway.ports import ActivePolicy, LocalEncoder
from policies.decide import Decision, RequestFacts


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The installation's own encoder, as who answers requests that name it."""

    encoder: LocalEncoder
    forwarder: Forwarder

    def serves(self, endpoint: Endpoint, model: str) -> bool:
        """Tell whether a request is for this encoder, by its name with or without its maker's."""
        name = self.encoder.name
        if endpoint is not Endpoint.EMBEDDINGS or not name:
            return False
        return model in (name, f"sentence-transformers/{name}")


class Asked(NamedTuple):
    """One request on its way. ``local`` is whether the installation's own encoder answers it."""

    endpoint: Endpoint
    inbound: Inbound
    body: dict[str, Any]
    active: ActivePolicy
    tenant: Tenant
    decision: Decision
    forwarder: Forwarder
    local: bool
    seen: Observation


def decide(
    endpoint: Endpoint,
    body: dict[str, Any],
    inbound: Inbound,
    tenant: Tenant,
    active: ActivePolicy,
) -> Decision:
    """Return what the policy in force says of the request."""
    if not active.policy.rules:  # nobody would look at the facts
        return active.policy.default
    return active.policy.decide(facts_of(endpoint, body, inbound, tenant))


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
        system_text=system_text(body),
    )


def parse_request(endpoint: Endpoint, raw: bytes) -> dict[str, Any]:
    """Return the body of a request, checked for its shape. Raises ClientError."""
    try:
        body = parse_body(raw)
    except BodyError as error:
        raise ClientError(400, str(error)) from None
    match endpoint:
        case Endpoint.CHAT:
            validate_chat(body)
        case Endpoint.COMPLETIONS:
            validate_completion(body)
        case Endpoint.EMBEDDINGS:
            validate_embeddings(body)
        case Endpoint.RESPONSES:
            validate_response(body)
        case _:
            assert_never(endpoint)
    return body
