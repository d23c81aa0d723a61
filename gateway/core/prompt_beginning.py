"""The beginning of a very long prompt: what is printed of an image of megabytes holds up the loop.

Law: the JSON of what is left begins with the same bytes as the JSON of the whole, up to the bound.
"""

from collections.abc import Sequence
from typing import Any


def cut(body: dict[str, Any], fields: Sequence[str], most: int = 2**19) -> dict[str, Any]:
    """Return the body with no more of ``fields``, in this order, than ``most`` bytes come from.

    What is nested too deeply for it is left as it is.
    """
    cutter = _Cutter(most)
    try:
        return {**body, **{name: cutter.cut(body[name]) for name in fields if name in body}}
    except RecursionError:
        return body


class _Cutter:
    """Counts no more bytes than JSON has, but for what has to be escaped."""

    def __init__(self, most: int) -> None:
        self._left = most

    def cut(self, value: Any) -> Any:
        match value:
            case str():
                value = value[: max(self._left, 0)]
                self._left -= len(value) + 2
                return value
            case [int(), *_]:
                value = value[: max(self._left, 0) // 2 + 1]
                self._left -= 2 * len(value)
                return value
            case list():
                return [self.cut(each) for each in self._while_any(value)]
            case dict():
                return {name: self._named(name, value[name]) for name in self._while_any(value)}
            case _:
                self._left -= 1
                return value

    def _named(self, name: str, value: Any) -> Any:
        self._left -= len(name) + 3
        return self.cut(value)

    def _while_any(self, values: Any) -> Any:
        for value in values:
            if self._left <= 0:
                return
            self._left -= 1
            yield value
