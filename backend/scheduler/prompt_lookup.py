"""Speculative decoding by prompt lookup: a draft is what followed the same tokens before.

Answers that quote, edit or repeat a text contain their next tokens already, so no draft model is
needed (Saxena, "Prompt Lookup Decoding", 2023). A step verifies all drafts of a row at once.

Laws:
- A draft changes no text: a token is accepted only where it equals the one chosen at its place.
- A sequence has no drafts while fewer than half of them would be accepted. What it would propose
  is compared with the tokens that come, which costs no step.
- Drafts are made only where a step with them was seen to be worth its longer time.
- Memory is bounded: at most ``_MOST_SLOTS`` positions a sequence.
"""

from array import array
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import numpy as np

from backend.scheduler.budget import StepTimeModel
from backend.scheduler.sequence import ScheduledSequence, Sequence

MOST_DRAFTS = 8
"""Of one sequence in one step."""

_SHORTEST, _LONGEST = 2, 4  # n-grams, in tokens
_MULTIPLIERS = (1, 40_503, 126_929, 99_303)
_SALT = 23_459
_LEAST_SLOTS = 1 << 10
_MOST_SLOTS = 1 << 17
_MOST_INDEXED_AT_ONCE = 1 << 15
_FEW_TOKENS = 32

_ENOUGH_ACCEPTED = 0.5
_FIRST_RATE = 0.4
_WEIGHT_OF_NEWEST = 0.3
_MARGIN = 2.0
"""So much more than its time costs must a step with drafts gain: both are guesses."""
_LOOKUPS_A_STEP = 8
"""A sequence of a larger batch is looked at every few tokens, until its drafts are right."""
_STEPS_OFF = (32, 512)
"""How long steps of a size have no drafts: at first, and at most."""
_TRIALS = 3
"""Steps with drafts that are slow before there are none, and again after each pause."""
_NO_PAUSE = (0, _STEPS_OFF[0], _TRIALS)


class PromptLookup:
    """The n-grams of one sequence, and how many of its drafts were accepted lately.

    The table leads from the hash of an n-gram to where it ended last. A newer n-gram of the same
    slot takes it over; a look-up compares the tokens.
    """

    __slots__ = ("_drafts", "_drafts_at", "_num_indexed", "_rate", "_table", "_untried")

    def __init__(self) -> None:
        self._table = array("i")
        self._num_indexed = 0
        self._drafts: tuple[int, ...] = ()
        self._drafts_at = 0
        self._untried: tuple[int, tuple[int, ...]] | None = None
        """Drafts that no step verified yet, and where they would stand."""
        self._rate = _FIRST_RATE

    @property
    def is_copying(self) -> bool:
        """Whether most of the latest drafts were right."""
        return self._rate >= _ENOUGH_ACCEPTED

    def propose(self, tokens: list[int]) -> tuple[int, ...]:
        """Return what may follow ``tokens``, the same list at each call with more at its end.

        That is what followed the longest n-gram of 2 to 4 tokens that ``tokens`` ends in, where it
        occurred last. A repetition goes on repeating. Empty: there is none, or it is not worth it.
        """
        length = len(tokens)
        if length <= _LONGEST:
            return ()
        if length != self._drafts_at:
            self._drafts_at = length
            self._index(tokens, length - 1)
            self._drafts = self._find(tokens)
            self._try(tokens)
        return self._drafts if self.is_copying else ()

    def expected(self, num_drafts: int) -> float:
        """Return how many of so many drafts will be accepted, by the latest ones."""
        return self._rate * num_drafts

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """Learn what came of drafts."""
        self._rate += _WEIGHT_OF_NEWEST * (num_accepted / num_drafts - self._rate)
        self._untried = None

    def _try(self, tokens: list[int]) -> None:
        """Compare drafts that no step verified with the tokens that came instead."""
        if self._untried is not None:
            start, drafts = self._untried
            known = tokens[start : start + len(drafts)]
            num_right = 0
            while num_right < len(known) and known[num_right] == drafts[num_right]:
                num_right += 1
            if num_right < len(known) or len(known) == len(drafts):
                self.verified(len(drafts), num_right)
        if self._untried is None and self._drafts:
            self._untried = len(tokens), self._drafts

    def _find(self, tokens: list[int]) -> tuple[int, ...]:
        table, mask = self._table, len(self._table) - 1
        last = len(tokens) - 1
        found = key = 0
        for size in range(1, _LONGEST + 1):
            key += tokens[last - size + 1] * _MULTIPLIERS[size - 1]
            if size < _SHORTEST:
                continue
            end = table[(key + size * _SALT) & mask]
            if end and tokens[end - size + 1 : end + 1] == tokens[-size:]:
                found = end
        if not found:
            return ()
        following = tokens[found + 1 : found + 1 + MOST_DRAFTS]
        times = -(-MOST_DRAFTS // len(following))
        return tuple((following * times)[:MOST_DRAFTS])

    def _index(self, tokens: list[int], stop: int) -> None:
        """Take in the n-grams that end before token ``stop``."""
        slots = len(self._table)
        if slots < min(4 * stop, _MOST_SLOTS):
            slots = min(max(1 << (8 * stop).bit_length(), _LEAST_SLOTS), _MOST_SLOTS)
            self._table = array("i", bytes(4 * slots))
            self._num_indexed = 0
        table, mask = self._table, slots - 1
        first, self._num_indexed = self._num_indexed, stop
        if first == 0 or stop - first > _FEW_TOKENS:
            self._index_many(tokens, max(first - _LONGEST, stop - _MOST_INDEXED_AT_ONCE, 0), stop)
            return
        _, second, third, fourth = _MULTIPLIERS
        a, b, c = tokens[first - 3 : first]
        for end in range(first, stop):
            d = tokens[end]
            key = d + c * second
            table[(key + 2 * _SALT) & mask] = end
            key += b * third
            table[(key + 3 * _SALT) & mask] = end
            key += a * fourth
            table[(key + 4 * _SALT) & mask] = end
            a, b, c = b, c, d

    def _index_many(self, tokens: SequenceOf[int], first: int, stop: int) -> None:
        table = np.frombuffer(self._table, np.int32)
        some = np.array(tokens[first:stop], np.int64)
        keys = some
        for size in range(2, min(_LONGEST, len(some)) + 1):
            keys = keys[1:] + some[: len(some) - size + 1] * _MULTIPLIERS[size - 1]
            ends = np.arange(first + size - 1, stop, dtype=np.int32)
            table[(keys + size * _SALT) & (len(table) - 1)] = ends  # of equal keys the last stays


class Drafter:
    """Decides which sequences of a step get drafts.

    Steps are told apart by powers of two of their rows and drafts. A step with drafts pays if its
    tokens come faster than those of a step without, by the times that were seen of both.
    """

    def __init__(self) -> None:
        self._times = StepTimeModel()
        self._steps = 0
        self._pauses: dict[int, tuple[int, int, int]] = {}
        """By size of a step: until when it has no drafts, how long the next time, trials left."""

    def is_open(self, num_rows: int) -> bool:
        """Whether steps of ``num_rows`` decoding sequences may have drafts at present."""
        return self._steps >= self._pauses.get(num_rows.bit_length(), _NO_PAUSE)[0]

    def waiting(self, decoding: Collection[Sequence]) -> set[Sequence]:
        """Return which of ``decoding`` are not computed before their last token is known.

        Where others are computed meanwhile, that costs one a step, and so a token.
        """
        waiting: set[Sequence] = set()
        every = max(len(decoding) // _LOOKUPS_A_STEP, 1)
        for sequence in decoding:
            if not sequence.num_unseen_tokens or _skips(sequence, every):
                continue
            drafts, lookup = self._drafts(sequence), sequence.lookup
            if lookup is not None and lookup.expected(len(drafts)) > (len(decoding) > 1):
                waiting.add(sequence)
        return waiting

    def propose(
        self, rows: SequenceOf[ScheduledSequence], *, overlapped: bool
    ) -> dict[int, tuple[int, ...]]:
        """Return drafts by the place of their sequence in ``rows``, which decode.

        ``overlapped``: other sequences are computed while those with drafts wait for their tokens.
        """
        proposed: dict[int, tuple[int, ...]] = {}
        gain = 0.0
        total = 0
        every = max(len(rows) // _LOOKUPS_A_STEP, 1)
        for place, scheduled in enumerate(rows):
            sequence = scheduled.sequence
            if sequence.num_unseen_tokens or _skips(sequence, every):
                continue
            drafts = self._drafts(sequence)
            if not drafts:
                continue
            proposed[place] = drafts
            total += len(drafts)
            if sequence.lookup is not None:
                gain += sequence.lookup.expected(len(drafts))
        if not proposed:
            return proposed
        if overlapped and len(proposed) < len(rows):
            gain -= len(proposed)
        return proposed if self._pays(len(rows), total, gain) else {}

    def verified(self, sequence: Sequence, num_drafts: int, num_accepted: int) -> None:
        """Learn how many drafts of ``sequence`` were accepted."""
        if sequence.lookup is not None:
            sequence.lookup.verified(num_drafts, num_accepted)

    def observe(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Learn how long a step without prefill took."""
        self._steps += 1
        self._times.observe(num_rows, num_drafts, seconds)

    def _drafts(self, sequence: Sequence) -> tuple[int, ...]:
        tokens, lookup = sequence.tokens, sequence.lookup
        length = len(tokens)
        if not sequence.allows_drafts or length == sequence.num_prompt_tokens:
            return ()
        if lookup is None:
            lookup = sequence.lookup = PromptLookup()
        return lookup.propose(tokens)[: sequence.max_length - length - 1]

    def _pays(self, num_rows: int, num_drafts: int, gain: float) -> bool:
        """Whether ``gain`` more tokens are worth the time that ``num_drafts`` take."""
        usual = self._times.seen(num_rows, 0)
        if usual is None:
            return False  # a step without drafts will tell
        longer = self._times.seen(num_rows, num_drafts)
        if longer is None:
            return gain > 0  # only a step with drafts can tell
        size = num_rows.bit_length()
        if gain * usual > _MARGIN * num_rows * (longer - usual):
            self._pauses.pop(size, None)
            return True
        # Times change, and the first steps of a kind are slow, so some steps try again.
        until, pause, trials = self._pauses.get(size, _NO_PAUSE)
        if trials and gain > 0:
            self._pauses[size] = until, pause, trials - 1
            return True
        self._pauses[size] = self._steps + pause, min(2 * pause, _STEPS_OFF[1]), _TRIALS
        return False


def _skips(sequence: Sequence, every: int) -> bool:
    """Whether ``sequence`` is not looked at now: it is ``every`` few tokens, or while it copies."""
    lookup = sequence.lookup
    if lookup is not None and lookup.is_copying:
        return False
    return (len(sequence.tokens) + sequence.sequence_id) % every != 0
