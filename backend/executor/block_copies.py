"""Copies between the KV pool and slots of host memory, for ``transfer``.

A slot is pinned where the pool is on a GPU, and has all that belongs to a block, as bytes.
"""

from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import torch
from torch import Tensor

from backend.executor.kv_cache import KVCache
from backend.scheduler.tiers import Source

BUFFER_BYTES = 64 * 2**20
"""So much is copied at a time."""

NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class Filling:
    """``block`` is filled from ``slot``, which is free after that if it ``is_spare``."""

    block: int
    slot: int
    source: Source
    is_spare: bool


class Copier(Protocol):
    """Copies between the pool and the slots of host memory."""

    def save(self, blocks: list[int], slots: list[int]) -> "torch.cuda.Event | None":
        """Copy ``blocks`` to ``slots``; the slots have it after the event, or at once.

        Raises one of ``NO_MEMORY``, and nothing writes the slots then.
        """

    def fill(self, fillings: list[Filling]) -> None:
        """Begin to copy slots to blocks."""

    def filled(self) -> list[tuple[list[Filling], float | None]]:
        """Return what is done, with the seconds that it took; None: there was no memory for it."""

    def wait(self, seconds: float) -> bool:
        """Wait until more is done; False: nothing is on its way."""

    def forget(self) -> list[Filling]:
        """Fill nothing that was not reported yet, and return it."""


class HostCopier:
    """Where the pool is in host memory too."""

    def __init__(self, cache: KVCache, slots: Tensor) -> None:
        """``slots`` is uint8 [slots, block bytes]."""
        self._cache, self._slots = cache, slots
        self._rows = max(BUFFER_BYTES // slots.shape[1], 1)
        self._filled: list[tuple[list[Filling], float | None]] = []

    def save(self, blocks: list[int], slots: list[int]) -> None:
        """Copy at once."""
        for start in range(0, len(blocks), self._rows):
            part = slice(start, start + self._rows)
            rows = torch.empty(len(blocks[part]), self._slots.shape[1], dtype=torch.uint8)
            self._cache.copy_out(torch.tensor(blocks[part]), rows)
            self._slots[torch.tensor(slots[part])] = rows

    def fill(self, fillings: list[Filling]) -> None:
        """Copy at once."""
        for start in range(0, len(fillings), self._rows):
            part = fillings[start : start + self._rows]
            began = monotonic()
            try:
                rows = self._slots[torch.tensor([each.slot for each in part])]
                self._cache.copy_in(torch.tensor([each.block for each in part]), rows)
            except NO_MEMORY:
                self._filled.append((part, None))
            else:
                self._filled.append((part, monotonic() - began))

    def filled(self) -> list[tuple[list[Filling], float | None]]:
        filled, self._filled = self._filled, []
        return filled

    def wait(self, seconds: float) -> bool:
        del seconds
        return bool(self._filled)

    def forget(self) -> list[Filling]:
        return [each for part, _ in self.filled() for each in part]


class CudaCopier:
    """Pinned slots, a stream for copies beside the one that computes, and two buffers each way.

    Saves are gathered into a buffer in the order of the steps, which costs them a copy within the
    device, and go from there to the host meanwhile. Loads come into a buffer, and once they are
    there they are scattered in the order of the steps. Not measured on a GPU yet.
    """

    def __init__(self, cache: KVCache, slots: Tensor, device: torch.device) -> None:
        """``slots`` is pinned uint8 [slots, block bytes]."""
        self._cache, self._slots, self._device = cache, slots, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        rows = max(BUFFER_BYTES // 4 // slots.shape[1], 1)
        buffers = torch.empty(4, rows, slots.shape[1], dtype=torch.uint8, device=device)
        self._rows = rows
        self._out, self._in = list(buffers[:2]), list(buffers[2:])
        self._emptied: list[torch.cuda.Event | None] = [None, None]
        self._scattered: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._queued: deque[Filling] = deque()
        self._coming: deque[tuple[list[Filling], int, torch.cuda.Event, torch.cuda.Event]] = deque()

    def save(self, blocks: list[int], slots: list[int]) -> torch.cuda.Event | None:
        try:
            return self._save(blocks, slots)
        except NO_MEMORY:
            self._stream.synchronize()  # some of the slots may be written still
            raise

    def _save(self, blocks: list[int], slots: list[int]) -> torch.cuda.Event | None:
        computing = torch.cuda.current_stream(self._device)
        copied: torch.cuda.Event | None = None
        for start in range(0, len(blocks), self._rows):
            part = blocks[start : start + self._rows]
            self._turn = 1 - self._turn
            rows = self._out[self._turn][: len(part)]
            if (emptied := self._emptied[self._turn]) is not None:
                computing.wait_event(emptied)
            self._cache.copy_out(self._on_device(part), rows)
            self._stream.wait_event(computing.record_event())
            with torch.cuda.stream(self._stream):
                for row, slot in zip(rows, slots[start:], strict=False):
                    self._slots[slot].copy_(row, non_blocking=True)
                copied = self._emptied[self._turn] = self._stream.record_event()
        return copied

    def fill(self, fillings: list[Filling]) -> None:
        self._queued += fillings
        self._begin()

    def filled(self) -> list[tuple[list[Filling], float | None]]:
        done: list[tuple[list[Filling], float | None]] = []
        computing = torch.cuda.current_stream(self._device)
        while self._coming and self._coming[0][3].query():  # type: ignore[no-untyped-call]
            part, buffer, began, ended = self._coming.popleft()
            rows = self._in[buffer][: len(part)]
            try:
                self._cache.copy_in(self._on_device([each.block for each in part]), rows)
            except NO_MEMORY:
                done.append((part, None))
            else:
                done.append((part, began.elapsed_time(ended) / 1000))
            self._scattered[buffer] = computing.record_event()
        self._begin()
        return done

    def wait(self, seconds: float) -> bool:
        del seconds  # copies take milliseconds, or the device is lost
        if self._coming:
            self._coming[0][3].synchronize()
        return bool(self._coming)

    def forget(self) -> list[Filling]:
        self._stream.synchronize()
        forgotten = [each for part, *_ in self._coming for each in part]
        forgotten += self._queued
        self._queued.clear()
        self._coming.clear()
        return forgotten

    def _begin(self) -> None:
        """Let what is queued come into buffers that are free."""
        while self._queued and len(self._coming) < len(self._in):
            taken = {buffer for _, buffer, _, _ in self._coming}
            buffer = 0 if 0 not in taken else 1
            # Blocks from disk come one by one; while buffers are busy, they become many.
            part = [self._queued.popleft() for _ in range(min(self._rows, len(self._queued)))]
            if (scattered := self._scattered[buffer]) is not None:
                self._stream.wait_event(scattered)
            began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self._stream):
                began.record(self._stream)
                for row, each in zip(self._in[buffer], part, strict=False):
                    row.copy_(self._slots[each.slot], non_blocking=True)
                ended.record(self._stream)
            self._coming.append((part, buffer, began, ended))

    def _on_device(self, blocks: list[int]) -> Tensor:
        return torch.tensor(blocks).pin_memory().to(self._device, non_blocking=True)
