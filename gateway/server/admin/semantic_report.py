"""Error budgets and comparisons of answers by meaning, rule by rule, for the operator.

Law: a budget that no threshold keeps is in the log, in ``/readyz`` and beside the rule's figures,
so that operators need not infer it from missing hits. Nothing is reported before the verifier in
use is known.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.cache.append_files import last_lines
from gateway.cache.comparison_journal import ComparisonJournal
from gateway.cache.ports import PolicySource, UnfinishedError
from gateway.cache.shadow_eval import RuleComparisons
from gateway.server.admin.operations import refuse_other_fields
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.format.values import percent_text

log = logging.getLogger(__name__)

NEXT = "no threshold keeps the budget: calibrate on traffic of your own, or set a larger one"


MOST_SHOWN = 200
_LAST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of the policy in force, compared with the calibration in force."""

    policies: PolicySource
    is_known: Callable[[], bool]
    """Whether it is known which verifier is in use."""
    threshold: Callable[[float], float | None]
    """The verifier's for a budget."""

    def budgets_met(self) -> dict[str, bool]:
        """Tell for each rule with semantic lookup whether a threshold keeps its budget."""
        if not self.is_known():
            return {}
        budgets = self._budgets()
        return {rule: self.threshold(budget) is not None for rule, budget in budgets.items()}

    def budgets_missed(self) -> dict[str, float]:
        """Return the budgets that no threshold keeps, by rule."""
        budgets = self._budgets()
        return {rule: budgets[rule] for rule, is_met in self.budgets_met().items() if not is_met}

    def warn(self) -> None:
        """Log one line about the missed budgets, at the start and for each new policy."""
        if missed := self.budgets_missed():
            budgets = ", ".join(f"{rule} {percent_text(each)}" for rule, each in missed.items())
            log.warning(
                "max_wrong_hits: no threshold keeps the budget of %s: at most questions that are "
                "alike but for their frame are answered by meaning there; calibrate on traffic of "
                "your own (refrain semantic calibrate), or set a larger one",
                budgets,
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
        """Return the figures of each rule with comparisons or a missed budget.

        ``budget_kept`` is None if unknown, or if the rule no longer exists.
        """
        report = self.journal.report()
        results, missed = self.budgets.budgets_met(), self.budgets.budgets_missed()
        empty = {rule: RuleComparisons("", budget).report() for rule, budget in missed.items()}
        rows = {
            name: {**figures, "budget_kept": results.get(name)}
            for name, figures in sorted((empty | report["rules"]).items())
        }
        for figures in rows.values():
            if figures["budget_kept"] is False and not figures["off"]:
                figures["next"] = NEXT
        return {**report, "rules": rows}

    async def comparisons(self) -> dict[str, Any]:
        """Return the latest comparisons, the newest first. Raises OSError."""
        lines = await asyncio.to_thread(last_lines, self.journal.path, _LAST_BYTES)
        found = [line for line in lines if "outcome" in line]
        return {"comparisons": found[-MOST_SHOWN:][::-1]}

    async def reset(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Turn semantic hits of a rule, or of ``all``, on again and restart the counts.

        Raises InvalidFieldError and UnfinishedError.
        """
        rule, all_rules = fields.pop("rule", None), fields.pop("all", False)
        refuse_other_fields(fields, "rule", "all")
        known = self.journal.report()["rules"]
        if not isinstance(all_rules, bool) or (all_rules and rule is not None):
            raise InvalidFieldError("all", "true, and no rule beside it")
        if not all_rules and (not isinstance(rule, str) or rule not in known):
            raise InvalidFieldError("rule", "a rule that has been compared, or all: true")
        were_off = [name for name in known if known[name]["off"] and rule in (None, name)]
        try:
            await self.journal.append({"time": self.now(), "kind": "reset", "rule": rule})
        except OSError as error:
            message = "The journal cannot be written: only the worker that answers has done it, "
            raise UnfinishedError(message + "and only until it restarts.") from error
        return {"reset": [rule] if rule is not None else list(known), "were_off": were_off}
