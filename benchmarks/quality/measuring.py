"""One trial through every system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embeddings.encoder.encoder import Vector
from quality import peers
from quality.cache import Cache, default_decision, filled
from quality.outcomes import Outcome
from quality.progress import told
from quality.systems import WHOLE, System, all_candidates, thresholds
from quality.trial import Trial


@dataclass(frozen=True, slots=True)
class Measured:
    """`nearest` are the peers' candidates, `candidates` those of the whole, none of them served.

    `thresholds` are the whole's at several budgets; `default` is that of the default budget.
    """

    name: str
    outcomes: dict[str, list[Outcome]]
    nearest: list[Outcome]
    candidates: list[Outcome]
    thresholds: dict[str, float]
    default: float | None


async def measure(
    trial: Trial, vectors: Mapping[str, Vector], systems: Sequence[System]
) -> Measured:
    """Return what each system makes of a trial."""
    nearest = peers.nearest(trial, vectors)
    outcomes = {
        f"cosine {threshold:.2f}": [outcome.at(threshold) for outcome in nearest]
        for threshold in peers.THRESHOLDS
    }
    cache = await filled(trial, vectors)
    for system in systems:
        outcomes[system.name] = await _asked(cache, trial, system)
    whole = next((system for system in systems if system.name == WHOLE), None)
    if whole is None:
        return Measured(trial.name, outcomes, nearest, [], {}, None)
    candidates = await _asked(cache, trial, all_candidates(whole))
    default = whole.verifier.threshold(whole.max_wrong_hits)
    return Measured(trial.name, outcomes, nearest, candidates, thresholds(whole), default)


async def _asked(cache: Cache, trial: Trial, system: System) -> list[Outcome]:
    decision = system.decision(default_decision())
    return [
        await cache.ask(request, decision, system.verifier)
        for request in told(f"{trial.name}, {system.name}", trial.asked)
    ]
