"""Where in a request personal data stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.protocol.conversation import is_readable, names_text, prompt_text
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.fields import neutral_fields
from gateway.protocol.text_extraction import as_names, query_readings
from policies.pii import PiiScanner

MOST_FINDINGS = 100
_TOGETHER = "texts put together or unescaped"
_NAMES = frozenset({"model"}).union(*map(neutral_fields, Endpoint))


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found and where, never the text itself. Places count characters.

    ``keyed`` tells whether it stands in what makes the request's key, or is sent beside that.
    """

    kind: str
    where: str
    start: int
    end: int
    keyed: bool = True


def findings(
    scanner: PiiScanner, endpoint: Endpoint, body: dict[str, Any], query: str
) -> list[Finding]:
    """Scan a request as a lookup does, and find the places of what that finds."""
    beside = neutral_fields(endpoint)
    found: list[Finding] = []
    if not is_readable(endpoint, body):
        found.append(Finding("unreadable", "prompt, as token numbers", 0, 0))
    elif kind := scanner.scan(prompt_text(endpoint, body, query)):
        keyed = {field: value for field, value in body.items() if field not in beside}
        found += _places(scanner, keyed, query) or [Finding(kind, _TOGETHER, 0, 0)]
    if kind := scanner.scan(names_text(endpoint, body)):
        places = _places(scanner, {field: body[field] for field in body if field in beside})
        found += places or [Finding(kind, _TOGETHER, 0, 0, keyed=False)]
    return found


def _places(scanner: PiiScanner, fields: dict[str, Any], query: str = "") -> list[Finding]:
    found: list[Finding] = []
    for field, value in fields.items():
        for where, text in _texts(scanner, field, value):
            keyed = field == "model" or field not in _NAMES
            if field in _NAMES and as_names(text) != text:
                spans = scanner.spans(as_names(text))[:1]
                found += [Finding(span.kind, where, 0, len(text), keyed) for span in spans]
            else:
                found += [
                    Finding(span.kind, where, span.start, span.end, keyed)
                    for span in scanner.spans(text)
                ]
            if len(found) >= MOST_FINDINGS:
                return found[:MOST_FINDINGS]
    for text in query_readings(query):
        if kind := scanner.scan(text):
            return [*found, Finding(kind, "query string", 0, 0)]
    return found


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
