"""Text of a policy file to a compiled policy, or to everything that is wrong with it."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from policies.compress_settings import CompressSpec, ContextSpec
from policies.conditions import conditions
from policies.decide import Decision, Policy, Rule
from policies.document import Document, Path, read_document
from policies.fields import ANONYMOUS
from policies.prefix_settings import DocumentsSpec, PrefixSpec, VolatileSpec
from policies.problems import PolicyError, Problem
from policies.reach import unreachable
from policies.rule_settings import (
    CoalescingSpec,
    DefaultSpec,
    GraceSpec,
    SemanticSpec,
    default_decision,
    rule_decision,
)
from policies.schema import ContentSpec, MatchSpec, PiiSpec, PolicySpec, RuleSpec, TenantSpec

__all__ = ["PolicyError", "Problem", "compile_policy", "parse_policy", "parse_spec"]


def parse_policy(text: str, source: str) -> Policy:
    """Read a policy; ``source`` names the text in messages.

    Raises PolicyError with all problems that were found, and nothing else.
    """
    return compile_policy(parse_spec(text, source), source)


def parse_spec(text: str, source: str) -> PolicySpec:
    """Read a policy as it is written, with no rule compiled. Raises PolicyError."""
    document = read_document(text, source)
    problems = list(document.problems)
    spec: PolicySpec | None = None
    try:
        spec = PolicySpec.model_validate(document.data)
    except ValidationError as error:
        problems += (_problem(document, dict(detail)) for detail in error.errors())
    problems += _references(document)
    if problems or spec is None:
        raise PolicyError(_in_order(problems))
    return spec


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort by line and keep one problem a key: the first found names the cause."""
    first: dict[tuple[int, str], Problem] = {}
    for problem in problems:
        first.setdefault((problem.line, problem.key), problem)
    return tuple(sorted(first.values(), key=lambda problem: problem.line))


def _problem(document: Document, detail: dict[str, Any]) -> Problem:
    """Put a finding of pydantic in the file's terms."""
    path: Path = detail["loc"]
    match detail["type"]:
        case "expected":
            return document.problem(_standing(document, path), detail["ctx"]["what"])
        case "missing":
            return document.problem(path, "this required key", "nothing")
        case "extra_forbidden":
            known = _known_keys(path[:-1])
            listed = "one of the keys " + ", ".join(known)
            near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
            meant = f" (did you mean {near[0]}?)" if near else ""
            return document.problem(path, listed + meant, f"the unknown key {str(path[-1])!r}")
        case "list_type":
            return document.problem(_standing(document, path), "a list")
        case _:
            known = _known_keys(path)
            return document.problem(
                _standing(document, path),
                f"a mapping with keys of {', '.join(known)}" if known else "a mapping",
            )


def _standing(document: Document, path: Path) -> Path:
    """Cut what pydantic adds to a path: the index of a single value, the side of a member."""
    while path not in document.places:
        path = path[:-1]
    return path


_SETTINGS: dict[object, type[BaseModel]] = {
    "semantic": SemanticSpec,
    "grace": GraceSpec,
    "coalescing": CoalescingSpec,
    "prefix": PrefixSpec,
    "compress": CompressSpec,
    "volatile": VolatileSpec,
    "documents": DocumentsSpec,
}


def _known_keys(path: Path) -> list[str]:
    model = _SETTINGS.get(path[-1]) if path else PolicySpec
    match path:
        case ("pii",):
            model = PiiSpec
        case ("tenants", _):
            model = TenantSpec
        case ("default",):
            model = DefaultSpec
        case (*_, "compress", "documents"):
            model = ContextSpec
        case ("rules", int()):
            model = RuleSpec
        case ("rules", int(), "match"):
            model = MatchSpec
        case ("rules", int(), "match", "content"):
            model = ContentSpec
    return [] if model is None else list(model.model_fields)


def _references(document: Document) -> Iterator[Problem]:
    """Find what single values cannot tell: names used twice, unknown tenants, dead rules.

    Each is looked for where its own values are right, so that one mistake hides no other.
    """
    data = document.data if isinstance(document.data, dict) else {}
    written = data.get("rules")
    items = written if isinstance(written, list) else []
    rules = [item if isinstance(item, dict) else {} for item in items]
    yield from _repeated_names(document, rules)
    matches = dict(_valid_matches(rules))
    tenants = data.get("tenants")
    yield from _unknown_tenants(
        document, matches, [ANONYMOUS, *(tenants if isinstance(tenants, dict) else {})]
    )
    yield from _unreachable_rules(document, matches)


def _valid_matches(rules: Sequence[dict[str, Any]]) -> Iterator[tuple[int, MatchSpec]]:
    for index, rule in enumerate(rules):
        try:
            yield index, MatchSpec.model_validate(rule.get("match"))
        except ValidationError:
            continue  # told already, by the validation of the whole


def _repeated_names(document: Document, rules: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    lines: dict[str, int] = {}
    for index, rule in enumerate(rules):
        name = rule.get("name")
        if isinstance(name, str):
            path: Path = ("rules", index, "name")
            if name in lines:
                unique = f"a unique name (line {lines[name]} has it already)"
                yield document.problem(path, unique)
            lines.setdefault(name, document.places[path].line)


def _unknown_tenants(
    document: Document, matches: Mapping[int, MatchSpec], known: Sequence[str]
) -> Iterator[Problem]:
    for index, match in matches.items():
        for place, tenant in enumerate(match.tenant or []):
            if tenant not in known:
                path = _standing(document, ("rules", index, "match", "tenant", place))
                yield document.problem(path, f"one of the tenants {', '.join(known)}")


def _unreachable_rules(document: Document, matches: Mapping[int, MatchSpec]) -> Iterator[Problem]:
    indexes = list(matches)
    for later, earlier in unreachable(list(matches.values())):
        line = document.places["rules", indexes[earlier]].line
        yield document.problem(
            ("rules", indexes[later], "match"),
            f"requests that rules[{indexes[earlier]}] on line {line} leaves over",
            "none: this rule is never reached",
        )


def compile_policy(spec: PolicySpec, source: str) -> Policy:
    """Return what decides on requests."""
    default = default_decision(spec.default, spec.generation)
    return Policy(
        source=source,
        generation=spec.generation,
        regions=tuple(dict.fromkeys(spec.pii.regions)),
        rules=tuple(_rule(rule, default, spec.tenants) for rule in spec.rules),
        default=default,
        allowed=tuple(dict.fromkeys(spec.pii.allow)),
    )


def _rule(rule: RuleSpec, default: Decision, tenants: Mapping[str, TenantSpec]) -> Rule:
    return Rule(conditions(rule.match, tenants), rule_decision(rule.name, rule, default))
