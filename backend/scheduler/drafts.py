"""Speculative decoding: which sequences of a step have drafts, from where, and where they pay.

A step verifies all drafts of a row at once. They come from prompt lookup or from a draft model: for
each sequence from the one that was right more often lately.

Laws:
- A draft changes no text: a token is accepted only where it equals the one chosen at its place.
- A sequence has no drafts while fewer than half of the tokens that it predicts are right. It
  predicts them with and without drafts, so that finding out costs no step.
- Drafts are made only where the expected tokens are worth the longer step, by measured times.
- Batches larger than ``MOST_ROWS`` cost nothing.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from enum import StrEnum
from math import log
from typing import NamedTuple

from backend.scheduler.draft_model import PENDING, DraftBatch, DraftModel
from backend.scheduler.prompt_lookup import PromptLookup, expected
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
_MARGIN_OF_GUESSES = 1.5
"""Of a draft model: a rate that is high lately is luck in part."""
_FACTOR_OF_UNKNOWN = 3.0
"""A step with drafts is taken to be so much longer until some were measured."""
_REFRESHED_AFTER = 64
"""After so many steps with guesses one is taken without: the machine may be faster by now."""
_LEAST_KNOWN = 3
_KEPT_OF_A_KIND = 8
_FORGOTTEN_AFTER = 512  # steps
_WINDOW, _KEPT_FOR = 24, 1024
"""Steps without and with drafts that are compared among many rows, and how long that holds."""
_FASTER = 1.03


class DraftSource(StrEnum):
    """Where drafts come from, as metrics call it."""

    PROMPT_LOOKUP = "prompt_lookup"
    DRAFT_MODEL = "draft_model"


class _Choice(NamedTuple):
    source: DraftSource
    num_drafts: int
    gain: float
    """How many of them will be accepted, by the latest."""


class Drafter:
    """Decides which sequences of a step get drafts."""

    def __init__(self, model: DraftModel | None = None, *, lookup: bool = True) -> None:
        """Take drafts from ``model``, and by ``lookup`` from the text itself."""
        self.lookups: dict[Sequence, PromptLookup] = {}
        """Where the drafts of sequences come from that had some."""
        self.model = model
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """Verifications, proposed and accepted tokens by source, named as metrics are."""
        self._looks_up = lookup
        self._sources: dict[Sequence, DraftSource] = {}
        """Where the latest drafts came from."""
        self._times = _StepTimes()
        self._comparisons: dict[int, _Comparison] = {}
        """Among many rows, by the power of two of their number."""
        self._pause = 0
        """Steps that have no drafts, because one with drafts found no memory."""
        self._catch_up: dict[Sequence, int] = {}
        """Known tokens that the draft model computes before the step that is being planned."""

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
        self._sources.pop(sequence, None)
        if self.model is not None:
            self.model.forget(sequence)

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

        Those of the draft model are PENDING: ``batch`` says what it computes first.
        ``overlapped``: other sequences are computed while those with drafts wait for their tokens.
        """
        places = {
            scheduled.sequence: place
            for place, scheduled in enumerate(rows)
            if not scheduled.sequence.num_unseen_tokens
        }
        chosen = self._choose(places, len(rows), overlapped=overlapped)
        self._sources |= {sequence: choice.source for sequence, choice in chosen.items()}
        return {
            places[sequence]: (PENDING,) * count
            if source is DraftSource.DRAFT_MODEL
            else self.lookups[sequence].drafts(sequence.tokens, count)
            for sequence, (source, count, _) in chosen.items()
        }

    def catches_up(self, sequence: Sequence, spare: int) -> int:
        """Return how many of ``spare`` tokens the draft model spends before it can guess.

        The last known token costs nothing. Where the others take all of ``spare``, it computes so
        many of them with the next ``batch``, and guesses later.
        """
        lag = 0 if self.model is None else self.model.lag(sequence) - 1
        if lag and lag >= spare > 0:
            self._catch_up[sequence] = spare
        return lag

    def batch(self, step: SequenceOf[ScheduledSequence]) -> DraftBatch | None:
        """Return what the draft model computes before ``step``, None if that is nothing."""
        catch_up, self._catch_up = self._catch_up, {}
        return None if self.model is None else self.model.batch(step, catch_up)

    def verified(self, sequence: Sequence, start: int, drafts: tuple[int, ...], right: int) -> None:
        """Learn that the first ``right`` of ``drafts`` behind token ``start`` were accepted."""
        source = self._sources[sequence]
        labels = (source.value,)
        self.counts["draft_verifications", labels] += 1
        self.counts["drafts_proposed", labels] += len(drafts)
        self.counts["drafts_accepted", labels] += right
        if source is DraftSource.DRAFT_MODEL and self.model is not None:
            self.model.verified(sequence, start, len(drafts), right)

    def observe(
        self,
        num_rows: int,
        num_drafts: int,
        num_tokens: int,
        seconds: float,
        draft_seconds: float = 0.0,
    ) -> None:
        """Learn how long a step without prefill took, and how many tokens it gave.

        The draft model took ``draft_seconds`` of its ``seconds``.
        """
        self._pause = max(self._pause - 1, 0)
        self._times.observe(num_rows, num_drafts, seconds - draft_seconds)
        if _FEW_ROWS < num_rows <= MOST_ROWS:
            self._comparison(num_rows).observe(num_drafts, num_tokens / num_rows, seconds)

    def _comparison(self, num_rows: int) -> "_Comparison":
        return self._comparisons.setdefault(num_rows.bit_length(), _Comparison())

    def _choose(
        self, sequences: Iterable[Sequence], num_rows: int, *, overlapped: bool
    ) -> dict[Sequence, _Choice]:
        """Return how many drafts each of ``sequences`` gets; all or none, where that pays."""
        chosen: dict[Sequence, _Choice] = {}
        copied: dict[Sequence, _Choice] = {}
        for sequence in sequences:
            length = len(sequence.tokens)
            if not sequence.allows_drafts or length == sequence.num_prompt_tokens:
                continue
            lookup = self._look_up(sequence, num_rows)
            if lookup is not None:
                copied[sequence] = chosen[sequence] = lookup
            rate = 0.0 if self.model is None else self.model.rate(sequence)
            if rate and (lookup is None or rate > self.lookups[sequence].rate):
                guess = self._guess(sequence, rate, num_rows)
                if guess is not None:
                    chosen[sequence] = guess
        if self._pays(num_rows, chosen, overlapped=overlapped):
            return chosen
        is_mixed = len(copied) > 0 and copied != chosen
        return copied if is_mixed and self._pays(num_rows, copied, overlapped=overlapped) else {}

    def _look_up(self, sequence: Sequence, num_rows: int) -> _Choice | None:
        if not self._looks_up:
            return None
        lookup = self.lookups.get(sequence)
        if lookup is None:
            lookup = self.lookups[sequence] = PromptLookup()
        if not lookup.follow(sequence.tokens) or lookup.rate < _ENOUGH_RIGHT:
            return None
        most = _likely(lookup.rate)
        if num_rows <= _FEW_ROWS:
            most = max(most, _FOR_FEW_ROWS)
        count = min(most, sequence.max_length - len(sequence.tokens) - 1)
        if count <= 0:
            return None
        return _Choice(DraftSource.PROMPT_LOOKUP, count, expected(lookup.rate, count))

    def _guess(self, sequence: Sequence, rate: float, num_rows: int) -> _Choice | None:
        """Return as many guesses of the draft model as give most tokens a second."""
        model, usual = self.model, self._times.seen(num_rows, 0)
        if model is None or not usual or self._times.age(num_rows) > _REFRESHED_AFTER:
            return None
        each = model.pass_seconds(num_rows)
        best, most_per_second = None, 1 / usual
        for count in range(1, model.room(sequence) + 1):
            gain = expected(rate, count)
            # Nobody names a draft model that does not pay: what was not measured is tried.
            verifying = self._times.seen(num_rows, num_rows * count) or usual
            per_second = (1 + gain) / max(verifying + count * each, 1e-9)
            if per_second > most_per_second:
                most_per_second = per_second
                best = _Choice(DraftSource.DRAFT_MODEL, count, gain)
        return best

    def _pays(self, num_rows: int, chosen: dict[Sequence, _Choice], *, overlapped: bool) -> bool:
        """Whether the tokens that ``chosen`` gain are worth the time that they take."""
        usual = self._times.seen(num_rows, 0)
        if usual is None or not chosen:
            return False  # a step without drafts will tell
        gain = sum(choice.gain for choice in chosen.values())
        if overlapped and len(chosen) < num_rows:
            gain -= len(chosen)
        num_drafts = sum(choice.num_drafts for choice in chosen.values())
        guesses = [
            each.num_drafts for each in chosen.values() if each.source is DraftSource.DRAFT_MODEL
        ]
        longer = self._times.seen(num_rows, num_drafts)
        if longer is None:
            longer = usual if guesses else _FACTOR_OF_UNKNOWN * usual
        if guesses and self.model is not None:
            longer += max(guesses) * self.model.pass_seconds(len(guesses))
        margin = _MARGIN_OF_GUESSES if guesses else _MARGIN
        if num_rows > _FEW_ROWS:
            margin = _MARGIN_OF_MANY
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

    def age(self, num_rows: int) -> int:
        """Return how many steps ago one without drafts was observed."""
        return self._steps - self._newest.get((num_rows, 0), 0)

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
