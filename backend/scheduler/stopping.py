"""When a choice ends, and what text its tokens are.

``finish_reason`` decides by tokens (end tokens, length) in the engine; ``Choice`` decides by text
(stop strings) where tokens become text. Text that could begin a stop string waits until it is known
not to be one, so a stop string never shows, not even in part.

The concatenated deltas of a detokenizer equal the decoding of the whole. A token can end inside a
multi-byte character, and what is emitted is never taken back. So text waits until the character is
complete; U+FFFD appears only where the model truly broke off or produced bytes that are no UTF-8.
"""

import codecs
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from backend.scheduler.request import (
    FinishReason,
    ReasoningSpan,
    TextDelta,
    TokenDelta,
    TokenLogprobs,
)
from backend.scheduler.sequence import Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_BYTES = 4  # of a character


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Say whether the newest token of ``sequence``, a generated one, is its last."""
    if sequence.tokens[-1] in sequence.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(sequence.tokens) >= sequence.max_length else None


class IncrementalDetokenizer(Protocol):
    """State of one choice's text."""

    def push(self, token: int) -> str:
        """Return the text that ``token`` completes, possibly empty."""

    def finish(self) -> str:
        """Return what still waits; an unfinished character becomes U+FFFD."""


class ByteLevelDetokenizer:
    """For byte-level BPE, where each token is a fixed string of bytes."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """``bytes_of`` gives a token's bytes; empty for special tokens, which have no text."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._bytes_of(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder: decode a short window of tokens and emit what became stable.

    The window keeps the tokens before the newest clean boundary as context, because decoders of
    SentencePiece models treat the first token of a text differently from the same token later.
    While the window ends in U+FFFD nothing is emitted: byte fallback decodes a run of bytes as a
    whole, so an unfinished character spoils those before it until it is complete.
    """

    def __init__(
        self,
        decode: Callable[[SequenceOf[int]], str],
        context: SequenceOf[int] = (),
        markup: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """``decode`` turns tokens into text, leaving special tokens out.

        ``context`` are tokens before the text, which it continues. ``markup`` has the special
        tokens that are text, and how they are spelled.
        """
        self._decode = decode
        self._markup = markup
        self._begin_behind(context)

    def _begin_behind(self, context: SequenceOf[int]) -> None:
        # Bytes of a character that was broken off, or that begins before the context, are none.
        shorter = (
            context[start : len(context) - cut]
            for cut in range(_MOST_BYTES)
            for start in range(_MOST_BYTES)
        )
        whole = (each for each in shorter if not self._decode(each).endswith(REPLACEMENT))
        self._window = list(next(whole, ()))
        self._boundary = len(self._window)
        self._emitted = len(self._decode(self._window))

    def push(self, token: int) -> str:
        if token in self._markup:
            text = self.finish() + self._markup[token]
            self._begin_behind(self._window)
            return text
        self._window.append(token)
        text = self._decode(self._window)
        delta = text[self._emitted :]
        if not delta or text.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._boundary :]
        self._boundary = len(self._window)
        self._emitted = len(self._decode(self._window))
        return delta

    def finish(self) -> str:
        return self._decode(self._window)[self._emitted :]


class _Reasoning:
    """Follows the text of one choice through its reasoning."""

    def __init__(self, span: ReasoningSpan) -> None:
        self.found = span.begun
        self.over = False
        """Whether what follows is the answer, perhaps behind white space."""
        self.answered = False
        """Whether the answer has begun."""
        self._opening = span.opening
        self._steps = list(span.closing)
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Add ``text``; return the reasoning that is certain, and what of the answer has come."""
        if self.over:
            return self._behind(text, 0)
        text, self._held = self._held + text, ""
        if not self.found:
            begun = text.lstrip()
            if not (found := begun.startswith(self._opening)) and any(
                tag.startswith(begun) for tag in self._opening
            ):
                self._held = text
                return "", ""
            if not found:
                self.over = self.answered = True
                return "", text
            self.found = True
        passed = 0
        while self._steps:
            tags = self._steps[0]
            if (end := end_of_first(text, tags, passed)) < 0:
                known = max(passed, len(text) - open_prefix(text, tags))
                self._held = text[known:]
                return text[:known], ""
            passed = end
            del self._steps[0]
        self.over = True
        return self._behind(text, passed)

    def _behind(self, text: str, passed: int) -> tuple[str, str]:
        # White space before the answer is no part of it: it ends nothing.
        answer = text[passed:].lstrip()
        self.answered = bool(answer)
        return text.removesuffix(answer), answer

    def finish(self, text: str) -> tuple[str, str]:
        """Add the last ``text``, and return what is left of both."""
        passed, text = self.push(text)
        return (passed + self._held, text) if self.found else (passed, self._held + text)


@dataclass(frozen=True, slots=True)
class StopScan:
    """``text`` may be shown; ``stopped`` when a stop string followed it."""

    text: str
    stopped: bool


class StopStringScanner:
    """Finds the stop string that is complete first in text that arrives in pieces.

    Of two that end together the longer counts. So the cut does not depend on the pieces.
    """

    def __init__(self, stop: SequenceOf[str]) -> None:
        """Empty strings are ignored: they would stop everything before it starts."""
        self._stop = tuple(string for string in stop if string)
        self._held = ""

    def push(self, text: str, *, searched: bool = True) -> StopScan:
        """Add ``text`` and return what has become certain; no stop string ends unless searched."""
        if not self._stop:
            return StopScan(text, stopped=False)
        text, self._held = self._held + text, ""
        # Where none may end yet, what begins here may end later.
        passed = 0 if searched else len(text) - open_prefix(text, self._stop)
        scan = self._search(text[passed:])
        return StopScan(text[:passed] + scan.text, scan.stopped)

    def _search(self, text: str) -> StopScan:
        found = [
            (start + len(string), start)
            for string in self._stop
            if (start := text.find(string)) >= 0
        ]
        if found:
            _, start = min(found)
            return StopScan(text[:start], stopped=True)
        cut = len(text) - open_prefix(text, self._stop)
        self._held = text[cut:]
        return StopScan(text[:cut], stopped=False)

    def finish(self) -> str:
        """Return what was held back: the text is over and no stop string came."""
        held, self._held = self._held, ""
        return held


def longest_open_prefix(text: str, string: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``string``."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0


def open_prefix(text: str, strings: SequenceOf[str]) -> int:
    """Return the length of the longest end of ``text`` that begins one of ``strings``."""
    return max(longest_open_prefix(text, string) for string in strings)


def end_of_first(text: str, strings: SequenceOf[str], start: int = 0) -> int:
    """Return where the one of ``strings`` ends that is complete first behind ``start``, else -1."""
    found = ((text.find(string, start), len(string)) for string in strings)
    return min((at + length for at, length in found if at >= 0), default=-1)


@dataclass(frozen=True, slots=True)
class _Reported:
    """Where a token's text begins and ends; empty while its character is not complete."""

    start: int
    end: int
    logprobs: TokenLogprobs


class Choice:
    """Turns the tokens of one choice into text, up to a stop string.

    A token's log probabilities travel with its text: held back with it, and dropped with it when
    it belongs to a stop string. End tokens have no text and report none, unless wanted.
    """

    def __init__(
        self,
        index: int,
        stop: SequenceOf[str],
        detokenizer: IncrementalDetokenizer,
        *,
        min_tokens: int = 0,
        reasoning: ReasoningSpan | None = None,
        reports_end: bool = False,
    ) -> None:
        """``stop`` strings end the text before themselves.

        They do so behind the ``reasoning``, and end with a token behind ``min_tokens`` of the
        answer. An end token has its log probabilities where the choice ``reports_end``.
        """
        self.index = index
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._reasoning = None if reasoning is None else _Reasoning(reasoning)
        """None once the answer has begun."""
        self._reports_end = reports_end
        self._scanner = StopStringScanner(stop)
        self._decoded = 0
        self._shown = 0
        self._reported: deque[_Reported] = deque()
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._times: tuple[float, float] | None = None

    def push(self, delta: TokenDelta) -> TextDelta | None:
        """Take the next tokens; None when they show no text yet.

        A delta with a ``finish_reason`` is the last, whether the tokens or a stop string ended
        the choice. An end token counts as generated but has no text.
        """
        texts: list[str] = []
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        self._times = self._times or delta.times
        for position, token in enumerate(delta.tokens):
            self.num_tokens += 1
            is_last = position == len(delta.tokens) - 1
            if is_last and delta.finish_reason is FinishReason.STOP:
                if self._reports_end:
                    self._report(delta, position, self._decoded)
                break
            text = self._decode(delta, position, token)
            if self._reasoning is not None:
                passed, text = self._pass(self._reasoning, text)
                texts.append(passed)
            least = self._min_tokens
            searched = not least or self.num_tokens - self.num_reasoning_tokens > least
            scan = self._scanner.push(text, searched=searched)
            texts.append(scan.text)
            if scan.stopped:
                return self._stopped("".join(texts), delta)
        text = "".join(texts)
        if delta.finish_reason is not None:
            return self._end(text, delta.finish_reason, delta)
        if not text:
            return None
        self._shown += len(text)
        return self._delta(text, None, delta, lambda token: token.end <= self._shown)

    def _pass(self, reasoning: _Reasoning, text: str) -> tuple[str, str]:
        was_over = reasoning.over
        passed, text = reasoning.push(text)
        if reasoning.found and not was_over:
            self.num_reasoning_tokens = self.num_tokens
        if reasoning.answered:
            self._reasoning = None
        return passed, text

    def _decode(self, delta: TokenDelta, position: int, token: int) -> str:
        text = self._detokenizer.push(token)
        start, self._decoded = self._decoded, self._decoded + len(text)
        self._report(delta, position, start)
        return text

    def _report(self, delta: TokenDelta, position: int, start: int) -> None:
        if delta.logprobs:
            logprobs = replace(delta.logprobs[position], text_offset=start)
            self._reported.append(_Reported(start, self._decoded, logprobs))

    def _end(self, text: str, reason: FinishReason, delta: TokenDelta) -> TextDelta:
        # A character cut short becomes text only now, and may itself complete a stop string.
        rest = self._detokenizer.finish()
        if self._reasoning is not None:
            passed, rest = self._reasoning.finish(rest)
            text += passed
        scan = self._scanner.push(rest)
        text += scan.text
        if scan.stopped:
            return self._stopped(text, delta)
        return self._delta(text + self._scanner.finish(), reason, delta, lambda _: True)

    def _stopped(self, text: str, delta: TokenDelta) -> TextDelta:
        self._shown += len(text)
        return self._delta(text, FinishReason.STOP, delta, lambda token: token.start < self._shown)

    def _delta(
        self,
        text: str,
        reason: FinishReason | None,
        delta: TokenDelta,
        is_due: Callable[[_Reported], bool],
    ) -> TextDelta:
        due = []
        while self._reported and is_due(self._reported[0]):
            due.append(self._reported.popleft().logprobs)
        prompt, self._prompt_logprobs = self._prompt_logprobs, ()
        times, self._times = self._times, None
        cached = delta.cached_tokens
        return TextDelta(
            *(self.index, text, self.num_tokens, reason, tuple(due), cached, prompt, times),
            reasoning_tokens=self.num_reasoning_tokens,
        )
