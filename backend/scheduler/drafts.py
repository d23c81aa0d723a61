"""Speculative decoding: which sequences of a step have drafts, and where they pay.

A step verifies all drafts of a row at once.

Laws:
- A draft changes no text: a token is accepted only where it equals the one chosen at its place.
- A sequence has no drafts while fewer than half of the tokens that it predicts are right. It
  predicts them with and without drafts, so that finding out costs no step.
- Drafts are made only where the expected tokens are worth the longer step, by measured times.
- Batches larger than ``MOST_ROWS`` cost nothing.
"""

from collections import deque
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from math import log

from backend.scheduler.prompt_lookup import PromptLookup
from backend.scheduler.sequence import ScheduledSequence, Sequence

MOST_DRAFTS = 16
"""One sequence has at most so many in one step."""
MOST_ROWS = 32
"""Steps with more decoding sequences have no drafts: there a draft costs as much as a row."""

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


class Drafter:
    """Decides which sequences of a step get drafts."""

    def __init__(self) -> None:
        self.lookups: dict[Sequence, PromptLookup] = {}
        """Where the drafts of sequences come from that had some."""
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

    def forget(self, sequence: Sequence) -> None:
        """Let go of what was learned of ``sequence``, which is finished."""
        self.lookups.pop(sequence, None)

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
            places[sequence]: self.lookups[sequence].drafts(sequence.tokens, count)
            for sequence, count in chosen.items()
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
            lookup = self.lookups.get(sequence)
            if lookup is None:
                lookup = self.lookups[sequence] = PromptLookup()
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
