"""Do answers change when their context is compressed? Counts, and the verdict.

Law: what is unsure counts as changed. A request that is not answered the same twice tells nothing
of compression: it is left out and told, and where nothing is left there is no verdict.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gateway.prompts.compress.outcome import Compression
from gateway.protocol.endpoint import Endpoint
from gateway.semantic.compare.answers import Outcome
from policies.binomial import upper_bound

CONFIDENCE = 0.95
MOST_NEEDED = 5000
"""Answers beyond which it is not told how many would prove something."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one request: its answer beside a second one, and beside the compressed one's."""

    again: Outcome
    compressed: Outcome


@dataclass(slots=True)
class Tally:
    """What came of all requests of a log."""

    undeclared: int = 0
    """Requests without context that their rule compresses."""
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    unstable: int = 0
    compared: int = 0
    changed: int = 0
    unsure: int = 0
    """Of the changed."""
    tokens: int = 0
    saved: int = 0

    def take(self, asked: Asked, told: Compression) -> bool:
        """Count a request that was asked three times; tell whether its answer changed."""
        self.tokens += told.tokens
        self.saved += told.saved
        if asked.again is not Outcome.EQUAL:
            self.unstable += 1
            return False
        self.compared += 1
        if asked.compressed is Outcome.EQUAL:
            return False
        self.changed += 1
        self.unsure += asked.compressed is Outcome.UNSURE
        return True

    @property
    def share(self) -> float | None:
        """Share of the answers that changed; None where nothing was compared."""
        return self.changed / self.compared if self.compared else None

    @property
    def bound(self) -> float:
        """The share that it may be, with the confidence."""
        return upper_bound(self.changed, self.compared, CONFIDENCE)

    def passes(self, most: float) -> bool:
        """Tell whether no more than this share of the answers changed."""
        return self.share is not None and self.share <= most

    def proves(self, most: float) -> bool:
        """Tell whether so few changed that no more do, with the confidence."""
        return self.compared > 0 and self.bound <= most

    def lacking(self, most: float) -> int | None:
        """Return how many answers more would prove it if none of them changed, if so few would."""
        for of in range(self.compared, MOST_NEEDED + 1):
            if upper_bound(self.changed, of, CONFIDENCE) <= most:
                return of - self.compared
        return None

    def plain(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {
            "compared": self.compared,
            "changed": self.changed,
            "unsure": self.unsure,
            "share": self.share,
            "upper_bound": self.bound,
            "unstable": self.unstable,
            "undeclared": self.undeclared,
            "refused": dict(self.refused),
            "failed": dict(self.failed),
            "tokens": self.tokens,
            "saved": self.saved,
        }


def repeatable(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request as it is asked here: plain, at temperature 0, and stored by nobody."""
    asked = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    asked["temperature"] = 0
    if endpoint is Endpoint.RESPONSES or "store" in asked:
        asked["store"] = False
    return asked
