"""Line ends and white space at the end of lines and texts, in one form.

Law: white space that has a meaning stays. That is all of a fenced block of code, the spaces that
end lines of an indented one, and the two by which Markdown breaks a line.
"""

from collections import deque
from itertools import pairwise

from gateway.core.fences import code_blocks

_BREAK = "  "
_ENDS = frozenset(" \t\r")


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends`` tells that no other text follows in its message."""
    if not _may_change(text, ends=ends) or text.isspace():
        return text
    blocks = deque(code_blocks(text))
    # What closes a block of code ends a line of it: that line is left alone.
    ends = ends and not (blocks and blocks[-1].end >= len(text.rstrip(" \t\r\n")))
    lines = text.split("\n")
    at = 0
    for index, (line, following) in enumerate(pairwise(lines)):
        end = at + len(line)
        while blocks and blocks[0].end < at:
            blocks.popleft()
        if line[-1:] in _ENDS and not (blocks and blocks[0].start <= end):
            lines[index] = _normal_line(line, following)
        at = end + 1
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
