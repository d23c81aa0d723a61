"""One request, parsed and decided on: what holds for all of it, and who answers a miss."""

from dataclasses import dataclass
from typing import Any

from gateway.core.key import Tenant
from gateway.core.types import Endpoint
from gateway.exchange import Inbound
from gateway.forwarding import Forwarder
from gateway.observation import Observation
from gateway.ports import ActivePolicy, LocalEncoder
from policies.decide import Decision


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


@dataclass(frozen=True, slots=True)
class Asked:
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
