"""Text of a policy file to a compiled policy, or to everything that is wrong with it."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from policies.format.keys import Table
from policies.format.keys.rule import SETTINGS, default_decision, rule_decision
from policies.format.schema import ContentSpec, MatchSpec, PiiSpec, PolicySpec, TenantSpec
from policies.format.yaml_document import Document, Path, PolicyError, Problem, read_document
from policies.policy import ANONYMOUS, Policy, Rule, Tenant, condition

__all__ = ["PolicyError", "Problem", "parse_policy"]


Wanted = Mapping[str, Sequence[str]]
"""The values that each condition of a rule wants, by its place in ``match``."""


def parse_policy(text: str, source: str) -> Policy:
    """Read a policy; ``source`` names the text in messages.

    Raises PolicyError with all problems that were found, and nothing else.
    """
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
    return _compiled(spec, source)


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
        case "too_short":
            return document.problem(path, "at least one key")
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


def _known_keys(path: Path) -> list[str]:
    """Return the keys of the mapping at ``path``; nothing where there is none."""
    match path:
        case ("default", *inside) | ("rules", int(), *inside) if inside[:1] != ["match"]:
            table: object = SETTINGS
            for step in inside:
                keys = table.keys if isinstance(table, Table) else ()
                table = next((key.kind for key in keys if key.name == step), None)
            known = [key.name for key in table.keys] if isinstance(table, Table) else []
            return [*known, "name", "match"] if path[0] == "rules" and not inside else known
        case ():
            model: type[BaseModel] = PolicySpec
        case ("pii",):
            model = PiiSpec
        case ("tenants", _):
            model = TenantSpec
        case ("rules", int(), "match"):
            model = MatchSpec
        case ("rules", int(), "match", "content"):
            model = ContentSpec
        case _:
            return []
    return list(model.model_fields)


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
    """Find rules no request can reach, because an earlier one takes all of theirs.

    What is reported is certain, and not all is found: globs and patterns are compared as text.
    """
    wanted = {index: match.wanted() for index, match in matches.items()}
    for later, special in wanted.items():
        for earlier, general in wanted.items():
            if earlier < later and _covers(general, special):
                line = document.places["rules", earlier].line
                yield document.problem(
                    ("rules", later, "match"),
                    f"requests that rules[{earlier}] on line {line} leaves over",
                    "none: this rule is never reached",
                )
                break


def _covers(general: Wanted, special: Wanted) -> bool:
    """Tell whether every request that ``special`` matches is matched by ``general``."""
    for key, values in general.items():
        is_any = "*" in values and not key.startswith("content.")
        if key == "model" and is_any:
            continue
        if key not in special or not (is_any or set(special[key]) <= set(values)):
            return False
    return True


def _compiled(spec: PolicySpec, source: str) -> Policy:
    default = default_decision(spec.default, spec.generation)
    tenants = {name: Tenant(**_values(tenant)) for name, tenant in spec.tenants.items()}
    rules = []
    for rule in spec.rules:
        asked = rule.match.wanted().items()
        conditions = tuple(condition(key, values, tenants) for key, values in asked)
        rules.append(Rule(conditions, rule_decision(rule.name, rule, default)))
    return Policy(
        source=source,
        generation=spec.generation,
        regions=tuple(dict.fromkeys(spec.pii.regions)),
        rules=tuple(rules),
        default=default,
        allowed=tuple(dict.fromkeys(spec.pii.allow)),
        tenants=tenants,
    )


def _values(tenant: TenantSpec) -> dict[str, tuple[str, ...] | None]:
    return {key: None if values is None else tuple(values) for key, values in tenant}
