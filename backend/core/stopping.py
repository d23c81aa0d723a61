"""When a choice ends: stop strings over its text, end tokens, length.

Text that could be the beginning of a stop string waits until it is known not to be one, so a stop
string never shows, not even in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.core.detokenizer import IncrementalDetokenizer
from backend.core.types import FinishReason, SamplingParams, TextDelta


@dataclass(frozen=True, slots=True)
class StopScan:
    """``text`` may be shown; ``stopped`` when a stop string followed it."""

    text: str
    stopped: bool


class StopStringScanner:
    """Finds the stop string that is complete first in text that arrives in pieces.

    Of two that end together the longer counts. So the cut does not depend on the pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Empty strings are ignored: they would stop everything before it starts."""
        self._stop = tuple(string for string in stop if string)
        self._held = ""

    def push(self, text: str) -> StopScan:
        """Add ``text`` and return what has become certain."""
        if not self._stop:
            return StopScan(text, stopped=False)
        text = self._held + text
        found = [
            (start + len(string), start)
            for string in self._stop
            if (start := text.find(string)) >= 0
        ]
        if found:
            self._held = ""
            _, start = min(found)
            return StopScan(text[:start], stopped=True)
        keep = max(_longest_open_prefix(text, string) for string in self._stop)
        cut = len(text) - keep
        self._held = text[cut:]
        return StopScan(text[:cut], stopped=False)

    def finish(self) -> str:
        """Return what was held back: the text is over and no stop string came."""
        held, self._held = self._held, ""
        return held


def _longest_open_prefix(text: str, string: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``string``."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0


class Choice:
    """Turns the tokens of one choice into deltas and decides when it ends."""

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        *,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        detokenizer: IncrementalDetokenizer,
    ) -> None:
        """``max_new_tokens`` is what the request allows and the context leaves, at least 1."""
        self.index = index
        self.num_tokens = 0
        self._max_new_tokens = max_new_tokens
        self._eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self._detokenizer = detokenizer
        self._scanner = StopStringScanner(sampling.stop)

    def push(self, token: int) -> TextDelta | None:
        """Take the next token; None when it shows no text yet.

        A delta with a ``finish_reason`` is the last. The end token counts as generated but has no
        text.
        """
        self.num_tokens += 1
        if token in self._eos_token_ids:
            return self._end(FinishReason.STOP, "")
        scan = self._scanner.push(self._detokenizer.push(token))
        if scan.stopped:
            return TextDelta(self.index, scan.text, self.num_tokens, FinishReason.STOP)
        if self.num_tokens >= self._max_new_tokens:
            return self._end(FinishReason.LENGTH, scan.text)
        if not scan.text:
            return None
        return TextDelta(self.index, scan.text, self.num_tokens)

    def _end(self, reason: FinishReason, text: str) -> TextDelta:
        # A character cut short becomes text only now, and may itself complete a stop string.
        scan = self._scanner.push(self._detokenizer.finish())
        text += scan.text
        if scan.stopped:
            return TextDelta(self.index, text, self.num_tokens, FinishReason.STOP)
        return TextDelta(self.index, text + self._scanner.finish(), self.num_tokens, reason)
