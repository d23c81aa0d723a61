"""How other routers choose, written from their descriptions: the peers of the simulation.

Read: SGLang's router (``cache_aware.rs``), NVIDIA Dynamo's "Router Design", AIBrix's "Routing
Algorithms", Mirrokni, Thorup, Zadimoghaddam on consistent hashing with bounded loads (KubeAI's
``PrefixHash``). With their defaults, and in their favour where those fit a trace of blocks badly:

- consistent hashing takes the first two blocks as the key, since all conversations share the first;
- Dynamo and AIBrix know each cache's true capacity, as by the engines' events.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from statistics import fmean, pstdev

from gateway.upstream.pool.routing import (
    Choice,
    Dispatch,
    LeastLoaded,
    Load,
    PrefixIndex,
    Route,
    home_replica,
)


class Knowing(LeastLoaded):
    """What all of them have that remember what was sent where."""

    def __init__(self, capacity: int) -> None:
        self.index = PrefixIndex(capacity=capacity)

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> list[Choice]:
        # Only the first is told.
        name = self.chosen(prefix, loads)
        return [Choice(name, self.index.cached_blocks(name, prefix), Route.PREFIX)]

    def chosen(self, prefix: Sequence[int], loads: Sequence[Load]) -> str:
        raise NotImplementedError

    def begin(self, name: str, prefix: Sequence[int]) -> Dispatch:
        held = self.index.cached_blocks(name, prefix)
        self.index.add(name, prefix)
        return Dispatch(name, prefix, held, len(prefix) - held)

    def forget(self, name: str) -> None:
        self.index.forget(name)


class BoundedHashing(LeastLoaded):
    """The first blocks' place on a ring, or the next with less than 1.25 times the mean load."""

    def __init__(self, *, key_blocks: int = 2, factor: float = 1.25) -> None:
        self._key_blocks = key_blocks
        self._factor = factor

    def order(self, prefix: Sequence[int], loads: Sequence[Load]) -> list[Choice]:
        most = ceil(self._factor * (sum(each.in_flight for each in loads) + 1) / len(loads))
        free = [each for each in loads if each.in_flight < most]
        key = hash(tuple(prefix[: self._key_blocks]))
        return [Choice(home_replica(free or loads, key), 0, Route.PREFIX)]


class Sglang(Knowing):
    """The longest match if it is 30 % of the prompt, else the smallest tree; by load if uneven."""

    ABSOLUTE, RELATIVE, MATCH = 64, 1.5, 0.3

    def chosen(self, prefix: Sequence[int], loads: Sequence[Load]) -> str:
        most = max(each.in_flight for each in loads)
        least = min(loads, key=lambda each: (each.in_flight, each.name))
        if most - least.in_flight > self.ABSOLUTE and most > self.RELATIVE * least.in_flight:
            return least.name
        held = {each.name: self.index.cached_blocks(each.name, prefix) for each in loads}
        best = max(held, key=held.__getitem__)
        if held[best] > self.MATCH * len(prefix):
            return best
        return min(loads, key=lambda each: (self.index.size(each.name), each.name)).name


class Dynamo(Knowing):
    """The least of blocks to prefill, those that wait there among them, and blocks in decoding."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._prefilling = Counter[str]()
        self._active: dict[str, Counter[int]] = {}

    def chosen(self, prefix: Sequence[int], loads: Sequence[Load]) -> str:
        def cost(each: Load) -> tuple[float, str]:
            active = self._active.get(each.name, Counter())
            prefill = len(prefix) - self.index.cached_blocks(each.name, prefix)
            decode = len(active) + sum(block not in active for block in prefix)
            return prefill + self._prefilling[each.name] + decode, each.name

        return min(loads, key=cost).name

    def begin(self, name: str, prefix: Sequence[int]) -> Dispatch:
        sent = super().begin(name, prefix)
        self._prefilling[name] += sent.blocks
        self._active.setdefault(name, Counter()).update(prefix)
        return sent

    def first_token(self, sent: Dispatch) -> None:
        self._prefilling[sent.name] -= sent.blocks

    def end(self, sent: Dispatch) -> None:
        active = self._active[sent.name]
        for block in sent.prefix:
            active[block] -= 1
            if not active[block]:
                del active[block]


class Aibrix(Knowing):
    """The longest match of a load below mean and two deviations; by load where 16 apart."""

    APART, DEVIATIONS = 16, 2.0

    def chosen(self, prefix: Sequence[int], loads: Sequence[Load]) -> str:
        flying = [each.in_flight for each in loads]
        least = min(loads, key=lambda each: (each.in_flight, each.name)).name
        if max(flying) - min(flying) > self.APART:
            return least
        most = fmean(flying) + self.DEVIATIONS * pstdev(flying)
        matches = [
            (-held, each.in_flight, each.name)
            for each in loads
            if each.in_flight <= most and (held := self.index.cached_blocks(each.name, prefix))
        ]
        return min(matches)[2] if matches else least
