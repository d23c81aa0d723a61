"""When a choice ends: stop strings over its text, end tokens, length.

Text that could be the beginning of a stop string waits until it is known not to be one, so a stop
string never shows, not even in part.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.core.detokenizer import IncrementalDetokenizer
from backend.core.types import FinishReason, SamplingParams, TextDelta, TokenLogprobs


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


@dataclass(frozen=True, slots=True)
class _Reported:
    """Where a token's text begins and ends; empty while its character is not complete."""

    start: int
    end: int
    logprobs: TokenLogprobs


class Choice:
    """Turns the tokens of one choice into deltas and decides when it ends.

    A token's log probabilities travel with its text: held back with it, and dropped with it when
    it belongs to a stop string. End tokens have no text and report none.
    """

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
        eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self._end_token_ids = eos_token_ids | sampling.stop_token_ids
        self._detokenizer = detokenizer
        self._scanner = StopStringScanner(sampling.stop)
        self._decoded = 0
        self._shown = 0
        self._reported: deque[_Reported] = deque()

    def push(self, token: int, logprobs: TokenLogprobs | None = None) -> TextDelta | None:
        """Take the next token; None when it shows no text yet.

        A delta with a ``finish_reason`` is the last. The end token counts as generated but has no
        text.
        """
        self.num_tokens += 1
        if token in self._end_token_ids:
            return self._end(FinishReason.STOP, "")
        text = self._detokenizer.push(token)
        start, self._decoded = self._decoded, self._decoded + len(text)
        if logprobs is not None:
            self._reported.append(_Reported(start, self._decoded, logprobs))
        scan = self._scanner.push(text)
        if scan.stopped:
            return self._stopped(scan.text)
        if self.num_tokens >= self._max_new_tokens:
            return self._end(FinishReason.LENGTH, scan.text)
        if not scan.text:
            return None
        self._shown += len(scan.text)
        logprobs_shown = self._take(lambda token: token.end <= self._shown)
        return TextDelta(self.index, scan.text, self.num_tokens, logprobs=logprobs_shown)

    def _end(self, reason: FinishReason, text: str) -> TextDelta:
        # A character cut short becomes text only now, and may itself complete a stop string.
        scan = self._scanner.push(self._detokenizer.finish())
        text += scan.text
        if scan.stopped:
            return self._stopped(text)
        text += self._scanner.finish()
        logprobs = self._take(lambda _: True)
        return TextDelta(self.index, text, self.num_tokens, reason, logprobs)

    def _stopped(self, text: str) -> TextDelta:
        self._shown += len(text)
        logprobs = self._take(lambda token: token.start < self._shown)
        return TextDelta(self.index, text, self.num_tokens, FinishReason.STOP, logprobs)

    def _take(self, is_due: Callable[[_Reported], bool]) -> tuple[TokenLogprobs, ...]:
        due = []
        while self._reported and is_due(self._reported[0]):
            due.append(self._reported.popleft().logprobs)
        return tuple(due)
