"""From the conditions of a rule to functions of a request's facts.

Law: no request costs more than its length. Globs, keywords and patterns run on RE2, and text is
handed over as bytes, so that a lone surrogate cannot raise.
"""

import hashlib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import re2

from policies.decide import Condition, RequestFacts, Test
from policies.fields import ANONYMOUS
from policies.schema import ContentSpec, MatchSpec, TenantSpec

TextTest = Callable[[str], bool]

_ENGINE_BYTES = 16 << 20
"""What one pattern may take before RE2 falls back on a slower engine."""
# Scripts that set no space between words: a keyword in them ends where it ends.
_NO_SPACES = re2.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_WORD = re2.compile(r"[\pL\pN\pM_]")


def conditions(match: MatchSpec, tenants: Mapping[str, TenantSpec]) -> tuple[Condition, ...]:
    """Return what must hold, the cheap conditions first."""
    return tuple(_conditions(match, tenants))


def _conditions(match: MatchSpec, tenants: Mapping[str, TenantSpec]) -> Iterator[Condition]:
    if match.endpoint is not None:
        yield _endpoint(match.endpoint)
    if match.model is not None:
        yield _model(match.model)
    if match.tenant is not None:
        yield _tenants(match.tenant, tenants)
    for name, globs in (match.header or {}).items():
        yield _header(name, globs)
    if match.content is not None:
        yield from _content(match.content)


def _endpoint(paths: Sequence[str]) -> Condition:
    known = frozenset(paths)
    return Condition("endpoint", tuple(paths), lambda facts: facts.endpoint in known)


def _model(globs: Sequence[str]) -> Condition:
    matches = glob_test(globs)
    return Condition("model", tuple(globs), lambda facts: matches(facts.model))


def _header(name: str, globs: Sequence[str]) -> Condition:
    matches = glob_test(globs)

    def holds(facts: RequestFacts) -> bool:
        value = facts.headers.get(name)
        return value is not None and matches(value)

    return Condition(f"header.{name}", tuple(globs), holds)


def _tenants(names: Sequence[str], tenants: Mapping[str, TenantSpec]) -> Condition:
    tests = [_tenant(name, tenants) for name in names]
    holds = tests[0] if len(tests) == 1 else lambda facts: any(test(facts) for test in tests)
    return Condition("tenant", tuple(names), holds)


def _tenant(name: str, tenants: Mapping[str, TenantSpec]) -> Test:
    if name == ANONYMOUS:
        return lambda facts: (
            facts.credential_sha256 is None and facts.organization is None and facts.project is None
        )
    spec = tenants[name]
    keys, organizations, projects = (
        None if values is None else frozenset(values)
        for values in (spec.api_key_sha256, spec.organization, spec.project)
    )
    return lambda facts: (
        (keys is None or facts.credential_sha256 in keys)
        and (organizations is None or facts.organization in organizations)
        and (projects is None or facts.project in projects)
    )


def _content(content: ContentSpec) -> Iterator[Condition]:
    if content.system_prompt_sha256 is not None:
        digests = content.system_prompt_sha256
        holds = _system_prompt(digests)
        yield Condition("content.system_prompt_sha256", tuple(digests), holds)
    if content.keywords is not None:
        holds = _user_text(keyword_test(content.keywords))
        yield Condition("content.keywords", tuple(content.keywords), holds)
    if content.regex is not None:
        holds = _user_text(_found("|".join(f"(?:{pattern})" for pattern in content.regex)))
        yield Condition("content.regex", tuple(content.regex), holds)


def _system_prompt(digests: Sequence[str]) -> Test:
    known = frozenset(digests)

    def holds(facts: RequestFacts) -> bool:
        if facts.system_text is None:
            return False
        digest = hashlib.sha256(facts.system_text.encode("utf-8", "replace"))
        return digest.hexdigest() in known

    return holds


def _user_text(test: TextTest) -> Test:
    def holds(facts: RequestFacts) -> bool:
        return facts.last_user_text is not None and test(facts.last_user_text)

    return holds


def glob_test(globs: Sequence[str]) -> TextTest:
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
    return _found(r"(?s)\A(?:" + "|".join(patterns) + r")\z")


def keyword_test(keywords: Sequence[str]) -> TextTest:
    """Return whether a text holds any keyword as whole words, in any case of letters."""
    # What ends alike shares its edges: they are large classes, and one for each keyword is more
    # than RE2's fast engine takes.
    alike: dict[tuple[str, str], list[str]] = {}
    for keyword in keywords:
        before, words, after = _whole_words(keyword)
        alike.setdefault((before, after), []).append(words)
    groups = (f"{before}(?:{'|'.join(words)}){after}" for (before, after), words in alike.items())
    found = _found("(?i)(?:" + "|".join(groups) + ")")

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


def _found(pattern: str) -> TextTest:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _ENGINE_BYTES
    compiled: Any = re2.compile(pattern, options)
    return lambda text: compiled.search(text.encode("utf-8", "replace")) is not None
