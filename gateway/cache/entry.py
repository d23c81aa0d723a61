"""Values the gateway's decisions are made of.

Pure and immutable: an entry or a request identity is made once and never changed, so it can be
shared by the loop, a store's thread and a test without a lock.
"""

from dataclasses import dataclass

KEY_VERSION = 2
"""Raised when the canonical form or the entry format changes; part of every key and entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored answer and all that identifies the request it answers.

    ``result`` is the canonical, complete reply in the endpoint's plain JSON form; both wire modes
    are rendered from it. ``question`` is the last user message where the entry may be found by
    meaning, else None. Times are seconds since the epoch; ``expires_at`` never moves, and for
    ``grace`` seconds after it the entry may still be served stale: a store may forget it then.
    ``tokens`` is what a hit saves, prompt and completion. ``digests`` are pairs of a field's name
    and an 8-byte keyed digest of its value, so that a miss can be explained without its text.
    """

    key: bytes
    endpoint: str
    model: str
    upstream: str
    generation: int
    scope: bytes
    fingerprint: bytes
    rule: str
    stored_at: float
    expires_at: float
    result: bytes
    question: str | None = None
    tags: tuple[str, ...] = ()
    tokens: int = 0
    grace: float = 0.0
    digests: tuple[tuple[str, bytes], ...] = ()
    key_version: int = KEY_VERSION

    @property
    def kept_until(self) -> float:
        """When nothing can be done with the entry any more."""
        return self.expires_at + self.grace
