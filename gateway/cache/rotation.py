"""Whose turn it is among the answers kept for one sampled prompt.

One owner; bounded: of more prompts than it can hold, the one asked longest ago begins anew.
"""


class Rotation:
    """Counts the requests of each key, for at most ``most`` keys."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._draws: dict[bytes, int] = {}

    def draw(self, key: bytes) -> int:
        """Return 0, 1, 2, ... for one request of the key after the other."""
        draw = self._draws.pop(key, 0)
        self._draws[key] = draw + 1
        if len(self._draws) > self._most:
            del self._draws[next(iter(self._draws))]
        return draw
