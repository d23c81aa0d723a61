"""Text of a policy file to a compiled policy, or to everything that is wrong with it.

The tables here hold the keys beside the settings of a rule (``settings``). One definition serves
reading and editors (``json_schema``), and every mapping refuses keys that it does not know.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from policies.decision import Decision
from policies.format.settings import SETTINGS, default_decision, rule_decision
from policies.format.table import Definitions, Key, ListOf, MapOf, Spot, Table, unique
from policies.format.values import (
    CONTACT,
    DIGEST,
    ENDPOINT,
    GENERATION,
    HEADER_NAME,
    NAME,
    REGEX,
    REGION,
    RULE_NAME,
    TENANT_NAME,
    TEXT,
    VERSION,
    JsonSchema,
)
from policies.format.yaml_document import Document, PolicyError, Problem, read_document
from policies.patterns import Budget, PatternError
from policies.pii.scan import AllowList
from policies.policy import ANONYMOUS, Policy, Rule, Tenant, condition
from policies.volatile import Detectors, detectors

__all__ = ["PolicyError", "Problem", "json_schema", "parse_policy"]

DEFAULT_PII = {"regions": ["US", "GB"], "allow": []}

Wanted = Mapping[str, Sequence[str]]
"""The values that each condition of a rule wants, by its place in ``match``."""

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

CONTENT = Table(
    "ContentSpec",
    "Conditions on what is asked. All must hold.",
    Key(
        "keywords",
        ListOf(TEXT),
        "Whole words or phrases in the last user message, in any case of letters. Any one is "
        "enough.",
        (["price", "how much", "in stock"],),
    ),
    Key(
        "regex",
        ListOf(REGEX),
        "RE2 patterns. Any one that is found in the last user message is enough. `(?i)` ignores "
        "case.",
        (r"(?i)\border\s+#?\d+",),
    ),
    Key(
        "system_prompt_sha256",
        ListOf(DIGEST),
        "SHA-256 of the system and developer messages, joined by line feeds.",
        (_DIGEST,),
    ),
)

MATCH = Table(
    "MatchSpec",
    "Conditions on a request. All must hold; of a list, one is enough. Without any, every request.",
    Key("endpoint", ListOf(ENDPOINT), "The request has this path.", ("/v1/chat/completions",)),
    Key(
        "model",
        ListOf(TEXT),
        "The model's name matches: `*` is any characters, `?` is one character.",
        ("gpt-4*", ["refrain-demo", "qwen*"]),
    ),
    Key(
        "tenant",
        ListOf(NAME),
        "The request belongs to this tenant: a name from `tenants`, or `anonymous` (no API key, "
        "organization or project).",
        ("acme", "anonymous"),
    ),
    Key(
        "header",
        MapOf(HEADER_NAME, ListOf(TEXT), least=1),
        "The request has this header, and its value matches the glob. The case of names does not "
        "matter. Headers with credentials are refused.",
        ({"x-app": "storefront-*"},),
    ),
    Key("content", CONTENT, "Conditions on what is asked.", ({"keywords": ["price", "discount"]},)),
    filled=False,
)

TENANT = Table(
    "TenantSpec",
    "Who a tenant is. All keys must hold; of a list, one is enough.",
    Key(
        "api_key_sha256",
        ListOf(DIGEST),
        "SHA-256 of the API key: `printf %s KEY | sha256sum`.",
        (_DIGEST,),
    ),
    Key("organization", ListOf(TEXT), "The OpenAI-Organization header.", ("org-acme",)),
    Key("project", ListOf(TEXT), "The OpenAI-Project header.", ("proj-support",)),
)

PII = Table(
    "PiiSpec",
    "The scan for personal data.",
    Key(
        "regions",
        ListOf(REGION, least=0, single=False),
        "Regions (ISO 3166) whose phone numbers are recognised without a country code. Each costs"
        " time.",
        (["US", "GB"],),
        unset=DEFAULT_PII["regions"],
    ),
    Key(
        "allow",
        ListOf(CONTACT),
        "Your own public contacts, which are no personal data: email addresses (`*` is a part of "
        "one), phone numbers in international form, any other text.",
        (["*@acme.example", "+1 800 555 0100"],),
        unset=DEFAULT_PII["allow"],
    ),
    filled=False,
)

RULE = Table(
    "RuleSpec",
    "A rule: the settings of the requests that it matches.",
    Key(
        "name",
        RULE_NAME,
        "Unique name: lower-case letters, digits, `-` and `_`. Metrics, logs and traces show it.",
        ("prices",),
        required=True,
    ),
    Key(
        "match",
        MATCH,
        "Which requests. `{}` matches every request.",
        ({"model": "gpt-4*", "content": {"keywords": ["price"]}},),
        required=True,
    ),
    *(replace(key, required=False) for key in SETTINGS.keys),
    filled=False,
)

POLICY = Table(
    "PolicySpec",
    "What Refrain may cache, for whom and for how long.",
    Key("version", VERSION, "Version of this format.", (1,), required=True),
    Key(
        "generation",
        GENERATION,
        "Part of every cache key. A higher number drops everything that is stored.",
        (2,),
        unset=0,
    ),
    Key(
        "pii",
        PII,
        "What the scan for personal data knows.",
        ({"regions": ["US", "GB"], "allow": "*@acme.example"},),
        unset=DEFAULT_PII,
    ),
    Key(
        "tenants",
        MapOf(TENANT_NAME, TENANT),
        "Names for tenants. With them, rules need no secret in the file.",
        ({"acme": {"organization": "org-acme"}},),
        unset={},
    ),
    Key(
        "rules",
        ListOf(RULE, least=0, single=False),
        "Rules in order: the first rule that matches decides.",
        ([{"name": "no-beta", "match": {"model": "*-beta"}, "exact": "off"}],),
        unset=[],
    ),
    Key(
        "default",
        SETTINGS,
        "Settings for requests that match no rule, and for keys that a rule omits.",
        ({"exact": "on", "semantic": "on", "freshness": "1h", "scope": "tenant", "pii": "bypass"},),
        required=True,
    ),
    filled=False,
)


def json_schema() -> JsonSchema:
    """Return the format as JSON schema, draft 2020-12, for editors and linters."""
    definitions: Definitions = {}
    POLICY.json_schema(definitions)
    policy = definitions.pop(POLICY.name)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "Refrain policy", **policy, "$defs": definitions}


def parse_policy(text: str, source: str) -> Policy:
    """Read a policy; ``source`` names the text in messages.

    Raises PolicyError with all problems that were found, and nothing else.
    """
    document = read_document(text, source)
    policy = Spot(document).load(POLICY, document.data)
    _check_references(document, policy or {})
    if document.problems:
        raise PolicyError(_in_order(document.problems))
    return _Compilation(document).compile(policy)


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort by line and keep one problem a key: the first found names the cause."""
    first: dict[tuple[int, str], Problem] = {}
    for problem in problems:
        first.setdefault((problem.line, problem.key), problem)
    return tuple(sorted(first.values(), key=lambda problem: problem.line))


def _check_references(document: Document, policy: dict[str, Any]) -> None:
    """Note the problems across values: names used twice, unknown tenants, dead rules.

    Each is looked for where its own values are right, so that one mistake hides no other.
    """
    data = document.data
    tenants = data.get("tenants") if isinstance(data, dict) else None
    known = [ANONYMOUS, *(tenants if isinstance(tenants, dict) else ())]
    spot = Spot(document, ("rules",))
    wrong = [problem.key for problem in document.problems]
    names: dict[str, int] = {}
    reached: dict[int, Wanted] = {}
    for index, rule in enumerate(policy.get("rules") or []):
        name = rule.get("name") if rule else None
        if name in names:
            spot.note(f"a unique name (line {names[name]} has it already)", index, "name")
        elif name:
            names[name] = document.places["rules", index, "name"].line
        place = f"rules[{index}].match"
        if not rule or "match" not in rule or any(key.startswith(place) for key in wrong):
            continue
        match = rule["match"]
        for at, tenant in enumerate(match.get("tenant", [])):
            if tenant not in known:
                expected = f"one of the tenants {', '.join(known)}"
                spot.note(expected, index, "match", "tenant", at)
        special = _conditions(match)
        earlier = next((each for each in reached if _covers(reached[each], special)), None)
        if earlier is not None:
            line = document.places["rules", earlier].line
            expected = f"requests that rules[{earlier}] on line {line} leaves over"
            spot.note(expected, index, "match", got="none: this rule is never reached")
        reached[index] = special


def _conditions(match: Mapping[str, Any]) -> Wanted:
    plain = {key: match[key] for key in ("endpoint", "model", "tenant") if key in match}
    headers = {f"header.{name}": globs for name, globs in match.get("header", {}).items()}
    content = match.get("content", {})
    cheap_first = ("system_prompt_sha256", "keywords", "regex")
    return {
        **plain,
        **headers,
        **{f"content.{key}": content[key] for key in cheap_first if key in content},
    }


def _covers(general: Wanted, special: Wanted) -> bool:
    """Tell whether every request that ``special`` matches is matched by ``general``.

    True is certain, but not every such case is found: globs and patterns are compared as text.
    """
    for key, values in general.items():
        is_any = "*" in values and not key.startswith("content.")
        if key == "model" and is_any:
            continue
        if key not in special or not (is_any or set(special[key]) <= set(values)):
            return False
    return True


class _Compilation:
    """Makes the policy of a document, with all that its patterns need at a request."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._budget = Budget()
        self._detectors: set[Detectors] = set()

    def compile(self, policy: dict[str, Any]) -> Policy:
        """Return the policy. Raises PolicyError."""
        default = default_decision(policy["default"], policy["generation"])
        tenants = {
            name: Tenant(**{key: tuple(values) for key, values in tenant.items()})
            for name, tenant in policy["tenants"].items()
        }
        with self._at("default", "prefix", "volatile"):
            self._prepare(default)
        rules = []
        for index, rule in enumerate(policy["rules"]):
            conditions = []
            for key, values in _conditions(rule["match"]).items():
                with self._at("rules", index, "match", *key.split(".", 1)):
                    conditions.append(condition(key, values, tenants, self._budget))
            decision = rule_decision(rule["name"], rule, default)
            with self._at("rules", index, "prefix", "volatile"):
                self._prepare(decision)
            rules.append(Rule(tuple(conditions), decision))
        regions, allowed = (unique(policy["pii"][key]) for key in ("regions", "allow"))
        with self._at("pii", "allow"):
            AllowList(allowed, regions)
        return Policy(
            source=self._document.source,
            generation=policy["generation"],
            regions=regions,
            rules=tuple(rules),
            default=default,
            allowed=allowed,
            tenants=tenants,
        )

    def _prepare(self, decision: Decision) -> None:
        prefix = decision.prefix
        if prefix.volatile or prefix.patterns:
            found = detectors(prefix.volatile, prefix.patterns)
            if found not in self._detectors:
                self._detectors.add(found)
                self._budget.spend(*found.programs)

    @contextmanager
    def _at(self, *path: str | int) -> Iterator[None]:
        """Name the place of what RE2 does not compile. Raises PolicyError."""
        try:
            yield
        except PatternError as error:
            together = "patterns that RE2 compiles together: fewer or shorter ones"
            raise PolicyError((self._document.problem(path, together, str(error)),)) from None
