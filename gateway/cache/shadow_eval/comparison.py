"""The comparison of an answer found by meaning with a fresh one, and its line in the journal.

Law: a line holds digests and figures, and texts only where the operator lets the decision log hold
them. A line that was written is read back unchanged; any other line is passed over.
"""

import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from gateway.cache.entry import Entry
from gateway.cache.plan import Plan
from gateway.semantic.compare.answers import Outcome
from policies.decision import Decision

_ID_BYTES = 16


class Kind(StrEnum):
    """What became of the answer that was found by meaning."""

    SERVED = "served"
    SHADOW = "shadow"
    """Would have been served."""
    NEAR_MISS = "near-miss"
    """Its score was too low; nothing else spoke against it."""


@dataclass(frozen=True, slots=True)
class Check:
    """An entry found by meaning, to be compared with the fresh answer.

    ``verifier`` is the digest of the verifier that gave the score. ``alias``: the entry was chosen
    because its answer had once been the same, though its score was too low. So it says nothing of
    other entries with that score.
    """

    kind: Kind
    entry: Entry
    similarity: float
    score: float
    verifier: str
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a check. ``key`` and ``entry`` are cache keys, hex, of asked and stored."""

    time: float
    kind: Kind
    rule: str
    basis: str
    budget: float
    key: str
    entry: str
    similarity: float
    score: float
    verifier: str
    alias: bool
    outcome: Outcome
    why: str
    """One word: what decided."""
    asked: str
    """Identity of the question, hex (see ``asked_id``)."""
    promoted: bool
    """Whether the entry answers this question from now on, ``until`` when."""
    until: float

    def line(self) -> dict[str, Any]:
        """Return the journal's line."""
        return asdict(self)


def read_comparison(line: Mapping[str, Any]) -> Comparison | None:
    """Return the comparison of a line, None where it holds none."""
    try:
        return Comparison(
            time=float(line["time"]),
            kind=Kind(line["kind"]),
            rule=str(line["rule"]),
            basis=str(line["basis"]),
            budget=float(line["budget"]),
            key=str(line["key"]),
            entry=str(line["entry"]),
            similarity=float(line["similarity"]),
            score=float(line["score"]),
            verifier=str(line["verifier"]),
            alias=line["alias"] is True,
            outcome=Outcome(line["outcome"]),
            why=str(line["why"]),
            asked=str(line["asked"]),
            promoted=line["promoted"] is True,
            until=float(line["until"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def compared(
    check: Check, plan: Plan, outcome: Outcome, why: str, *, threshold: float | None, now: float
) -> Comparison:
    """Return the comparison of a check for the request of this plan.

    ``threshold`` is the rule's, whichever verifier gave the score.
    """
    decision, entry = plan.decision, check.entry
    promoted = check.kind is Kind.NEAR_MISS and outcome is Outcome.EQUAL and decision.promote
    return Comparison(
        time=now,
        kind=check.kind,
        rule=decision.rule,
        basis=basis_of(decision, threshold),
        budget=decision.max_wrong_hits,
        key=plan.key.hex(),
        entry=entry.key.hex(),
        similarity=round(check.similarity, 6),
        score=round(check.score, 6),
        verifier=check.verifier,
        alias=check.alias,
        outcome=outcome,
        why=why,
        asked=asked_id(plan),
        promoted=promoted,
        until=entry.expires_at,
    )


def basis_of(decision: Decision, threshold: float | None) -> str:
    """Return what a rate of wrong hits holds for: where it changes, counting starts again."""
    return f"{decision.generation}/{decision.max_wrong_hits:g}/{threshold}"


def asked_id(plan: Plan) -> str:
    """Return the identity of the question asked, hex: its words, in any case.

    It contains the compatibility fingerprint, so it differs in another conversation or scope.
    """
    words = " ".join((plan.question or "").casefold().split())
    identity = b"alias" + plan.fingerprint + words.encode("utf-8", "surrogatepass")
    return hmac.digest(plan.secret, identity, "sha256")[:_ID_BYTES].hex()


class Sampling:
    """Draws a share of the hits of one process; the same hits in the same order draw the same."""

    def __init__(self) -> None:
        self._count = 0

    def draws(self, key: bytes, share: float) -> bool:
        """Tell whether this hit of the entry under ``key`` is drawn."""
        if share <= 0:
            return False
        self._count += 1
        digest = blake2b(self._count.to_bytes(8), key=key[:64], digest_size=8).digest()
        return int.from_bytes(digest) < share * 2**64
