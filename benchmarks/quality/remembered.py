"""A verifier whose verdicts are kept, since guards are read anew in every run for the same pairs.

Law: a verdict is kept under the weights *and* the source of the guards, so that an edit of either
is measured.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import embeddings.verify
import gateway.semantic.verifier
from gateway.semantic.ports import Verification, Verifier
from quality.kept import Kept

_FAULTS = frozenset({"fault", "verifier-timeout", "verifier-error"})
"""Refusals that tell of this machine's load and not of the pair."""


@cache
def source_digest() -> str:
    """Return the digest of all code that makes a verdict."""
    package = Path(embeddings.verify.__file__).parent
    digest = hashlib.sha256()
    for file in (*sorted(package.rglob("*.py")), Path(gateway.semantic.verifier.__file__)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Remembered:
    """See the port ``Verifier``."""

    verifier: Verifier
    weights: str
    """What tells this verifier from others that run the same code."""
    kept: Kept

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        maker, pair = f"verdict {source_digest()} {self.weights}", f"{asked}\0{stored}"
        known = self.kept.find(maker, [pair]).get(pair)
        if known is not None:
            return Verification(*json.loads(known))
        made = await self.verifier.verify(asked, stored, similarity)
        if made.refusal not in _FAULTS:
            self.kept.keep(maker, {pair: json.dumps(made).encode()})
        return made

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        return self.verifier.threshold(max_wrong_hits, verifier)
