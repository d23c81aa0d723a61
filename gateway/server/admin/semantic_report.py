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
from gateway.cache.ports import UnfinishedError
from gateway.cache.quality.comparison_journal import JUDGED, ComparisonJournal
from gateway.cache.quality.shadow_eval import RuleComparisons
from gateway.semantic.calibrations import Traffic
from gateway.server.admin.operations import read_hash, refuse_other_fields
from gateway.server.admin.recorded_request import InvalidFieldError
from gateway.server.open.policy_file import PolicySource
from policies.format.values import percent_text

log = logging.getLogger(__name__)

NEXT = "no threshold keeps the budget: calibrate on your own traffic, or set a larger budget"


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
                "alike but for their frame are answered by meaning there; calibrate on your own "
                "traffic (refrain semantic calibrate), or set a larger budget",
                budgets,
            )

    def _budgets(self) -> dict[str, float]:
        decisions = self.policies.active.policy.decisions
        return {each.rule: each.max_wrong_hits for each in decisions if each.semantic}


@dataclass(frozen=True, slots=True)
class SemanticOperations:
    """The operator's view of the journal of comparisons."""

    journal: ComparisonJournal
    now: Callable[[], float]
    budgets: Budgets
    traffic: Traffic

    def report(self) -> dict[str, Any]:
        """Return the figures of each rule with comparisons or a missed budget.

        ``budget_kept`` is None if unknown, or if the rule no longer exists. ``distances`` is how
        far this worker's traffic is from the calibration, by feature, and ``unlike`` what is far.
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
        traffic = {"distances": self.traffic.distances(), "unlike": self.traffic.problem()}
        return {**report, "rules": rows, **traffic}

    async def latest_report(self) -> dict[str, Any]:
        """Return the report with what all workers have written up to now."""
        await self.journal.refresh()
        return self.report()

    async def comparisons(self) -> dict[str, Any]:
        """Return the latest comparisons, the newest first. Raises OSError."""
        lines = await asyncio.to_thread(last_lines, self.journal.path, _LAST_BYTES)
        judged = {
            (line.get("entry"), line.get("key"), line.get("of")): line.get("same")
            for line in lines
            if line.get("kind") == JUDGED
        }
        found = [line for line in lines if "outcome" in line][-MOST_SHOWN:][::-1]
        for line in found:
            line["judged_same"] = judged.get((line.get("entry"), line.get("key"), line.get("time")))
        return {"comparisons": found}

    async def judge(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Write down what a person says of a comparison; ``refrain semantic calibrate`` reads it.

        Raises InvalidFieldError and UnfinishedError.
        """
        refuse_other_fields(fields, "entry", "key", "time", "same")
        pair = {name: read_hash(name, fields.get(name)).hex() for name in ("entry", "key")}
        at, same = fields.get("time"), fields.get("same")
        if not isinstance(at, int | float) or isinstance(at, bool):
            raise InvalidFieldError("time", "the time of the comparison")
        if not isinstance(same, bool):
            raise InvalidFieldError("same", "true or false")
        line = {"time": self.now(), "kind": JUDGED, **pair, "of": at, "same": same}
        try:
            await self.journal.append(line)
        except OSError as error:
            raise UnfinishedError("The journal cannot be written: judge again.") from error
        return {"same": same}

    async def reset(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Turn semantic hits of a rule, or of ``all``, on again and restart the counts.

        Raises InvalidFieldError and UnfinishedError.
        """
        rule, all_rules = fields.pop("rule", None), fields.pop("all", False)
        refuse_other_fields(fields, "rule", "all")
        await self.journal.refresh()
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
