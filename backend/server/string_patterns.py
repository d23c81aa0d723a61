"""Which patterns of strings can be enforced in JSON, where some characters stand escaped."""

import re

_LOOKAROUND = re.compile(r"\(\?<?[=!]|\\[bB]")
# An escape, or a class; one that is not closed goes to the end, or looking for it would take time
# quadratic in the pattern's length.
_CLASS = re.compile(r"\\.|\[(\^?)((?:\\.|[^\]\\])*+)(?:\]|\\?\Z)", re.DOTALL)
# Outside of a class a pattern's characters stand in the JSON text as they are.
_UNWRITABLE = re.compile(r'"|\\[\\nrtfvcxu0]|[\x00-\x1f]')
_UNWRITABLE_IN_CLASS = re.compile(r"\\[nrtfvc0]|[\x00-\x1f]")


def pattern_problem(pattern: str) -> str | None:
    """Say what of ``pattern`` cannot be enforced: JSON would have to write it with a backslash."""
    if _LOOKAROUND.search(pattern):
        return "lookarounds and word boundaries are not permitted"
    classes = [content for negated, content in _CLASS.findall(pattern) if not negated]
    outside = _CLASS.sub(lambda found: found[0] if found[0][0] == "\\" else "", pattern)
    if _UNWRITABLE.search(outside) or any(
        _UNWRITABLE_IN_CLASS.search(content) for content in classes
    ):
        return "quotes, backslashes, control characters and character codes are not permitted"
    return None
