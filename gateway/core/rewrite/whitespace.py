"""Line ends and white space at the end of lines and texts, in one form.

Law: white space that has a meaning stays. That is all of a fenced block of code, the spaces that
end lines of an indented one, and the two by which Markdown breaks a line.
"""

from itertools import pairwise

from gateway.core.rewrite import fences

_BREAK = "  "
_ENDS = frozenset(" \t\r")


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends`` tells that no other text follows in its message."""
    if not _may_change(text, ends=ends) or text.isspace():
        return text
    if "`" not in text and "~" not in text:
        return _normal_prose(text, ends=ends)
    lines = text.split("\n")
    last = len(lines) - 1
    fence = ""
    for index, line in enumerate(lines):
        if (now := fences.after(fence, line.removesuffix("\r"))) is not None:
            fence = now
        elif not fence and index < last:
            lines[index] = _normal_line(line, lines[index + 1])
    normalised = "\n".join(lines)
    if ends and not fence and (kept := normalised.rstrip(" \t\r\n")):
        # What closes a block of code ends a line of it: that line is left alone.
        last_line = kept[kept.rfind("\n") + 1 :]
        return kept if fences.after("", last_line) is None else normalised
    return normalised


def _normal_prose(text: str, *, ends: bool) -> str:
    lines = text.split("\n")
    for index, (line, following) in enumerate(pairwise(lines)):
        if line[-1:] in _ENDS:
            lines[index] = _normal_line(line, following)
    normalised = "\n".join(lines)
    return (ends and normalised.rstrip(" \t\r\n")) or normalised


def _may_change(text: str, *, ends: bool) -> bool:
    if ends and text[-1:].isspace():
        return True
    return "\n" in text and (" \n" in text or "\t\n" in text or "\r\n" in text)


def _normal_line(line: str, following: str) -> str:
    line = line.rstrip("\r")
    kept = line.rstrip(" \t\r")
    if kept and line.startswith(("    ", "\t")):
        return line
    breaks = kept and line.endswith(_BREAK) and following.strip()
    return kept + _BREAK if breaks else kept
