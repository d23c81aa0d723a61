"""White space that says nothing, taken out.

Law: lossless. JSON stays the same value with the same text of numbers and strings; in prose only
runs of spaces and of blank lines shrink, and indentation stays; what has a form (code, tables)
loses nothing but white space at the end of lines.
"""

import re

_JSON_SPACE = re.compile(r'("(?:[^"\\]++|\\.)*+")|[ \t\r\n]++', re.DOTALL)
# Each run is looked at once, from its beginning.
_LINE_END = re.compile(r"(?<![ \t])[ \t]++(?=\r?\n|\Z)|\r(?=\n)")
_RUN = re.compile(r"(?<=\S)  +(?=\S)")
_BLANK = re.compile(r"\n{3,}")


def json_minified(text: str) -> str:
    """Return a JSON text without white space outside its strings."""
    return _JSON_SPACE.sub(_string, text)


def formed_minified(text: str) -> str:
    """Return code or a table without white space at the end of its lines."""
    return _LINE_END.sub("", text)


def prose_minified(text: str) -> str:
    """Return prose without runs of spaces and blank lines."""
    return _BLANK.sub("\n\n", _RUN.sub(" ", _LINE_END.sub("", text)))


def _string(found: re.Match[str]) -> str:
    return found[1] or ""
