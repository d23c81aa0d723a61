"""Prompt lookup: a draft is what followed the same tokens before.

Answers that quote, edit or repeat a text contain their next tokens already, so no draft model is
needed (Saxena, "Prompt Lookup Decoding", 2023).

Laws: novel text costs one hash a token; memory is bounded by ``_MOST_SLOTS`` positions a sequence.
"""

from array import array
from collections.abc import Sequence

import numpy as np

_SIZE = 3  # of an n-gram, in tokens
_SECOND, _THIRD = 40_503, 126_929  # multipliers of its hash
_LEAST_SLOTS = 1 << 10
_MOST_SLOTS = 1 << 17
_MOST_INDEXED_AT_ONCE = 1 << 15
_FEW_TOKENS = 32
_FIRST_RATE = 0.66
_WEIGHT_OF_NEWEST = 0.2


def expected(rate: float, count: int) -> float:
    """Return how many of ``count`` drafts are accepted, of which each is right by ``rate``."""
    return count if rate == 1 else rate * (1 - rate**count) / (1 - rate)


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

    def _index_many(self, tokens: Sequence[int], first: int, stop: int) -> None:
        table = np.frombuffer(self._table, np.int32)
        some = np.array(tokens[first:stop], np.int64)
        keys = some[2:] + some[1:-1] * _SECOND + some[:-2] * _THIRD
        ends = np.arange(first + _SIZE - 1, stop, dtype=np.int32)
        table[keys & (len(table) - 1)] = ends  # of equal keys the last stays
