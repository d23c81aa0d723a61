"""Speculative decoding by prompt lookup: a draft is what followed the same tokens before.

Answers that quote, edit or repeat a text contain their next tokens already, so no draft model is
needed (Saxena, "Prompt Lookup Decoding", 2023). A step verifies all drafts of a row at once.

Laws:
- A draft changes no text: a token is accepted only where it equals the one chosen at its place.
- A sequence has no drafts while fewer than half of the tokens that it predicts are right. It
  predicts them with and without drafts, so that finding out costs no step.
- Drafts are made only where the expected tokens are worth the longer step, by measured times.
- Novel text costs one hash a token, larger batches than ``MOST_ROWS`` cost nothing.
- Memory is bounded: at most ``_MOST_SLOTS`` positions a sequence.
"""

from array import array
from collections import deque
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from math import log

import numpy as np

from backend.scheduler.sequence import ScheduledSequence, Sequence

MOST_DRAFTS = 16
"""One sequence has at most so many in one step."""
MOST_ROWS = 32
"""Steps with more decoding sequences have no drafts: there a draft costs as much as a row."""

_SIZE = 3  # of an n-gram, in tokens
_SECOND, _THIRD = 40_503, 126_929  # multipliers of its hash
_LEAST_SLOTS = 1 << 10
_MOST_SLOTS = 1 << 17
_MOST_INDEXED_AT_ONCE = 1 << 15
_FEW_TOKENS = 32

_FIRST_RATE = 0.66
_WEIGHT_OF_NEWEST = 0.2
_ENOUGH_RIGHT = 0.5
_FEW_ROWS = 4
_FOR_FEW_ROWS = 8
"""So many drafts take hardly longer than one in a step of few rows."""

_MARGIN, _MARGIN_OF_MANY = 1.2, 2.0
"""So much more than its time costs must a step of few or of more rows with drafts gain: of many
sequences those have drafts that were luckiest lately."""
_FACTOR_OF_UNKNOWN = 3.0
"""A step with drafts is taken to be so much longer until some were measured."""
_LEAST_KNOWN = 3
_KEPT_OF_A_KIND = 8
_FORGOTTEN_AFTER = 512  # steps
_WINDOW, _KEPT_FOR = 24, 1024
"""Steps without and with drafts that are compared among many rows, and how long that holds."""
_FASTER = 1.03


class PromptLookup:
    """Predicts the next tokens of one sequence, and counts how often it was right lately.

    Once an n-gram occurred before, the place behind it is followed as long as it predicts the
    tokens that come. The table leads from the hash of an n-gram to where it ended last. A newer
    n-gram of the same slot takes it over; a look-up compares the tokens.
    """

    __slots__ = ("_next", "_num_followed", "_num_indexed", "_table", "rate")

    def __init__(self) -> None:
        self.rate = _FIRST_RATE
        """How many of the tokens predicted lately were right, from 0 to 1."""
        self._table = array("i")
        self._num_indexed = 0
        self._num_followed = 0
        self._next = 0
        """Place of the token that is predicted next; 0: none is."""

    def follow(self, tokens: list[int]) -> bool:
        """Take in ``tokens``, the same list with more at its end; False: nothing is predicted."""
        length, predicted = len(tokens), self._next
        if length != self._num_followed:
            if predicted:
                for place in range(self._num_followed, length):
                    if tokens[place] != tokens[predicted]:
                        self.rate -= _WEIGHT_OF_NEWEST * self.rate
                        predicted = 0
                        break
                    self.rate += _WEIGHT_OF_NEWEST * (1 - self.rate)
                    predicted += 1
            self._num_followed = length
            self._next = predicted or self._find(tokens)
        return self._next > 0

    def drafts(self, tokens: list[int], count: int) -> tuple[int, ...]:
        """Return ``count`` tokens that may follow ``tokens``. A repetition goes on repeating."""
        following = tokens[self._next : self._next + count]
        times = -(-count // len(following))
        return tuple((following * times)[:count])

    def expected(self, count: int) -> float:
        """Return how many of ``count`` drafts will be accepted, by the latest predictions."""
        rate = self.rate
        return count if rate == 1 else rate * (1 - rate**count) / (1 - rate)

    def _find(self, tokens: list[int]) -> int:
        """Return the place behind the last n-gram ``tokens`` ends in; 0: it is new."""
        if len(tokens) <= _SIZE:
            return 0
        self._index(tokens, len(tokens) - 1)
        a, b, c = tokens[-_SIZE:]
        end = self._table[(c + b * _SECOND + a * _THIRD) & (len(self._table) - 1)]
        return end + 1 if end and tokens[end - 2 : end + 1] == [a, b, c] else 0

    def _index(self, tokens: list[int], stop: int) -> None:
        """Take in the n-grams that end before token ``stop``."""
        slots = len(self._table)
        if slots < min(2 * stop, _MOST_SLOTS):
            slots = min(max(1 << (4 * stop).bit_length(), _LEAST_SLOTS), _MOST_SLOTS)
            self._table = array("i", bytes(4 * slots))
            self._num_indexed = 0
        table, mask = self._table, slots - 1
        first, self._num_indexed = self._num_indexed, stop
        if first < _SIZE or stop - first > _FEW_TOKENS:
            self._index_many(tokens, max(first - _SIZE, stop - _MOST_INDEXED_AT_ONCE, 0), stop)
            return
        a, b = tokens[first - 2 : first]
        for end in range(first, stop):
            c = tokens[end]
            table[(c + b * _SECOND + a * _THIRD) & mask] = end
            a, b = b, c

    def _index_many(self, tokens: SequenceOf[int], first: int, stop: int) -> None:
        table = np.frombuffer(self._table, np.int32)
        some = np.array(tokens[first:stop], np.int64)
        keys = some[2:] + some[1:-1] * _SECOND + some[:-2] * _THIRD
        ends = np.arange(first + _SIZE - 1, stop, dtype=np.int32)
        table[keys & (len(table) - 1)] = ends  # of equal keys the last stays


class Drafter:
    """Decides which sequences of a step get drafts."""

    def __init__(self) -> None:
        self._times = _StepTimes()
        self._comparisons: dict[int, _Comparison] = {}
        """Among many rows, by the power of two of their number."""
        self._pause = 0
        """Steps that have no drafts, because one with drafts found no memory."""

    def is_open(self, num_rows: int) -> bool:
        """Whether steps of ``num_rows`` decoding sequences may have drafts."""
        if num_rows > MOST_ROWS or self._pause:
            return False
        return num_rows <= _FEW_ROWS or self._comparison(num_rows).has_drafts

    def pause(self) -> None:
        """Make no drafts for a while."""
        self._pause = _FORGOTTEN_AFTER

    def waiting(self, decoding: Collection[Sequence]) -> set[Sequence]:
        """Return which of ``decoding`` are not computed before their last token is known.

        Where others are computed meanwhile, that costs one a step, and so a token.
        """
        if not any(sequence.num_unseen_tokens for sequence in decoding):
            return set()
        chosen = self._choose(decoding, len(decoding), overlapped=True)
        return {sequence for sequence in chosen if sequence.num_unseen_tokens}

    def propose(
        self, rows: SequenceOf[ScheduledSequence], *, overlapped: bool
    ) -> dict[int, tuple[int, ...]]:
        """Return drafts by the place of their sequence in ``rows``, which decode.

        ``overlapped``: other sequences are computed while those with drafts wait for their tokens.
        """
        places = {
            scheduled.sequence: place
            for place, scheduled in enumerate(rows)
            if not scheduled.sequence.num_unseen_tokens
        }
        chosen = self._choose(places, len(rows), overlapped=overlapped)
        return {
            places[sequence]: sequence.lookup.drafts(sequence.tokens, count)
            for sequence, count in chosen.items()
            if sequence.lookup is not None
        }

    def observe(self, num_rows: int, num_drafts: int, num_tokens: int, seconds: float) -> None:
        """Learn how long a step without prefill took, and how many tokens it gave."""
        self._pause = max(self._pause - 1, 0)
        self._times.observe(num_rows, num_drafts, seconds)
        if _FEW_ROWS < num_rows <= MOST_ROWS:
            self._comparison(num_rows).observe(num_drafts, num_tokens / num_rows, seconds)

    def _comparison(self, num_rows: int) -> "_Comparison":
        return self._comparisons.setdefault(num_rows.bit_length(), _Comparison())

    def _choose(
        self, sequences: Iterable[Sequence], num_rows: int, *, overlapped: bool
    ) -> dict[Sequence, int]:
        """Return how many drafts each of ``sequences`` gets; all or none, where that pays."""
        chosen: dict[Sequence, int] = {}
        gain = 0.0
        for sequence in sequences:
            length = len(sequence.tokens)
            if not sequence.allows_drafts or length == sequence.num_prompt_tokens:
                continue
            lookup = sequence.lookup
            if lookup is None:
                lookup = sequence.lookup = PromptLookup()
            if not lookup.follow(sequence.tokens) or lookup.rate < _ENOUGH_RIGHT:
                continue
            most = _likely(lookup.rate)
            if num_rows <= _FEW_ROWS:
                most = max(most, _FOR_FEW_ROWS)
            count = min(most, sequence.max_length - length - 1)
            if count > 0:
                chosen[sequence] = count
                gain += lookup.expected(count)
        if overlapped and len(chosen) < num_rows:
            gain -= len(chosen)
        pays = bool(chosen) and self._pays(num_rows, sum(chosen.values()), gain)
        return chosen if pays else {}

    def _pays(self, num_rows: int, num_drafts: int, gain: float) -> bool:
        """Whether ``gain`` more tokens are worth the time that ``num_drafts`` take."""
        usual = self._times.seen(num_rows, 0)
        if usual is None:
            return False  # a step without drafts will tell
        longer = self._times.seen(num_rows, num_drafts) or _FACTOR_OF_UNKNOWN * usual
        margin = _MARGIN if num_rows <= _FEW_ROWS else _MARGIN_OF_MANY
        return gain * usual > margin * num_rows * (longer - usual)


def _likely(rate: float) -> int:
    """Return how many drafts are accepted together at least every other time."""
    return MOST_DRAFTS if rate == 1 else min(int(log(0.5) / log(rate)), MOST_DRAFTS)


class _Comparison:
    """Whether drafts pay: by a row's tokens a second over some steps without and some with.

    Among many rows a step with drafts makes those around it longer too, so that no single step
    tells.
    """

    def __init__(self) -> None:
        self.has_drafts = False
        self._rates: list[float] = []
        self._steps = self._idle = 0
        self._tokens = self._seconds = 0.0

    def observe(self, num_drafts: int, tokens_a_row: float, seconds: float) -> None:
        """Take in one step."""
        comparing = len(self._rates) < 2
        if comparing and self.has_drafts and not self._steps and not num_drafts:
            # Nobody copies yet; what was measured without drafts is not kept for ever.
            self._idle += 1
            if self._idle == _KEPT_FOR:
                self._rates, self.has_drafts, self._idle = [], False, 0
            return
        self._idle = 0
        self._steps += 1
        self._tokens += tokens_a_row
        self._seconds += seconds
        if self._steps < (_WINDOW if comparing else _KEPT_FOR):
            return
        if comparing:
            self._rates.append(self._tokens / max(self._seconds, 1e-9))
        if len(self._rates) == 2:
            without, with_drafts = self._rates
            # After a while both are compared again.
            self.has_drafts = comparing and with_drafts > _FASTER * without
            self._rates = self._rates if comparing else []
        else:
            self.has_drafts = True
        self._steps = 0
        self._tokens = self._seconds = 0.0


class _StepTimes:
    """How long steps take, by their exact number of rows and the power of two of their drafts.

    The shortest of the latest counts: what else the machine does makes steps longer only.
    Steps with drafts that were too slow are forgotten after a while, so that some are tried again.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], deque[float]] = {}
        self._newest: dict[tuple[int, int], int] = {}
        self._steps = 0

    def observe(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Take in one step."""
        self._steps += 1
        if num_rows > MOST_ROWS:
            return
        kind = num_rows, num_drafts.bit_length()
        if kind not in self._kept:
            self._kept[kind] = deque(maxlen=_KEPT_OF_A_KIND)
        self._kept[kind].append(seconds)
        self._newest[kind] = self._steps

    def seen(self, num_rows: int, num_drafts: int) -> float | None:
        """Return the seconds of such a step; None: too few were observed."""
        kind = num_rows, num_drafts.bit_length()
        kept = self._kept.get(kind)
        if kept is None or len(kept) < _LEAST_KNOWN:
            return None
        if num_drafts and self._steps - self._newest[kind] > _FORGOTTEN_AFTER:
            kept.clear()
            return None
        return min(kept)
