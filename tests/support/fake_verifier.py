"""The fake at the verifier's port."""

from dataclasses import dataclass, field

from gateway.semantic.ports import Features, Verification


@dataclass(slots=True)
class SaidVerifier:
    """Finds every answer fitting, or says why not; the threshold is a half."""

    said: str | None = None
    score: float = 1.0
    name: str = ""
    needed: dict[str, float] = field(default_factory=dict)
    """The thresholds of some verifiers, by their names."""
    features: Features | None = None

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        return Verification(self.score, self.said, self.name, self.features)

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        return self.needed.get(verifier, 0.5) if max_wrong_hits > 0 else None
