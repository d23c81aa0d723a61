"""Which inputs are embedded together: what waits, and the next forward pass.

Laws:
- Requests take turns, one input each, so that a request of two thousand inputs does not hold up one
  of a single input: whoever waits gets a place in one of the next passes.
- A pass costs its longest input times their number, for the shorter ones are padded; a request's
  inputs are taken longest first, so that what meets in a pass is of like length.
- What waits is bounded in tokens. A request is taken whole or not at all.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter


class QueueBoundError(Exception):
    """So much waits that this request was not taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Input number ``position`` of a request."""

    request_id: int
    position: int
    num_tokens: int


class EmbeddingQueue:
    """Inputs of many requests in the order in which they are computed; not thread-safe."""

    def __init__(self, *, max_tokens_per_pass: int, max_waiting_tokens: int) -> None:
        """Bound passes, padding included, and what waits; a pass of one input may cost more."""
        self._max_tokens_per_pass = max_tokens_per_pass
        self._max_waiting_tokens = max_waiting_tokens
        self._requests: OrderedDict[int, deque[Place]] = OrderedDict()
        self.num_waiting_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Inputs that no pass has taken yet."""
        return sum(map(len, self._requests.values()))

    def add(self, request_id: int, lengths: Sequence[int]) -> None:
        """Queue a request's inputs by their lengths in tokens. Raises QueueBoundError.

        A request that is larger than the bound is taken when it is the only one.
        """
        total = sum(lengths)
        if self._requests and self.num_waiting_tokens + total > self._max_waiting_tokens:
            raise QueueBoundError(f"{self.num_waiting_tokens} tokens wait to be embedded")
        longest_first = sorted(enumerate(lengths), key=itemgetter(1), reverse=True)
        self._requests[request_id] = deque(
            Place(request_id, position, length) for position, length in longest_first
        )
        self.num_waiting_tokens += total

    def drop(self, request_id: int) -> None:
        """Take out what is left of a request; one that is not there is nothing to do."""
        for place in self._requests.pop(request_id, ()):
            self.num_waiting_tokens -= place.num_tokens

    def take(self) -> tuple[Place, ...]:
        """Return the inputs of the next pass; empty only when nothing waits."""
        batch: list[Place] = []
        longest = 0
        while self._requests:
            request_id, places = next(iter(self._requests.items()))
            longest = max(longest, places[0].num_tokens)
            if batch and longest * (len(batch) + 1) > self._max_tokens_per_pass:
                break
            batch.append(places.popleft())
            self._requests.move_to_end(request_id)
            if not places:
                del self._requests[request_id]
        self.num_waiting_tokens -= sum(place.num_tokens for place in batch)
        return tuple(batch)
