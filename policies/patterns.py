"""Compiles the patterns of a policy by RE2, within bounds of memory for each and for all.

Law: what a policy can run is compiled when the policy is read. So a pattern that is too large is a
problem of the file and never one of a request. RE2 gives up at its bound, so the time is bounded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import re2

ENGINE_BYTES = 16 << 20
"""Memory of one pattern before RE2 refuses it, or falls back on a slower engine."""
MOST_STEPS = 2_000_000
"""Of all programs of a policy: some 100 MB, and some seconds to compile."""


class PatternError(ValueError):
    """RE2 does not compile a pattern; the text is its reason."""


@dataclass(slots=True)
class Budget:
    """The steps of RE2's programs that one policy may still have."""

    left: int = MOST_STEPS

    def spend(self, *programs: Any) -> None:
        """Count compiled patterns. Raises PatternError if there are too many steps."""
        self.left -= sum(each.programsize for each in programs)
        if self.left < 0:
            raise PatternError("all patterns of this file together are too large")


def compile_pattern(pattern: str, budget: Budget | None = None, *, captures: bool = False) -> Any:
    """Return the compiled pattern. Raises PatternError."""
    try:
        compiled = re2.compile(pattern, _options(captures=captures))
    except re2.error as error:
        raise PatternError(_reason(error)) from None
    if budget is not None:
        budget.spend(compiled)
    return compiled


def compile_search(pattern: str, budget: Budget | None = None) -> Callable[[str], bool]:
    """Return a function that tells whether a text has the pattern. Raises PatternError."""
    compiled = compile_pattern(pattern, budget)
    return lambda text: compiled.search(text.encode("utf-8", "replace")) is not None


def compile_set(patterns: Sequence[str]) -> Any:
    """Return what tells which patterns match a whole text. Raises PatternError."""
    compiled = re2.Set.FullMatchSet(_options(captures=False))
    try:
        for pattern in patterns:
            compiled.Add(pattern)
        compiled.Compile()
    except re2.error:
        raise PatternError("patterns that are too large together") from None
    return compiled


def check_syntax(pattern: str) -> None:
    """Refuse an invalid pattern, without its compilation. Raises PatternError."""
    try:
        re2.Set.FullMatchSet(_options(captures=False)).Add(pattern)
    except re2.error:
        compile_pattern(pattern)  # tells the reason


def _options(*, captures: bool) -> Any:
    options = re2.Options()
    options.never_capture = not captures
    options.log_errors = False
    options.max_mem = ENGINE_BYTES
    return options


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
