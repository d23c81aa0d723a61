"""Which batch cap to run with, from what was measured at several.

A cap is judged by the 99th percentiles of TTFT and ITL against the operator's targets; among those
that keep them the one with the most throughput is recommended. Without targets it is the knee: the
smallest cap that has nearly all the throughput there is to have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

KNEE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds, at the 99th percentile; None is no target."""

    ttft: float | None = None
    itl: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return self.ttft is not None or self.itl is not None


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured with one cap and one token budget; latencies in seconds, in any order."""

    max_num_seqs: int
    max_tokens_per_step: int | None
    seconds: float
    num_tokens: int
    first_token: tuple[float, ...] = ()
    between_tokens: tuple[float, ...] = ()

    @property
    def throughput(self) -> float:
        """Tokens generated in a second."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def ttft_p99(self) -> float | None:
        """None where nothing was measured."""
        return percentile(self.first_token, 0.99)

    @property
    def itl_p99(self) -> float | None:
        """None where nothing was measured."""
        return percentile(self.between_tokens, 0.99)

    def keeps(self, targets: Targets) -> bool:
        """Whether every target was kept, by measurements that there are."""
        return all(
            target is None or (measured is not None and measured <= target)
            for target, measured in ((targets.ttft, self.ttft_p99), (targets.itl, self.itl_p99))
        )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile: a value that occurred; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(ceil(len(values) * share) - 1, 0)]


def recommend(trials: Sequence[Trial], targets: Targets) -> Trial | None:
    """Return the trial to copy; None where no trial keeps the targets or generated anything."""
    working = [trial for trial in trials if trial.num_tokens]
    if targets.any:
        return max(
            (trial for trial in working if trial.keeps(targets)),
            key=lambda trial: (trial.throughput, -trial.max_num_seqs),
            default=None,
        )
    most = max((trial.throughput for trial in working), default=0.0)
    near = [trial for trial in working if trial.throughput >= KNEE_SHARE * most]
    return min(near, key=lambda trial: (trial.max_num_seqs, -trial.throughput), default=None)
