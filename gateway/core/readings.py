r"""Every text in a JSON value, in all the ways in which a reader may put it together.

Law: what the model or a client can read as text, the PII scan reads, too: member names, text cut
into parts, and text escaped once more, as in a tool call's arguments (``ada\u0040example.com``).
"""

import re
from collections.abc import Iterator
from typing import Any

_WRITTEN_AT = re.compile(r"%40|&#0*64;|&#[xX]0*40;|&commat;")
_ESCAPES = (
    *(("\\\\", "\0"), ("\\n", "\n"), ("\\r", "\n"), ("\\t", " "), ('\\"', '"'), ("\\/", "/")),
    *(("\\x40", "@"), ("\0", "\\")),
)
_MOST_ESCAPED = 3
"""JSON in JSON in JSON is read; what is deeper is nobody's habit."""


def readings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, depth first, with their other readings.

    Sealed reasoning is left out: only who made it can read it, and it is nobody's secret.
    """
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text:
                yield text
                yield from _unescaped(text)
            case dict() as members:
                sealed = members.get("type") == "reasoning"
                for name in members:
                    if not name.replace("_", "").isalpha():
                        yield name
                        yield from _unescaped(name)
                stack.extend(
                    member
                    for name, member in reversed(members.items())
                    if not (sealed and name == "encrypted_content" and isinstance(member, str))
                )
            case list() as items:
                cut = [
                    item["text"]
                    for item in items
                    if isinstance(item, dict) and isinstance(item.get("text"), str)
                ]
                if len(cut) > 1:
                    yield "".join(cut)
                stack.extend(reversed(items))


def _unescaped(text: str) -> Iterator[str]:
    """Yield what the text says once backslash escapes and a written-out @ are read, if any."""
    if _WRITTEN_AT.search(text) is not None:
        yield _WRITTEN_AT.sub("@", text)
    for _ in range(_MOST_ESCAPED):
        if "\\" not in text:
            return
        # Only whole steps in C: this is done on the loop.
        text = text.encode("raw_unicode_escape").decode("raw_unicode_escape", "replace")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for written, meant in _ESCAPES:
            text = text.replace(written, meant)
        yield text
