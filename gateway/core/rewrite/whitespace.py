"""Line ends and white space at the end of lines and texts, in one form.

Law: white space that has a meaning stays. That is all of a fenced block of code, the spaces that
end lines of an indented one, and the two by which Markdown breaks a line.
"""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_BREAK = "  "


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends`` tells that no other text follows in its message."""
    if not _may_change(text, ends=ends) or text.isspace():
        return text
    lines = text.split("\n")
    last = len(lines) - 1
    fence = ""
    for index, line in enumerate(lines):
        if (marks := _FENCE.fullmatch(line.removesuffix("\r"))) is not None:
            fence = _after(fence, marks)
        elif not fence and index < last:
            lines[index] = _normal_line(line, lines[index + 1])
    normalised = "\n".join(lines)
    if ends and not fence and (kept := normalised.rstrip(" \t\r\n")):
        # What closes a block of code ends a line of it: that line is left alone.
        return normalised if _FENCE.fullmatch(kept[kept.rfind("\n") + 1 :]) else kept
    return normalised


def _may_change(text: str, *, ends: bool) -> bool:
    if ends and text[-1:].isspace():
        return True
    return "\n" in text and (" \n" in text or "\t\n" in text or "\r\n" in text)


def _after(fence: str, marks: re.Match[str]) -> str:
    """Return the fence that is open after a line that may be one; none is the empty text."""
    written, rest = marks[1], marks[2]
    if not fence:
        # A line such as ```a```b is code within a line.
        return "" if written[0] == "`" and "`" in rest else written
    closes = written[0] == fence[0] and len(written) >= len(fence) and not rest.strip()
    return "" if closes else fence


def _normal_line(line: str, following: str) -> str:
    line = line.removesuffix("\r")
    kept = line.rstrip(" \t")
    if kept and line.startswith(("    ", "\t")):
        return line
    breaks = kept and line.endswith(_BREAK) and following.strip()
    return kept + _BREAK if breaks else kept
