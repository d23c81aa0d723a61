"""How far long work has come, on stderr."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_PERIOD = 2.0


def told(label: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items; every two seconds say how many are done."""
    began = last = time.monotonic()
    for number, item in enumerate(items):
        now = time.monotonic()
        if now - last >= _PERIOD:
            last = now
            left = (now - began) / max(1, number) * (len(items) - number)
            print(
                f"\r{label}: {number} of {len(items)}, {left:.0f} s left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
        yield item
    if last > began:
        print(
            f"\r{label}: {len(items)} in {time.monotonic() - began:.0f} s" + " " * 20,
            file=sys.stderr,
        )
