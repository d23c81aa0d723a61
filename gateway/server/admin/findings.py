"""Where in a request personal data stands, for whoever asks what would become of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gateway.protocol.conversation import is_readable, names_text, prompt_text
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.text_extraction import as_names, query_readings
from policies.pii.scan import PiiScanner

MOST_FINDINGS = 100
_TOGETHER = "texts put together or unescaped"
_NAMES = frozenset({"model"}).union(*(spec.neutral for spec in SPECS.values()))


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found and where, never the text itself. Places count characters."""

    kind: str
    where: str
    start: int = 0
    end: int = 0


def findings(
    scanner: PiiScanner, endpoint: Endpoint, body: dict[str, Any], query: str
) -> list[Finding]:
    """Scan a request as a lookup does, and find the places of what that finds."""
    beside = {field: body[field] for field in body if field in SPECS[endpoint].neutral}
    keyed = {field: body[field] for field in body if field not in beside}
    found: list[Finding] = []
    if not is_readable(endpoint, body):
        found.append(Finding("unreadable", "prompt, as token numbers"))
    elif kind := scanner.scan(prompt_text(endpoint, body, query)):
        found += _places(scanner, keyed, query) or [Finding(kind, _TOGETHER)]
    if kind := scanner.scan(names_text(endpoint, body)):
        found += _places(scanner, beside) or [Finding(kind, _TOGETHER)]
    return found


def _places(scanner: PiiScanner, fields: dict[str, Any], query: str = "") -> list[Finding]:
    found: list[Finding] = []
    for field, value in fields.items():
        for where, text in _texts(scanner, field, value):
            if field in _NAMES and as_names(text) != text:
                spans = scanner.spans(as_names(text))[:1]
                found += [Finding(span.kind, where, 0, len(text)) for span in spans]
            else:
                spans = scanner.spans(text)
                found += [Finding(span.kind, where, span.start, span.end) for span in spans]
            if len(found) >= MOST_FINDINGS:
                return found[:MOST_FINDINGS]
    kinds = (kind for text in query_readings(query) if (kind := scanner.scan(text)))
    return found + [Finding(kind, "query string") for kind in islice(kinds, 1)]


def _texts(scanner: PiiScanner, field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a field and where they stand; a place quotes no name with a finding."""

    def named(name: str) -> str:
        return name if scanner.scan(name) is None else "(a name)"

    yield named(field), field
    stack = [(named(field), value)]
    while stack:
        at, each = stack.pop()
        match each:
            case str():
                yield at, each
            case dict():
                for name, member in reversed(each.items()):
                    where = f"{at}.{named(name)}"
                    stack += [(where, member), (where, name)]
            case list():
                stack += reversed([(f"{at}[{index}]", item) for index, item in enumerate(each)])
