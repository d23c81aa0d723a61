"""Which rules of the policy have an error budget that a threshold keeps, and which have none.

Law: whoever sets a budget that nothing keeps is told, in the log, by ``/readyz`` and beside the
rule's figures, and never has to find out by missing hits. Nothing is said before it is known which
verifier is in use.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.ports import PolicySource
from policies.decide import Decision
from policies.wording import percent_text

log = logging.getLogger(__name__)

NEXT = "no threshold keeps the budget: calibrate on traffic of your own, or set a larger one"


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of the policy in force, held against the calibration in force."""

    policies: PolicySource
    is_known: Callable[[], bool]
    """Whether it is known which verifier is in use."""
    threshold: Callable[[float], float | None]
    """The verifier's for a budget."""

    def kept(self) -> dict[str, bool]:
        """Return of each rule with semantic lookup whether a threshold keeps its budget."""
        if not self.is_known():
            return {}
        return {
            each.rule: self.threshold(each.max_wrong_hits) is not None for each in self._decisions()
        }

    def not_kept(self) -> dict[str, float]:
        """Return the budgets that no threshold keeps, by rule."""
        kept = self.kept()
        return {
            each.rule: each.max_wrong_hits
            for each in self._decisions()
            if kept.get(each.rule) is False
        }

    def tell(self) -> None:
        """Write one line about all that are not kept; for the start, and for a new policy."""
        if not_kept := self.not_kept():
            named = ", ".join(f"{rule} {percent_text(each)}" for rule, each in not_kept.items())
            log.warning(
                "max_wrong_hits: no threshold keeps the budget of %s: at most questions that are "
                "alike but for their frame are answered by meaning there; calibrate on traffic of "
                "your own (refrain semantic calibrate), or set a larger one",
                named,
            )

    def _decisions(self) -> list[Decision]:
        policy = self.policies.active.policy
        every = [*(rule.decision for rule in policy.rules), policy.default]
        return [decision for decision in every if decision.semantic]
