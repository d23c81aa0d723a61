"""Error budgets and comparisons of answers by meaning, rule by rule, for the operator.

Law: a budget that no threshold keeps stands in the log, in ``/readyz`` and beside the rule's
figures, so that nobody has to find out by missing hits. Nothing is said before it is known which
verifier is in use.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.cache.comparison_journal import ComparisonJournal
from gateway.cache.ports import PolicySource, UnfinishedError
from gateway.cache.shadow_eval import RuleComparisons
from gateway.server.admin.operations import refuse_other_fields
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.format.values import percent_text

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
        budgets = self._budgets()
        return {rule: self.threshold(budget) is not None for rule, budget in budgets.items()}

    def not_kept(self) -> dict[str, float]:
        """Return the budgets that no threshold keeps, by rule."""
        budgets = self._budgets()
        return {rule: budgets[rule] for rule, kept in self.kept().items() if not kept}

    def warn(self) -> None:
        """Log one line about all that are not kept, at the start and for each new policy."""
        if not_kept := self.not_kept():
            named = ", ".join(f"{rule} {percent_text(each)}" for rule, each in not_kept.items())
            log.warning(
                "max_wrong_hits: no threshold keeps the budget of %s: at most questions that are "
                "alike but for their frame are answered by meaning there; calibrate on traffic of "
                "your own (refrain semantic calibrate), or set a larger one",
                named,
            )

    def _budgets(self) -> dict[str, float]:
        policy = self.policies.active.policy
        every = (*(rule.decision for rule in policy.rules), policy.default)
        return {each.rule: each.max_wrong_hits for each in every if each.semantic}


@dataclass(frozen=True, slots=True)
class SemanticOperations:
    """The operator's view of the journal of comparisons."""

    journal: ComparisonJournal
    now: Callable[[], float]
    budgets: Budgets

    def report(self) -> dict[str, Any]:
        """Return the figures of each rule that was compared, or whose budget nothing keeps.

        ``budget_kept`` is None where it is not known, or of a rule that is no more.
        """
        report = self.journal.report()
        kept, not_kept = self.budgets.kept(), self.budgets.not_kept()
        empty = {rule: RuleComparisons("", budget).report() for rule, budget in not_kept.items()}
        rows = {
            name: {**figures, "budget_kept": kept.get(name)}
            for name, figures in sorted((empty | report["rules"]).items())
        }
        for figures in rows.values():
            if figures["budget_kept"] is False and not figures["off"]:
                figures["next"] = NEXT
        return {**report, "rules": rows}

    async def reset(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Give a rule, or ``all``, its semantic hits back and count anew.

        Raises InvalidFieldError and UnfinishedError.
        """
        rule, everything = fields.pop("rule", None), fields.pop("all", False)
        refuse_other_fields(fields, "rule", "all")
        known = self.journal.report()["rules"]
        if not isinstance(everything, bool) or (everything and rule is not None):
            raise InvalidFieldError("all", "true, and no rule beside it")
        if not everything and (not isinstance(rule, str) or rule not in known):
            raise InvalidFieldError("rule", "a rule that has been compared, or all: true")
        were_off = [name for name in known if known[name]["off"] and rule in (None, name)]
        try:
            await self.journal.append({"time": self.now(), "kind": "reset", "rule": rule})
        except OSError as error:
            message = "The journal cannot be written: only the worker that answers has done it, "
            raise UnfinishedError(message + "and only until it restarts.") from error
        return {"reset": [rule] if rule is not None else list(known), "were_off": were_off}
