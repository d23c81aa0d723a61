"""``refrain policy check``, ``schema`` and ``replay``.

A replay sends a decision log through a simulated cache. Law: recorded and edited decisions are
simulated in the same way, without evictions and restarts, so that any difference comes from the
policy. Unknown results are counted, never guessed: if an edited rule depends on unrecorded text,
the request keeps its recorded decision. Only a log without any record is an error.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gateway.cli.offline.estimate.text import counted
from gateway.cli.offline.json_lines import Lines
from gateway.cli.progress import noting, progress
from gateway.cli.terminal import CommandError, show, show_json, unreadable
from gateway.semantic.calibrations import known_calibrations
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.decision import Decision, PiiAction, Scope
from policies.format.load import PolicyError, json_schema, parse_policy
from policies.format.yaml_document import policy_text
from policies.policy import Policy, RequestFacts
from policies.recorded import RecordedFacts, RecordedPolicy, recorded_policy

_ADMITTED_BY = {"truncated": "length", "filtered": "content_filter"}
"""Reasons of declined answers that a rule's finish reasons may admit."""


class Record(BaseModel):
    """A decision on a request and its outcome, see docs/guides/decision-log.md."""

    model_config = ConfigDict(defer_build=True)

    time: float
    endpoint: str
    model: str
    rule: str
    decision: Decision
    form: str
    """Identity of the request's body; equal bodies, equal forms."""
    scopes: dict[str, str | None]
    key: str
    outcome: str
    reason: str | None = None
    declined: str | None = None
    source: str | None = None
    """Key of the entry that a semantic hit was answered from."""
    similarity: float | None = None
    score: float | None = None
    threshold: float | None = None
    temperature: float | None = None
    tokens: int | None = None
    conditions: dict[str, bool] | None = None
    text: str | None = None
    system: str | None = None

    @property
    def facts(self) -> RecordedFacts:
        facts = RequestFacts(
            endpoint=self.endpoint,
            model=self.model,
            headers={},
            credential_sha256=None,
            organization=None,
            project=None,
            last_user_text=self.text,
            system_text=self.system,
        )
        has_text = "text" in self.model_fields_set
        return RecordedFacts(facts, self.conditions or {}, has_text=has_text)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, line: Any) -> Any:
        match line:
            case {"rule": rule, "decision": dict(decision)}:
                return {**line, "decision": {**decision, "rule": rule}}
        return line


def read_record(line: Any) -> Record:
    """Read a decision from parsed JSON. Raises InvalidFieldError."""
    try:
        return Record.model_validate(line)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        what = "what a record of a decision holds" if field else "a record of a decision"
        raise InvalidFieldError(field, what) from None


Thresholds = Callable[[float], float | None]
"""A calibration: the least score of a hit under an error budget, None where none is known."""


@dataclass(slots=True)
class Tally:
    """Counts of outcomes; ``tokens`` are the tokens that hits saved."""

    requests: int = 0
    hits: int = 0
    tokens: int = 0
    bypasses: int = 0

    def add(self, tokens: int | None, hit: bool | None) -> None:
        self.requests += 1
        self.hits += hit is True
        self.bypasses += hit is None
        self.tokens += (tokens or 0) if hit else 0


class Cache:
    """A cache without bounds that knows of each entry until when it is fresh."""

    def __init__(self, calibrations: Sequence[Thresholds] = ()) -> None:
        self._calibrations = calibrations
        self.unjudged = 0
        """Semantic hits kept because no calibration tells of the edited budget."""
        self.entries: dict[tuple[str, str, int], tuple[float, float]] = {}
        """When each was stored, and until when it is fresh; stale ones stay."""
        self._forms: dict[str, str] = {}

    def take(self, record: Record, decision: Decision) -> bool | None:
        """Return whether the request hits, None where it is not looked up at all."""
        self._forms.setdefault(record.key, record.form)
        scope = record.scopes.get(decision.scope.value)
        if scope is None or not self._eligible(record, decision):
            return None
        place = (scope, record.form, decision.generation)
        if decision.exact and self._fresh(place, record.time, decision):
            return True
        if decision.semantic and not decision.shadow and self._near(record, decision, scope):
            return True
        if _would_admit(record, decision):
            self.entries[place] = record.time, record.time + decision.lifetime
        return False

    def _eligible(self, record: Record, decision: Decision) -> bool:
        if not (decision.exact or decision.semantic):
            return False
        if record.outcome == "bypass" and record.reason == "pii":
            return decision.pii is PiiAction.ALLOW or (
                decision.pii is PiiAction.USER and decision.scope is Scope.USER
            )
        if record.outcome == "bypass" and record.reason not in ("policy", "no-user", "temperature"):
            return False
        limit = decision.max_temperature
        return limit is None or record.temperature is None or record.temperature <= limit

    def _fresh(self, place: tuple[str, str, int], now: float, decision: Decision) -> bool:
        stored, fresh_until = self.entries.get(place, (now, now))
        return now < min(fresh_until, stored + decision.lifetime)

    def _near(self, record: Record, decision: Decision, scope: str) -> bool:
        source = None if record.source is None else self._forms.get(record.source)
        return (
            source is not None
            and record.similarity is not None
            and record.similarity >= decision.min_similarity
            and self._fresh((scope, source, decision.generation), record.time, decision)
            and self._keeps_budget(record, decision.max_wrong_hits)
        )

    def _keeps_budget(self, record: Record, budget: float) -> bool:
        was, score, needed = record.decision.max_wrong_hits, record.score, record.threshold
        if budget >= was:
            return True
        if score is not None and needed is not None:
            for threshold in self._calibrations:
                if threshold(was) == needed:
                    least = threshold(budget)
                    return least is not None and score >= least
        self.unjudged += 1
        return True


def _would_admit(record: Record, decision: Decision) -> bool:
    declined = record.declined
    if declined is None:
        return True
    if declined == "pii":
        return decision.pii is PiiAction.ALLOW
    return _ADMITTED_BY.get(declined) in decision.finish_reasons


@dataclass(slots=True)
class Report:
    """The changes by an edited policy. ``rules`` are the rules of the edited policy."""

    requests: int = 0
    unknown: int = 0
    unjudged: int = 0
    """Semantic hits kept because no calibration tells of the edited budget."""
    gained: int = 0
    lost: int = 0
    recorded_hits: int = 0
    before: Tally = field(default_factory=Tally)
    after: Tally = field(default_factory=Tally)
    entries_before: int = 0
    entries_after: int = 0
    rules: dict[str, Tally] = field(default_factory=dict)
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests by the rule that decided and the one that would."""


def replay_records(
    records: Iterable[Record], policy: RecordedPolicy, calibrations: Sequence[Thresholds] = ()
) -> Report:
    """Simulate the records, in the order of their time, as recorded and with an edited policy.

    ``calibrations`` may include the log's own, which its recorded thresholds identify.
    """
    report, then, edited = Report(), Cache(), Cache(calibrations)
    for record in records:
        decision = policy.decide(record.facts)
        if decision is None:
            report.unknown += 1
            decision = record.decision
        report.requests += 1
        report.recorded_hits += record.outcome == "hit"
        report.moved[record.rule, decision.rule] += 1
        before, after = then.take(record, record.decision), edited.take(record, decision)
        report.gained += bool(after) and not before
        report.lost += bool(before) and not after
        report.before.add(record.tokens, before)
        report.after.add(record.tokens, after)
        report.rules.setdefault(decision.rule, Tally()).add(record.tokens, after)
    report.entries_before, report.entries_after = len(then.entries), len(edited.entries)
    report.unjudged = edited.unjudged
    return report


def check(*, files: Sequence[Path]) -> int:
    """Tell of each file whether it is a valid policy; return the exit code."""
    valid = [_is_valid(file) for file in files]
    return 0 if all(valid) else 2


def _is_valid(file: Path) -> bool:
    try:
        policy = _read(file)
    except CommandError as error:
        print(error, file=sys.stderr)
        return False
    rules = counted(len(policy.rules), "rule")
    print(f"{file}: valid, {rules} and the default, generation {policy.generation}")
    return True


def schema() -> int:
    """Print the JSON schema of policy files."""
    print(json.dumps(json_schema(), indent=2))
    return 0


def replay(*, policy: Path, data_dir: Path | None, as_json: bool, log: Path) -> int:
    """Print the changes that an edited policy would have made; return the exit code."""
    edited = recorded_policy(_read(policy))
    calibrations = [each.threshold for each in known_calibrations(data_dir)]
    records = Lines(read_record, log)
    with progress("replaying requests") as note:
        read = (record for _, record in noting(records, note))
        report = replay_records(read, edited, calibrations)
    if not report.requests:
        raise CommandError(f"{log}: no record of a decision in it")
    if as_json:
        moved = [
            {"from": was, "to": would, "requests": count}
            for (was, would), count in sorted(report.moved.items())
        ]
        plain = {**asdict(report), "moved": moved, "skipped_lines": records.skipped}
        show_json(plain)
    else:
        show(_text(report, records.skipped))
    return 0


def _read(file: Path) -> Policy:
    try:
        return parse_policy(policy_text(file.read_bytes(), str(file)), str(file))
    except OSError as error:
        raise unreadable(file, error) from None
    except PolicyError as error:
        raise CommandError(str(error)) from None


def _text(report: Report, skipped: int) -> Iterator[str]:
    before, after = report.before, report.after
    yield f"{report.requests:,} requests, {report.recorded_hits:,} of them hits when recorded"
    notes = (
        (report.unknown, "cannot be told: a rule depends on what the log does not hold; decided"),
        (report.unjudged, "semantic hits cannot be told: they are of another calibration; kept"),
    )
    yield from (f"{count:,} {note} as recorded" for count, note in notes if count)
    if skipped:
        yield f"{skipped:,} lines were no records"
    yield ""
    yield f"{'simulated':<22}{'recorded':>12}{'edited':>12}{'change':>12}"
    figures = (
        ("hits", before.hits, after.hits),
        ("tokens saved", before.tokens, after.tokens),
        ("not looked up", before.bypasses, after.bypasses),
        ("distinct entries", report.entries_before, report.entries_after),
    )
    for name, then, now in figures:
        yield f"{name:<22}{then:>12,}{now:>12,}{now - then:>+12,}"
    yield ""
    yield f"hits gained: {report.gained:,}    hits lost: {report.lost:,}"
    yield ""
    yield f"{'edited rule':<22}{'requests':>12}{'hits':>12}{'tokens':>12}"
    for name, tally in sorted(report.rules.items()):
        yield f"{name:<22}{tally.requests:>12,}{tally.hits:>12,}{tally.tokens:>12,}"
    moved = [(count, was, would) for (was, would), count in report.moved.items() if was != would]
    if moved:
        yield ""
        yield "requests that another rule would decide:"
        for count, was, would in sorted(moved, reverse=True):
            yield f"  {was} -> {would}: {count:,}"
