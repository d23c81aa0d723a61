"""From the facts of a request to a decision: rules, their conditions, and the first that matches.

A policy is compiled once (``policies.format.load``) and then only read: deciding is a pure function
of the facts, and ``default`` answers for all that no rule matches.

Law: no request costs more than its length. Globs, keywords and patterns run on RE2, and text is
handed over as bytes, so that a lone surrogate cannot raise.
"""

import hashlib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import re2

from policies.decision import Decision
from policies.patterns import Budget, compile_search

ANONYMOUS = "anonymous"
"""The tenant of a request without credential, organization and project."""

# Scripts that set no space between words: a keyword in them ends where it ends.
_NO_SPACES = re2.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_WORD = re2.compile(r"[\pL\pN\pM_]")


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """All that a policy may look at."""

    endpoint: str
    """Path, such as ``/v1/chat/completions``."""
    model: str
    headers: Mapping[str, str]
    """Names in lower case."""
    credential_sha256: str | None
    """Lower-case hex digest of the API key; None when the client sent none."""
    organization: str | None
    project: str | None
    last_user_text: str | None
    """All text parts of the last user message; None when it has none."""
    system_text: str | None
    """System and developer messages joined by line feeds; hashed only if a rule asks."""


Test = Callable[[RequestFacts], bool]
TextTest = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Tenant:
    """The definition of a tenant: each field other than None must match one of its values."""

    api_key_sha256: tuple[str, ...] | None = None
    organization: tuple[str, ...] | None = None
    project: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a ``match``, and whether facts meet it."""

    key: str
    """Its place in ``match``, such as ``content.keywords``."""
    wanted: tuple[str, ...]
    """The values of the key, as written; one match is enough."""
    holds: Test


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """A rule that was checked, and the conditions that failed; none if the rule decided."""

    rule: str
    failed: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for the requests that meet all conditions."""

    conditions: tuple[Condition, ...]
    decision: Decision

    @property
    def name(self) -> str:
        return self.decision.rule


@dataclass(frozen=True, slots=True)
class Policy:
    """A compiled policy file."""

    source: str
    """The origin of the text, for messages."""
    generation: int
    regions: tuple[str, ...]
    """ISO 3166 codes of the regions with phone numbers known to the PII scan."""
    rules: tuple[Rule, ...]
    default: Decision
    allowed: tuple[str, ...] = ()
    """The operator's public contacts, which are no personal data."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of all rules, and the default."""
        return *(rule.decision for rule in self.rules), self.default

    def decide(self, facts: RequestFacts) -> Decision:
        """Return the decision of the first rule that matches, else the default. Never raises."""
        for rule in self.rules:
            for condition in rule.conditions:
                if not condition.holds(facts):
                    break
            else:
                return rule.decision
        return self.default

    def trace(self, facts: RequestFacts) -> tuple[RuleTrace, ...]:
        """Return the rules that ``decide`` checks, with their failures; the last one decides."""
        found = []
        for rule in self.rules:
            failed = tuple(each for each in rule.conditions if not each.holds(facts))
            found.append(RuleTrace(rule.name, failed))
            if not failed:
                return tuple(found)
        return (*found, RuleTrace(self.default.rule, ()))


def condition(
    key: str, wanted: Sequence[str], tenants: Mapping[str, Tenant], budget: Budget | None = None
) -> Condition:
    """Return the condition of a key of ``match``: facts match any of its values.

    Raises PatternError if RE2 does not compile the values together, or not within the budget.
    """
    return Condition(key, tuple(wanted), _test(key, wanted, tenants, budget))


def _test(
    key: str, wanted: Sequence[str], tenants: Mapping[str, Tenant], budget: Budget | None
) -> Test:
    match key:
        case "endpoint":
            known = frozenset(wanted)
            return lambda facts: facts.endpoint in known
        case "model":
            matches = glob_test(wanted, budget)
            return lambda facts: matches(facts.model)
        case "tenant":
            tests = [_tenant(name, tenants) for name in wanted]
            return tests[0] if len(tests) == 1 else lambda facts: any(is_(facts) for is_ in tests)
        case "content.system_prompt_sha256":
            known = frozenset(wanted)
            return _text_test(lambda facts: facts.system_text, lambda text: _sha256(text) in known)
        case "content.keywords":
            return _text_test(lambda facts: facts.last_user_text, keyword_test(wanted, budget))
        case "content.regex":
            found = compile_search("|".join(f"(?:{pattern})" for pattern in wanted), budget)
            return _text_test(lambda facts: facts.last_user_text, found)
    name, matches = key.removeprefix("header."), glob_test(wanted, budget)
    return lambda facts: name in facts.headers and matches(facts.headers[name])


def _text_test(text_of: Callable[[RequestFacts], str | None], test: TextTest) -> Test:
    def holds(facts: RequestFacts) -> bool:
        text = text_of(facts)
        return text is not None and test(text)

    return holds


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _tenant(name: str, tenants: Mapping[str, Tenant]) -> Test:
    if name == ANONYMOUS:
        return lambda facts: (
            facts.credential_sha256 is None and facts.organization is None and facts.project is None
        )
    tenant = tenants[name]
    keys, organizations, projects = (
        None if values is None else frozenset(values)
        for values in (tenant.api_key_sha256, tenant.organization, tenant.project)
    )
    return lambda facts: (
        (keys is None or facts.credential_sha256 in keys)
        and (organizations is None or facts.organization in organizations)
        and (projects is None or facts.project in projects)
    )


def glob_test(globs: Sequence[str], budget: Budget | None = None) -> TextTest:
    """Return whether a whole text is like any glob: * is any characters, ? is one."""
    if "*" in globs:
        return lambda _: True
    if not any(wildcard in glob for glob in globs for wildcard in "*?"):
        known = frozenset(globs)
        return lambda value: value in known
    (first, *others) = globs
    if not others and not any(wildcard in first[:-1] for wildcard in "*?") and first[-1] == "*":
        prefix = first[:-1]
        return lambda value: value.startswith(prefix)
    wildcards = {"*": ".*", "?": "."}
    patterns = (
        "".join(wildcards.get(character) or re2.escape(character) for character in glob)
        for glob in globs
    )
    return compile_search(r"(?s)\A(?:" + "|".join(patterns) + r")\z", budget)


def keyword_test(keywords: Sequence[str], budget: Budget | None = None) -> TextTest:
    """Return whether a text holds any keyword as whole words, in any case of letters."""
    # What ends alike shares its edges: they are large classes, and one for each keyword is more
    # than RE2's fast engine takes.
    alike: dict[tuple[str, str], list[str]] = {}
    for keyword in keywords:
        before, words, after = _whole_words(keyword)
        alike.setdefault((before, after), []).append(words)
    groups = (f"{before}(?:{'|'.join(words)}){after}" for (before, after), words in alike.items())
    found = compile_search("(?i)(?:" + "|".join(groups) + ")", budget)

    def test(text: str) -> bool:
        return found(text if text.isascii() else unicodedata.normalize("NFC", text))

    return test


def _whole_words(keyword: str) -> tuple[str, str, str]:
    words = unicodedata.normalize("NFC", keyword).split()
    before = r"(?:\A|[^\pL\pN\pM_])" if _needs_edge(words[0][0]) else ""
    after = r"(?:\z|[^\pL\pN\pM_])" if _needs_edge(words[-1][-1]) else ""
    return before, r"\s+".join(map(re2.escape, words)), after


def _needs_edge(character: str) -> bool:
    """Tell whether a word with this at its edge goes on when a letter follows."""
    return _WORD.search(character) is not None and _NO_SPACES.search(character) is None
