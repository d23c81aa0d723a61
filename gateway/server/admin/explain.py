"""What would become of a request, and why: the rule, the decision, the scan, the lookup.

Law: the pipeline itself drives the lookup, with a trace; here what it noted is put into words.
Nothing changes. An explanation has field names, places, digests and figures, never an answer or
another scope's anything; of a prompt only what would be rewritten of the request that is explained.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from itertools import accumulate, islice, takewhile
from typing import Any, NamedTuple

from gateway.cache.key import Tenant, differences, document_owner, field_digests, nearest
from gateway.cache.lookup import (
    End,
    FetchCandidate,
    Forward,
    Hit,
    LookUpExact,
    LookUpPersonal,
    Refused,
    ScanPrompt,
    SearchSemantic,
    State,
    VerifyCandidate,
)
from gateway.cache.plan import Plan
from gateway.cache.ports import KEY_VERSION, Entry, Store, StoreError
from gateway.prompts.hints import add_hints, hints_for
from gateway.prompts.json_splice import Edit
from gateway.prompts.outcome import PreparedRequest
from gateway.prompts.rewrite.rules import rewrite
from gateway.protocol.conversation import as_names, names_text, prompt_text, query_readings
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import PromptTooLongError, RequestError
from gateway.protocol.http.cache_status import WHY_EXACT_ONLY, Forwarded, Reason
from gateway.protocol.request import CacheRequest, read_request
from gateway.protocol.tokens import prompt_tokens
from gateway.semantic.eligibility import semantic_query
from gateway.server.admin.operations import entry_summary, walk
from gateway.server.admin.recorded_request import RecordedRequest
from gateway.server.context import RequestContext, Step, Trace, Verdict, facts_of
from gateway.server.keys.key_line import Key
from gateway.server.pipeline import Pipeline
from policies.decision import PiiAction
from policies.format.settings import settings_of
from policies.pii.scan import PiiScanner
from policies.policy import Condition, RequestFacts

MOST_COMPARED = 50_000
MOST_HUNKS = 100
SCAN_SECONDS = 10.0
MOST_FINDINGS = 100
_COMBINED = "texts put together or unescaped"
_NAME_FIELDS = frozenset({"model"}).union(*(spec.neutral for spec in SPECS.values()))
CONTEXT = 24
"""Bytes that are shown before and behind a difference."""
_MOST_WORDS = 2000
"""Of an edit; of longer ones only what both sides begin and end with is left out."""
_WORD = re.compile(rb"\w+(?:[.:+-]\w+)*|[\x80-\xff]+|\s+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains what a pipeline does; ``policy_only`` where there is no store to look into."""

    pipeline: Pipeline
    key_of: Callable[[Mapping[str, str]], Key | None] = lambda _: None
    """Returns a request's gateway key. Raises RequestError if access is refused."""
    without_index: str = "this gateway runs without an index of questions"
    policy_only: bool = False

    async def explain(
        self, recorded: RecordedRequest, sender: tuple[str, str | None] | None = None
    ) -> dict[str, Any]:
        """Return the explanation, a JSON object.

        ``sender`` is a holder of gateway keys, with the team, in place of a key in the headers.
        """
        trace, end = Trace(), None
        request = {"endpoint": recorded.endpoint, "inferred": recorded.inferred}
        report: dict[str, Any] = {"request": request}
        try:
            if sender is None and (key := self.key_of(recorded.headers)) is not None:
                sender = key.name, key.team
            holder, team = sender or (None, None)
            read = read_request(
                recorded.endpoint,
                recorded.raw,
                headers=recorded.headers,
                target=recorded.target,
                holder=holder,
                team=team,
            )
            end = await self.pipeline.explain(read, trace)
        except PromptTooLongError as error:
            report["outcome"] = {"would": "refused", "reason": error.reason}
        except RequestError as error:
            return report | {"outcome": {"would": "invalid", "message": str(error)}}
        context = trace.context
        if (odd := context.request.odd) is not None:
            message = f"{odd.error} The request is forwarded as it came."
            bypass = {"would": "bypass", "reason": Reason.UNKNOWN_SHAPE, "message": message}
            return {"outcome": bypass} | report
        tenant = _client_name(context.tenant, context.request.holder)
        report["request"] |= {"model": recorded.model, "tenant": tenant}
        report |= _decision(context)
        if end is None:
            return report
        report |= await asyncio.to_thread(_rewrites, context, self.pipeline.secret)
        report["pii"] = await _personal_data(context)
        report["semantic"] = _eligibility(context)
        report["outcome"] = _outcome(end, self.pipeline.now())
        # The first item of a batch that is no hit speaks for all.
        missed = (steps for steps in trace.lookups if not isinstance(steps[-1].state, Hit))
        steps = next(missed, trace.lookups[0])
        if len(steps) == 1:  # it was not looked up
            return report
        if not self.policy_only:
            report |= await self._lookup(steps, trace, end)
        elif report["outcome"]["would"] != "bypass":
            report["outcome"] = {"would": "lookup"}
        return report

    async def _lookup(self, steps: Sequence[Step], trace: Trace, end: End) -> dict[str, Any]:
        plan: Plan = steps[0].state.plan
        report: dict[str, Any] = {
            "lookup": [self._words(step) for step in steps[:-1]],
            "identity": {"key": plan.key.hex(), "scope": plan.partition.scope.hex()},
        }
        if len(trace.lookups) > 1:
            stored = sum(isinstance(each[-1].state, Hit) for each in trace.lookups)
            report["items"] = {"asked": len(trace.lookups), "stored": stored}
        fault = next((step.result for step in steps if isinstance(step.result, StoreError)), None)
        try:
            if fault is not None:
                raise fault
            forward = end.status.forwarded if isinstance(end, Forward) else None
            if isinstance(end, Refused) or forward is Forwarded.MISS:
                report["nearest"] = await _nearest(plan, self.pipeline.store, self.pipeline.now())
        except StoreError as error:
            report["outcome"] = {"would": "unknown", "message": f"The store failed: {error}"}
        return report

    def _words(self, step: Step) -> dict[str, str]:
        state, value = step
        name, words, failed = _STEPS.get(type(state), _STEPS[LookUpExact])
        if isinstance(value, Exception):
            result = failed.format(value)
        elif isinstance(state, SearchSemantic) and value is None:
            result = f"not looked up: {self.without_index}"
        else:
            result = words(state, value, self.pipeline.now())
        return {"step": name.format(state), "result": result}


def _entry_words(_state: State, entry: Entry | None, now: float) -> str:
    if entry is None:
        return "no entry"
    age, left = max(0, int(now - entry.stored_at)), int(entry.expires_at - now)
    state = f"fresh for {left} s" if left > 0 else f"stale by {-left} s"
    return f"an entry {age} s old, {state}"


def _near_words(state: SearchSemantic, near: Any, _now: float) -> str:
    if near is Reason.SEMANTIC_OFF:
        return "not looked up: too many such hits of the rule were wrong"
    if not near:
        return "no stored question of the same conversation and parameters"
    least = state.plan.decision.min_similarity
    enough = sum(similarity >= least for _, similarity in near)
    return f"nearest {near[0][1]:.3f}, {enough} of {len(near)} reach {least:g}"


def _verdict_words(state: VerifyCandidate, verdict: Verdict, _now: float) -> str:
    budget = state.plan.decision.max_wrong_hits
    return verdict.verification.describe(verdict.threshold, budget, alias=verdict.alias)


_STEPS: dict[type, tuple[str, Callable[[Any, Any, float], str], str]] = {
    LookUpExact: ("exact", _entry_words, "failed: {}"),
    LookUpPersonal: ("exact, in the end user's scope", _entry_words, "failed: {}"),
    ScanPrompt: ("scan", lambda _, kind, __: f"{kind} found" if kind else "clean", "failed"),
    SearchSemantic: ("meaning", _near_words, "the index cannot answer: {}"),
    FetchCandidate: ("candidate, {0.similarity:.3f}", _entry_words, "failed: {}"),
    VerifyCandidate: ("verification", _verdict_words, "failed: {}"),
}
"""Each state of a lookup: its name, and the words for its result and for a fault."""


def _decision(context: RequestContext) -> dict[str, Any]:
    facts = facts_of(context.request, context.tenant)
    policy, decision = context.active.policy, context.decision
    return {
        "policy": {"source": policy.source, "generation": policy.generation},
        "rules": [
            {"rule": each.rule, "failed": [_failure(failed, facts) for failed in each.failed]}
            for each in policy.trace(facts)
        ],
        "decision": {"rule": decision.rule, "settings": settings_of(decision)},
        "prompt_tokens": prompt_tokens(context.request.endpoint, context.request.body),
    }


def _failure(condition: Condition, facts: RequestFacts) -> dict[str, Any]:
    """Say what a condition wanted and, where that is no content, what it met."""
    report: dict[str, Any] = {"key": condition.key, "wanted": list(condition.wanted)}
    match condition.key.split(".", 1):
        case ["endpoint"]:
            report["got"] = facts.endpoint
        case ["model"]:
            report["got"] = facts.model
        case ["header", name]:
            report["got"] = facts.headers.get(name)
    return report


def _client_name(tenant: Tenant, holder: str | None) -> str:
    if holder is not None:
        return f"holder {holder}"
    if tenant.credential_sha256 is not None:
        return f"API key with SHA-256 {tenant.credential_sha256[:12]}…"
    named = tenant.organization or tenant.project
    return f"no API key, {named}" if named else "anonymous"


def _rewrites(context: RequestContext, secret: bytes) -> dict[str, Any]:
    """Return what the rewrite plan and the hints do; what others shared is not known here."""
    request, decision = context.request, context.decision
    endpoint, raw = request.endpoint, request.raw
    result = rewrite(endpoint, request.body, raw, decision.prefix)
    report = {"rewrite": _diff(raw, result)}
    if hints_for(endpoint, decision.hints):
        settings, owner = decision.hints, document_owner(secret, context.tenant)
        sent = result.raw
        hints = add_hints(endpoint, result.body, sent, settings, rule=decision.rule, owner=owner)
        report["hints"] = _diff(sent, hints)
    return report


def _diff(raw: bytes, result: PreparedRequest) -> dict[str, Any]:
    found = list(islice(hunks(raw, result.edits), MOST_HUNKS + 1))
    return {
        "changes": list(result.changes),
        "declined": [{"rewrite": each.rewrite, "why": each.why} for each in result.declined],
        "diff": [
            {
                name: part.decode(errors="replace") if isinstance(part, bytes) else part
                for name, part in hunk._asdict().items()
            }
            for hunk in found[:MOST_HUNKS]
        ],
        "more": len(found) > MOST_HUNKS,
    }


async def _personal_data(context: RequestContext) -> dict[str, Any]:
    if context.decision.pii is PiiAction.ALLOW:
        return {"scanned": False, "findings": []}
    policy = context.active.policy
    async with asyncio.timeout(SCAN_SECONDS):
        scanner = await asyncio.to_thread(PiiScanner, policy.regions, policy.allowed)
        found = await asyncio.to_thread(_find_personal_data, scanner, context.request)
    return {"scanned": True, "findings": found}


def _eligibility(context: RequestContext) -> dict[str, Any]:
    if not context.decision.semantic:
        why_not = "the policy switches semantic off"
        return {"eligible": False, "reason": "policy", "why_not": why_not}
    found = semantic_query(context.request.endpoint, context.request.body)
    if not isinstance(found, Reason):
        return {"eligible": True, "reason": None, "why_not": None}
    return {"eligible": False, "reason": found, "why_not": WHY_EXACT_ONLY[found]}


def _outcome(end: End, now: float) -> dict[str, Any]:
    match end:
        case Hit():
            status, entry = end.status, entry_summary(end.entry, now)
            report = {"would": "hit", "cache_status": status.header(), "age": end.age}
            return {**report, "entry": entry, **status._asdict()}
        case Forward():
            return {
                "would": "bypass" if end.status.forwarded is Forwarded.BYPASS else "miss",
                "forwarded": end.status.forwarded,
                "reason": end.status.reason,
                "cache_status": end.status.header(),
            }
        case Refused():
            return {"would": "refused", "reason": Reason.ONLY_IF_CACHED}


async def _nearest(plan: Plan, store: Store, now: float) -> dict[str, Any]:
    """Find the entry of the same scope and endpoint that differs least. Raises StoreError."""
    partition = plan.partition
    ours = field_digests(plan.secret, partition.scope, partition.endpoint, plan.body)
    place = (partition.scope, partition.endpoint)
    count = compared = 0
    best: list[Entry] = []
    async for page in walk(store):
        near = [each for each in page if (each.scope, each.endpoint) == place]
        near = [each for each in near if each.key != plan.key]
        count += len(page)
        compared += len(near)
        found = nearest(ours, [entry.digests for entry in (*best, *near)])
        best = [] if found is None else [[*best, *near][found]]
        if count >= MOST_COMPARED:
            break
    report: dict[str, Any] = {"entries": count, "of_this_scope": compared, "entry": None}
    for entry in best:
        report["entry"] = entry_summary(entry, now)
        report["differences"] = [
            asdict(each) for each in differences(ours, entry.digests)
        ] or _outside(plan, entry)
    return report


def _outside(plan: Plan, entry: Entry) -> list[dict[str, Any]]:
    """Name what differs beside the fields of the body."""
    partition = plan.partition
    pairs = (
        ("upstream", entry.upstream != partition.upstream),
        ("generation", entry.generation != partition.generation),
        ("key version", entry.key_version != KEY_VERSION),
    )
    named = [name for name, differs in pairs if differs] or ["PII scan or query string"]
    return [{"field": name, "how": "differs"} for name in named]


Finding = dict[str, str | int]
"""The kinds and places of findings, never the text itself. Places count characters."""


def _finding(kind: str, where: str, start: int = 0, end: int = 0) -> Finding:
    return {"kind": kind, "where": where, "start": start, "end": end}


def _find_personal_data(scanner: PiiScanner, request: CacheRequest) -> list[Finding]:
    endpoint, body, query = request.endpoint, request.body, request.query
    beside = {field: body[field] for field in body if field in SPECS[endpoint].neutral}
    keyed = {field: body[field] for field in body if field not in beside}
    found: list[Finding] = []
    text = prompt_text(endpoint, body, query)
    if text is None:
        found.append(_finding("unreadable", "prompt, as token numbers"))
    elif kind := scanner.scan(text):
        found += _locate(scanner, keyed, query) or [_finding(kind, _COMBINED)]
    if kind := scanner.scan(names_text(endpoint, body)):
        found += _locate(scanner, beside) or [_finding(kind, _COMBINED)]
    return found


def _locate(scanner: PiiScanner, fields: dict[str, Any], query: str = "") -> list[Finding]:
    found: list[Finding] = []
    for field, value in fields.items():
        for where, text in _located_texts(scanner, field, value):
            if field in _NAME_FIELDS and as_names(text) != text:
                spans = scanner.spans(as_names(text))[:1]
                found += [_finding(span.kind, where, 0, len(text)) for span in spans]
            else:
                spans = scanner.spans(text)
                found += [_finding(span.kind, where, span.start, span.end) for span in spans]
            if len(found) >= MOST_FINDINGS:
                return found[:MOST_FINDINGS]
    kinds = (kind for text in query_readings(query) if (kind := scanner.scan(text)))
    return found + [_finding(kind, "query string") for kind in islice(kinds, 1)]


def _located_texts(scanner: PiiScanner, field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a field and where they stand; a place quotes no name with a finding."""

    def safe_name(name: str) -> str:
        return name if scanner.scan(name) is None else "(a name)"

    yield safe_name(field), field
    stack = [(safe_name(field), value)]
    while stack:
        at, each = stack.pop()
        match each:
            case str():
                yield at, each
            case dict():
                for name, member in reversed(each.items()):
                    where = f"{at}.{safe_name(name)}"
                    stack += [(where, member), (where, name)]
            case list():
                stack += reversed([(f"{at}[{index}]", item) for index, item in enumerate(each)])


class Hunk(NamedTuple):
    """One change: the bytes removed from ``at`` on, and those put in their place."""

    at: int
    went: bytes
    came: bytes
    before: bytes
    behind: bytes


def hunks(raw: bytes, edits: Sequence[Edit]) -> Iterator[Hunk]:
    """Yield the changes of the edits in the original bytes, in order."""
    for edit in edits:
        for at, to, inserted in _differences(raw, edit):
            before = raw[max(0, at - CONTEXT) : at]
            yield Hunk(at, raw[at:to], inserted, before, raw[to : to + CONTEXT])


def _differences(raw: bytes, edit: Edit) -> Iterator[tuple[int, int, bytes]]:
    old, new = _WORD.findall(raw[edit.start : edit.end]), _WORD.findall(edit.text)
    first = _common_words(old, new)
    last = _common_words(old[:first:-1], new[:first:-1])
    at = edit.start + sum(map(len, old[:first]))
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > _MOST_WORDS:
        yield at, at + sum(map(len, old)), b"".join(new)
        return
    places = list(accumulate(map(len, old), initial=at))
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield places[start], places[end], b"".join(new[new_start:new_end])


def _common_words(one: list[bytes], other: list[bytes]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
