"""The systems measured: decision and verifier of each, behind the gateway's own port."""

from dataclasses import dataclass, replace

from embeddings.verify.guards import guard
from gateway.core.verification import Verification
from gateway.ports import Verifier
from gateway.semantics import AgreementVerifier
from policies.decide import Decision
from quality.kept import Kept

WHOLE = "whole"
RULES = "rules, no model"
GUARDS = "guards, any score"


@dataclass(frozen=True, slots=True)
class System:
    """A verifier, and what it is asked to keep to."""

    name: str
    verifier: Verifier
    max_wrong_hits: float = 0.01

    def decision(self, default: Decision) -> Decision:
        return replace(default, max_wrong_hits=self.max_wrong_hits)


class Guards:
    """See the port ``Verifier``: what the guards leave to the model, all of it taken."""

    async def verify(self, asked: str, stored: str) -> Verification:
        """See the port."""
        refusal = guard(asked, stored)
        return Verification(1.0 if refusal is None else 0.0, refusal)

    def threshold(self, max_wrong_hits: float) -> float | None:
        """See the port."""
        return None if max_wrong_hits <= 0 else 0.5


def systems(_kept: Kept) -> list[System]:
    """Return the systems in the order of the table."""
    return [System(RULES, AgreementVerifier()), System(GUARDS, Guards())]
