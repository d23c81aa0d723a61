"""Code in a text: fenced blocks of Markdown, and what looks like code in a question.

Law of ``holds_code``: code is exact to the character, so similar meaning is not enough. The name of
a programming language, or a word of it in prose, is not code. Each pattern reads a bounded stretch.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_OPENS = re.compile(r" {0,3}(?:(`{3,}+)[^`]*+|(~{3,}+).*+)")
"""A line such as ```a```b is code within a line."""
_CLOSES = re.compile(r" {0,3}(`{3,}+|~{3,}+)[ \t\r]*+")
_OPENS_LOOSELY = re.compile(r"\s*+(`{3,}+|~{3,}+)[^`]*+|[^`]++(`{3,}+)[\w+#.-]*+\s*+")


class Block(NamedTuple):
    """Places in the text: of the marks that open a block, of its code, and where it ends."""

    start: int
    code: int
    behind_code: int
    end: int
    closed: bool


def code_blocks(text: str, *, loose: bool = False) -> Iterator[Block]:
    """Yield the fenced blocks in order; one that is never closed goes to the end of the text.

    ``loose`` is the form in which models write them: behind words, indented, or closed in a line.
    """
    if not has_fences(text):
        return
    opens = _OPENS_LOOSELY if loose else _OPENS
    start = code = at = 0
    fence = ""
    for line in text.split("\n"):
        if "```" not in line and "~~~" not in line:
            pass
        elif not fence:
            if (opening := opens.fullmatch(line)) and opening.lastindex:
                fence = opening[opening.lastindex]
                start, code = at + opening.start(opening.lastindex), at + len(line) + 1
        elif (closed := _closed(fence, line, loose=loose)) is not None:
            yield Block(start, code, at + closed[0], at + closed[1], closed=True)
            fence = ""
        at += len(line) + 1
    if fence:
        yield Block(start, min(code, len(text)), len(text), len(text), closed=False)


def has_fences(text: str) -> bool:
    """Tell whether a text may have a fence."""
    # One character is found ten times as fast as three.
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def _closed(fence: str, line: str, *, loose: bool) -> tuple[int, int] | None:
    """Return where in a line the code and the block end, None where they go on."""
    if loose:
        at = line.find(fence)
        return None if at < 0 else (at, len(line) - len(line[at:].lstrip("`~")))
    found = _CLOSES.fullmatch(line)
    return (0, len(line)) if found is not None and found[1].startswith(fence) else None


_ANY_MARK = re.compile(r"[`{}<>=;|\\$#\[\]@(\n]|--|\.\*|Error|Exception|SELECT|select|&&|\b-[a-z]")
"""Without one of these no pattern of ``_CODE`` can match."""

_COMMANDS = (
    "git|docker|kubectl|helm|npm|npx|yarn|pip3?|python3?|node|curl|wget|ssh|scp|rsync|chmod|chown"
    "|apt(?:-get)?|brew|systemctl|tar|grep|sed|awk|find|ls|cd|mkdir|rm|cp|mv|cargo|make|terraform"
    "|aws|gcloud|az|psql|mysql|ffmpeg|openssl"
)

_CODE = re.compile(
    "|".join(
        (
            r"`[^`]{1,400}`|``",  # fenced or inline
            r"</?[a-zA-Z][\w:-]{0,40}(?:\s[^<>]{0,200})?/?>",  # HTML, XML
            r"[{\[]\s*[\"'][^\"']{0,100}[\"']\s*[:,]",  # JSON
            r"\[\s*-?\d[\d.]{0,20}\s*,",
            r"\{[^{}]{0,200}[:;][^{}]{0,200}\}",  # blocks, CSS
            r"[\w)\]]\s?(?:===?|!==?|:=|\+=|&&|\|\|)\s?(?:[\d(\"'!]|\w\b|\w{1,60}[_.(\[])",
            r"\b(?:let|const|var)\s+\w{1,60}\s?=|\bdef\s+\w{1,60}\(",
            r"\bfunction\s?\w{0,60}\([^)]{0,99}\)\s?\{",
            r"\b\w{1,60}\([^()]{0,99}[\"'=\[{][^()]{0,99}\)",  # a call with its arguments
            r"\b\w{1,60}\.\w{1,60}\([^()\s][^()]{0,99}\)",
            r"#include\b|\bpublic static\b|=>\s?[{(]|;[ \t]*\n",
            r"^[ \t]*(?:import \w[\w.]{0,60}$|from \w[\w.]{0,60} import\b)",
            r"Traceback \(|^\s{0,20}at [\w.$<>]{1,99}\(|\bFile \"[^\"]{1,99}\", line",
            r"\b\w{0,60}(?:Error|Exception): \S",
            r"^(?:@@ |\+\+\+ |--- \S|diff --git)",
            r"\bSELECT\s[^?]{1,200}\sFROM\b",
            r"\bselect\s+(?:\*|[\w.]{1,60}(?:,\s?[\w.]{1,60}){1,9})\s+from\b",
            r"\b(?:INSERT INTO|DELETE FROM) \w",
            r"\b(?:CREATE TABLE \w{1,60}\s?\(|UPDATE \w{1,60} SET \w)",
            r"^\s{0,20}\$ \S",
            rf"(?:^|:\s{{0,3}})(?:sudo )?(?:{_COMMANDS}) [^?\n]{{0,200}}(?<=\s)--?[a-zA-Z]",
            rf"^\s{{0,9}}sudo \w|(?<=\s)\|\s?(?:{_COMMANDS}|xargs|sort|wc|head|tail|jq|sh|bash)\b",
            r"\\[dwsbDWSB][+*?{\\.\[(]|\[\^?(?:a-z|A-Z|0-9)|\(\?[:=!<P]|\.\*[?$)]|\\[a-zA-Z]{2,40}\{",
            r"\n(?: {4}|\t)\S",  # an indented block
        )
    ),
    re.MULTILINE,
)


def holds_code(text: str) -> bool:
    """Tell whether a text of bounded length holds code."""
    return _ANY_MARK.search(text) is not None and _CODE.search(text) is not None
