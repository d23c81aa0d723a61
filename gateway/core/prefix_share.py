"""How much of the prompts of each route the upstream found in its prefix cache, by its own figures.

Law: a route is a rule and a model. Only calls count whose upstream says what it found; the number
of routes is bounded, and what is beyond it counts together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OTHERS = "others"
"""What stands for the model where there are too many routes."""
MOST_ROUTES = 256
ENOUGH = 50
"""After so many calls with hints that never hit, they are taken for useless."""


@dataclass(slots=True)
class Share:
    """Figures of one route, in calls and tokens."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0
    hinted: int = 0
    """Calls with hints since the figures began."""
    hinted_cached: int = 0
    """What those found."""

    @property
    def share(self) -> float:
        """Of all tokens of prompts, the share that was found."""
        return min(1.0, self.cached / self.prompt) if self.prompt else 0.0

    @property
    def never_hits(self) -> bool:
        """Tell whether hints were sent often enough and never helped."""
        return self.hinted >= ENOUGH and not self.hinted_cached


@dataclass(slots=True)
class PrefixShares:
    """Folds calls into figures of their routes."""

    most: int = MOST_ROUTES
    routes: dict[tuple[str, str], Share] = field(default_factory=dict)

    def route(self, rule: str, model: str) -> tuple[str, str]:
        """Return under which name a call counts."""
        named = (rule, model[:128])
        if named in self.routes or len(self.routes) < self.most:
            return named
        return rule, OTHERS

    def add(
        self, route: tuple[str, str], *, prompt: int, cached: int, written: int, hinted: bool
    ) -> bool:
        """Count a call; tell whether it is the one that shows that hints never hit."""
        share = self.routes.setdefault(route, Share())
        before = share.never_hits
        share.calls += 1
        share.prompt += prompt
        share.cached += cached
        share.written += written
        if hinted:
            share.hinted += 1
            share.hinted_cached += cached
        return share.never_hits and not before

    def report(self) -> dict[str, Any]:
        """Return the figures of all routes, those with the longest prompts first."""
        ordered = sorted(self.routes.items(), key=lambda each: -each[1].prompt)
        return {"routes": [_told(*route, share) for route, share in ordered]}

    def never_hit(self) -> list[str]:
        """Return the routes whose hints never hit."""
        return sorted(" ".join(route) for route, share in self.routes.items() if share.never_hits)


def _told(rule: str, model: str, share: Share) -> Mapping[str, Any]:
    return {
        "rule": rule,
        "model": model,
        "calls": share.calls,
        "prompt_tokens": share.prompt,
        "cached_tokens": share.cached,
        "written_tokens": share.written,
        "share": round(share.share, 4),
        "hinted_calls": share.hinted,
        "hints_never_hit": share.never_hits,
    }
