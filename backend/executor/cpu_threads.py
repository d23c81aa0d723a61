"""How many threads an operation on CPU is worth.

Threads that share an operation wait for the last of them. Where other work takes a core away, that
is a time slice: hundreds of times what a small operation saves.
"""

from types import TracebackType

import torch

# What a core reads in about 0.1 ms: below it a second one gains nothing even where all are idle.
_WORTH_SHARING = 2**20


class SingleThreadIfSmall:
    """Within, torch shares operations among threads only where they read enough for that."""

    # A class, because contextlib's generators cost as much as a small operation.
    __slots__ = ("_before",)

    def __init__(self, num_bytes: int) -> None:
        """``num_bytes`` are those of the larger of what operations within read and make between."""
        self._before = torch.get_num_threads() if num_bytes < _WORTH_SHARING else 1

    def __enter__(self) -> None:
        """Take away all threads but one."""
        if self._before > 1:
            torch.set_num_threads(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        if self._before > 1:
            torch.set_num_threads(self._before)
