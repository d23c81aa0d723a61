"""Fenced blocks of code in Markdown, line by line."""

import re
from collections.abc import Iterator

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_MARKS = (b"```", b"~~~")


def after(fence: str, line: str) -> str | None:
    """Return the fence that is open after a line, the empty text for none.

    None where the line neither opens nor closes one. ``fence`` is the one open before it.
    """
    marks = _FENCE.fullmatch(line)
    if marks is None:
        return None
    written, rest = marks[1], marks[2]
    if not fence:
        # A line such as ```a```b is code within a line.
        return "" if written[0] == "`" and "`" in rest else written
    closes = written[0] == fence[0] and len(written) >= len(fence) and not rest.strip()
    return "" if closes else fence


def has_marks(text: bytes) -> bool:
    """Tell whether a text may have a fence."""
    # One byte is found ten times as fast as three.
    return (b"`" in text and b"```" in text) or (b"~" in text and b"~~~" in text)


def code_blocks(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the fenced blocks stand that are closed, in order."""
    if not has_marks(text):
        return
    fence, begin, at = "", 0, 0
    for line in text.split(b"\n"):
        if line.lstrip(b" ").startswith(_MARKS):
            now = after(fence, line.removesuffix(b"\r").decode())
            if now and not fence:
                begin = at
            elif fence and now == "":
                yield begin, at
            fence = fence if now is None else now
        at += len(line) + 1
