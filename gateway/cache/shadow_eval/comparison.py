"""An answer found by meaning beside a fresh one to the same question, and the line about it.

Law: a line holds digests and figures; texts only where the operator lets the decision log hold
them. What was written is read back as it was, and a line that is none is passed over.

Which of the hits are also asked upstream: a share of them, drawn without chance.

One owner, who counts: the same hits in the same order draw the same.
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
from policies.plain_enum import plain_members

_ID_BYTES = 16


@plain_members
class Kind(StrEnum):
    """How the answer stood that was found by meaning."""

    SERVED = "served"
    SHADOW = "shadow"
    """It would have been served."""
    NEAR_MISS = "near-miss"
    """The verifier was not sure enough; nothing spoke against it."""


@dataclass(frozen=True, slots=True)
class Check:
    """An entry found by meaning, to be compared with the fresh answer.

    ``verifier`` is the digest of the one whose score it is, which another may have followed since.
    ``alias`` says that the score alone would not have done: such an entry was chosen because its
    answer had been the same, so that it tells nothing of others with that score.
    """

    kind: Kind
    entry: Entry
    similarity: float
    score: float
    verifier: str
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a check. ``key`` and ``entry`` are cache keys, hex, of asked and stored."""

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
    """One word: what told."""
    asked: str
    """Identity of the question, hex (see ``asked_id``)."""
    promoted: bool
    """Whether the entry answers it from now on, ``until`` when."""
    until: float

    def line(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return asdict(self)


def read_comparison(line: Mapping[str, Any]) -> Comparison | None:
    """Return what a line tells, or None where it tells of no comparison."""
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

    ``threshold`` is the rule's, whichever verifier's score this one is.
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
    """Return what a rate of wrong hits is a rate of: with another, counting begins anew."""
    return f"{decision.generation}/{decision.max_wrong_hits:g}/{threshold}"


def asked_id(plan: Plan) -> str:
    """Return the identity of the question asked, hex: its words, whatever their case.

    Within the compatibility fingerprint, so that it means nothing in another conversation or scope.
    """
    words = " ".join((plan.question or "").casefold().split())
    told = b"alias" + plan.fingerprint + words.encode("utf-8", "surrogatepass")
    return hmac.digest(plan.secret, told, "sha256")[:_ID_BYTES].hex()


_RANGE = 2**64


class Sampling:
    """Draws among the hits of one process."""

    def __init__(self) -> None:
        self._count = 0

    def draws(self, key: bytes, share: float) -> bool:
        """Tell whether this hit, of the entry under ``key``, is one of the share."""
        if share <= 0:
            return False
        self._count += 1
        digest = blake2b(self._count.to_bytes(8), key=key[:64], digest_size=8).digest()
        return int.from_bytes(digest) < share * _RANGE
