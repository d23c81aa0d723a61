"""Where in a request personal data stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.core.conversation import is_readable, prompt_text
from gateway.core.fields import neutral_fields
from gateway.core.types import Endpoint
from policies.pii import PiiScanner

MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found and where, never the text itself. Places count characters."""

    kind: str
    where: str
    start: int
    end: int


def findings(scanner: PiiScanner, endpoint: Endpoint, body: dict[str, Any]) -> list[Finding]:
    """Scan a request as a lookup does, and find the places of what that finds."""
    if not is_readable(endpoint, body):
        return [Finding("unreadable", "prompt, as token numbers", 0, 0)]
    kind = scanner.scan(prompt_text(endpoint, body))
    if kind is None:
        return []
    unread = neutral_fields(endpoint) | {"model"}
    found: list[Finding] = []
    for name, value in body.items():
        for where, text in _texts(name, {} if name in unread else value):
            found += [
                Finding(span.kind, where, span.start, span.end) for span in scanner.spans(text)
            ]
            if len(found) >= MOST_FINDINGS:
                return found[:MOST_FINDINGS]
    return found or [Finding(kind, "texts put together or unescaped", 0, 0)]


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    stack = [(where, value)]
    while stack:
        at, each = stack.pop()
        match each:
            case str():
                yield at, each
            case dict():
                stack += reversed([(f"{at}.{name}", member) for name, member in each.items()])
            case list():
                stack += reversed([(f"{at}[{index}]", item) for index, item in enumerate(each)])
