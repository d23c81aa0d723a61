"""Memory that the ranks of a host share, for their sums and gathers on the CPU."""

import mmap
import os
import select
import sys
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

SLOT_BYTES = 2**21
"""What a rank can hand over at a time; more goes in several exchanges."""
COLLECTIVE_SECONDS = 600.0
"""For a rank to join, and for one collective operation: loading on one rank may be that slow."""


class Shared(NamedTuple):
    """Descriptors that all ranks of a host have: of memory, and of two events for each rank."""

    memory: int
    events: tuple[tuple[int, int], ...]

    @classmethod
    def make(cls, size: int) -> "Shared | None":
        """Make them for ``size`` ranks, to be inherited; None: this system has none (Linux has)."""
        if sys.platform != "linux":
            return None
        memory = os.memfd_create("ranks")
        os.ftruncate(memory, 2 * size * SLOT_BYTES)
        new = partial(os.eventfd, 0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        return cls(memory, tuple((new(), new()) for _ in range(size)))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return self.memory, *chain.from_iterable(self.events)


class SharedMemory:
    """Lets the ranks of a host read what each of them wrote: a tenth of the time that gloo takes.

    Every exchange has a turn, of which there are two. A rank writes to its slot of the turn, rings
    all others, and waits for as many rings. It writes to that slot again two exchanges later, and
    by then all have rung for the one between, so none reads it any more. Each turn has bells of its
    own, since a quick rank may ring for the next before a slow one has rung for this.
    """

    def __init__(self, rank: int, shared: Shared) -> None:
        self._torch: Any = import_module("torch")  # which takes seconds; descriptors come first
        self.rank, self.size = rank, len(shared.events)
        memory = mmap.mmap(shared.memory, 2 * self.size * SLOT_BYTES)
        self._slots = self._torch.frombuffer(memory, dtype=self._torch.uint8).view(
            2, self.size, SLOT_BYTES
        )
        self._bells = shared.events
        self._pollers = [select.poll(), select.poll()]
        for poller, bell in zip(self._pollers, shared.events[rank], strict=True):
            poller.register(bell, select.POLLIN)
        self._turn = 0

    def all_reduce(self, part: "Tensor") -> "Tensor":
        """Make ``part``, which is contiguous, the sum over ranks. All add in one order."""
        chunks: Any = part.view(-1)
        for chunk in chunks.split(SLOT_BYTES // part.itemsize):
            self._torch.sum(self._exchange(chunk), 0, out=chunk)
        return part

    def all_gather(self, part: "Tensor") -> "Tensor":
        """Return [rows, size * columns] of the ranks' contiguous [rows, columns]."""
        rows, columns = part.shape
        width = max(min(columns, SLOT_BYTES // part.itemsize), 1)
        height = SLOT_BYTES // (width * part.itemsize)
        gathered = part.new_empty(rows, self.size, columns)
        for row in range(0, rows, height):
            for column in range(0, columns, width):
                piece = part[row : row + height, column : column + width].contiguous()
                out = gathered[row : row + height, :, column : column + width]
                out.copy_(self._exchange(piece).transpose(0, 1))
        joined: Tensor = gathered.view(rows, self.size * columns)
        return joined

    def _exchange(self, part: "Tensor") -> "Tensor":
        """Return the ``part`` of each rank [size, *part], valid until the call after the next.

        It has at most ``SLOT_BYTES``. Raises TimeoutError.
        """
        self._turn = turn = 1 - self._turn
        written = self._slots[turn, :, : part.nbytes].view(part.dtype)
        slots: Tensor = written.view(self.size, *part.shape)
        slots[self.rank].copy_(part)
        for rank, bells in enumerate(self._bells):
            if rank != self.rank:
                os.eventfd_write(bells[turn], 1)
        for _ in range(self.size - 1):
            if not self._pollers[turn].poll(COLLECTIVE_SECONDS * 1000):
                raise TimeoutError(f"a rank did not answer within {COLLECTIVE_SECONDS:g} s")
            os.eventfd_read(self._bells[self.rank][turn])
        return slots
