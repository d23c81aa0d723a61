"""How many threads an operation on CPU is worth.

Threads that share an operation wait for the last of them. Where other work takes a core away, that
is a time slice: hundreds of times what a small operation saves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What a core reads in about 0.1 ms: below it a second one gains nothing even where all are idle.
_WORTH_SHARING = 2**20


@contextmanager
def threads_worth(num_bytes: int) -> Iterator[None]:
    """Within, torch shares operations among threads only where they read enough for that."""
    before = torch.get_num_threads()
    if num_bytes >= _WORTH_SHARING or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
