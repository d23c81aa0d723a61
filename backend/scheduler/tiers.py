"""Blocks beyond the pool: which sources hold them, what is saved and loaded, and what must go.

A block that leaves the pool goes to host memory, and from there to disk. It comes back where a
prompt's prefix matches. All of that is decided here and done by ``executor.transfer``. Decisions
are values that name blocks by number and content by hash. They are carried out whatever becomes of
the step behind them, so they are no part of ``batch.StepBatch``.

Laws:
- In one step drops come first, then saves, then loads, then the rows are computed.
- What is being saved or loaded is not dropped to make room.
- A load that costs more time than computing the same tokens is not made. Rates are measured by who
  copies and computes; there is no clock here.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from backend.scheduler.block_pool import BLOCK_SIZE

_DECAY = 0.9
_LEAST_PREFILL_TOKENS = 32
_TRIAL_BLOCKS = 8
_REFUSED_BEFORE_TRIAL = 32
"""So many loads are refused before one is made to measure again."""


class Source(StrEnum):
    """Where a block may be, beside the pool; the first that has it is read."""

    HOST = "host"
    DISK = "disk"


class Save(NamedTuple):
    """The content of the pool's ``block`` goes to ``target`` before anybody writes the block."""

    block: int
    digest: bytes
    target: Source


class Load(NamedTuple):
    """``source`` fills the pool's ``block``; nobody reads the block before that is done."""

    block: int
    digest: bytes
    source: Source


class Drop(NamedTuple):
    """``source`` no longer holds ``digest``; it was handed on to ``target``, if there is one."""

    digest: bytes
    source: Source
    target: Source | None = None


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a step moves."""

    drops: tuple[Drop, ...] = ()
    saves: tuple[Save, ...] = ()
    loads: tuple[Load, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.drops or self.saves or self.loads)


NO_TRANSFERS = Transfers()


class LoadSeconds(NamedTuple):
    """So many blocks were copied from ``source`` in so many seconds."""

    source: Source
    num_blocks: int
    seconds: float


@dataclass(slots=True)
class TransferReport:
    """What came of transfers: loads by block, saves that failed, and what copying took."""

    loaded: list[tuple[int, bool]] = field(default_factory=list)
    lost: list[tuple[Source, bytes]] = field(default_factory=list)
    timed: list[LoadSeconds] = field(default_factory=list)


class _Rate:
    """Seconds for one of something; what was measured last counts most."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0

    def observe(self, count: int, seconds: float) -> None:
        self._count = self._count * _DECAY + count
        self._seconds = self._seconds * _DECAY + seconds

    @property
    def seconds(self) -> float | None:
        """None before the first measurement."""
        return self._seconds / self._count if self._count else None


@dataclass(slots=True)
class SourceFigures:
    """Of one source: blocks it holds now, and what has been so far."""

    blocks: int = 0
    capacity: int = 0
    saves: int = 0
    failed_saves: int = 0
    loads: int = 0
    failed_loads: int = 0


class _Held:
    """The digests that one source holds, the least recently used first."""

    def __init__(self, capacity: int, digests: Iterable[bytes] = ()) -> None:
        self.capacity = capacity
        # A dict that loses its first keys looks for the next one ever longer.
        self.digests = OrderedDict.fromkeys(digests)
        self.figures = SourceFigures(capacity=capacity)
        self.rate = _Rate()

    def touch(self, digest: bytes) -> None:
        self.digests.move_to_end(digest)


class Tiers:
    """Host memory before disk. Both are least-recently-used, and both keep what they load."""

    def __init__(
        self, *, host_blocks: int, disk_blocks: int, on_disk: Iterable[bytes] = ()
    ) -> None:
        """Hold so many blocks; ``on_disk`` are there from before, the least recently used first."""
        self._held = {
            Source.HOST: _Held(host_blocks),
            Source.DISK: _Held(disk_blocks, on_disk),
        }
        self._first = Source.HOST if host_blocks else Source.DISK
        self._prefill = _Rate()
        self._num_refused = 0
        self._loading: Counter[bytes] = Counter()
        self._spoilt: set[bytes] = set()
        """Digests that were forgotten while they were loaded."""
        self._drops: list[Drop] = []
        self._saves: dict[bytes, Save] = {}
        self._loads: list[Load] = []

    def source_of(self, digest: bytes) -> Source | None:
        """Return what a load of ``digest`` would read; None where nothing has it."""
        return next((source for source, held in self._held.items() if digest in held.digests), None)

    def worth_loading(self, digests: Sequence[bytes]) -> list[Source]:
        """Return the sources of the first of ``digests``, as many as loading saves time for.

        A rate that was never measured counts as good.
        """
        return self._best(self._run(digests))

    def reserve(self, digests: Sequence[bytes]) -> list[Source]:
        """Return what to load now, as ``worth_loading``; it is held until ``loaded``."""
        found = self._run(digests)
        sources = self._best(found)
        if found and not sources:
            self._num_refused += 1
            if self._num_refused >= _REFUSED_BEFORE_TRIAL:
                sources = found[:_TRIAL_BLOCKS]
        if sources:
            self._num_refused = 0
        for digest, source in zip(digests, sources, strict=False):
            self._loading[digest] += 1
            self._held[source].touch(digest)
        return sources

    def load(self, block: int, digest: bytes, source: Source) -> None:
        """Load what was reserved into ``block``."""
        self._loads.append(Load(block, digest, source))

    def loaded(self, digest: bytes, source: Source, *, succeeded: bool) -> bool:
        """Take in the end of a load; return whether the block has the content of ``digest``.

        What was forgotten meanwhile is not used.
        """
        is_spoilt = digest in self._spoilt
        self._loading[digest] -= 1
        if not self._loading[digest]:
            del self._loading[digest]
            self._spoilt.discard(digest)
        held = self._held[source]
        if not succeeded:
            held.figures.failed_loads += 1
            if digest in held.digests and digest not in self._saves:
                self._drop(digest, source, None)
                if digest in self._loading:  # the room may be another's before that load has ended
                    self._spoilt.add(digest)
            return False
        held.figures.loads += 1
        return not is_spoilt

    def save(self, block: int, digest: bytes) -> None:
        """``block`` is about to be written anew: save its content, unless a source has it."""
        if (source := self.source_of(digest)) is not None:
            self._held[source].touch(digest)
            if source is self._first:
                return
        if not self._make_room(self._first):
            return  # all that there is was saved in this step, or is being loaded
        held = self._held[self._first]
        held.digests[digest] = None
        held.figures.saves += 1
        self._saves[digest] = Save(block, digest, self._first)

    def adopt(self, digests: Sequence[bytes]) -> list[int]:
        """Return the places of ``digests`` that host memory takes, behind the drops so far.

        They come from elsewhere, and none makes room for another.
        """
        held = self._held[Source.HOST]
        taken: list[int] = []
        guarded: Counter[bytes] = Counter()
        for place, digest in enumerate(digests):
            source = self.source_of(digest)
            if source is None:
                if not self._make_room(Source.HOST):
                    break
                held.digests[digest] = None
                taken.append(place)
            if source is not Source.DISK:
                held.touch(digest)
                self._loading[digest] += 1
                guarded[digest] += 1
        self._loading -= guarded
        held.figures.saves += len(taken)
        return taken

    def forget(self, digests: Iterable[bytes]) -> None:
        """Let no source hold ``digests``: their content is not to be trusted."""
        for digest in digests:
            self._saves.pop(digest, None)
            if digest in self._loading:
                self._spoilt.add(digest)
            for source, held in self._held.items():
                if digest in held.digests:
                    self._drop(digest, source, None)

    def lost(self, source: Source, digest: bytes) -> None:
        """``source`` could not save ``digest``."""
        held = self._held[source]
        held.figures.failed_saves += 1
        if digest in held.digests and digest not in self._saves:
            # An earlier save may have failed, and a later one not: nobody may hold it then.
            self._drop(digest, source, None)

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Learn what computing prompts takes."""
        if num_tokens >= _LEAST_PREFILL_TOKENS:
            self._prefill.observe(num_tokens, seconds)

    def observe_load(self, timed: LoadSeconds) -> None:
        """Learn what loading takes."""
        self._held[timed.source].rate.observe(timed.num_blocks, timed.seconds)

    def take(self) -> Transfers:
        """Return what was decided since the last call."""
        if not (self._drops or self._saves or self._loads):
            return NO_TRANSFERS
        transfers = Transfers(tuple(self._drops), tuple(self._saves.values()), tuple(self._loads))
        self._drops, self._saves, self._loads = [], {}, []
        return transfers

    def to_persist(self, pool: Iterable[tuple[bytes, int]]) -> list[tuple[bytes, int | None]]:
        """Return what the disk lacks and has room for, the most recently used first.

        ``pool`` has digests and their blocks, likewise; None for a block: host memory has it.
        """
        disk = self._held[Source.DISK]
        host: Iterator[tuple[bytes, int | None]] = (
            (digest, None) for digest in reversed(self._held[Source.HOST].digests)
        )
        wanted: dict[bytes, int | None] = {}
        for digest, block in chain(pool, host):
            if digest not in disk.digests:
                wanted.setdefault(digest, block)
        return list(wanted.items())[: disk.capacity]

    def figures(self) -> dict[Source, SourceFigures]:
        """Return the figures of each source that may hold anything."""
        for held in self._held.values():
            held.figures.blocks = len(held.digests)
        return {source: held.figures for source, held in self._held.items() if held.capacity}

    def check_integrity(self) -> None:
        """Raise RuntimeError when state contradicts itself."""
        for source, held in self._held.items():
            if len(held.digests) > held.capacity:
                raise RuntimeError(f"{source} holds {len(held.digests)} of {held.capacity} blocks")
        if not self._saves.keys() <= self._held[self._first].digests.keys():
            raise RuntimeError(f"{self._first} does not hold what it saves")

    def _run(self, digests: Sequence[bytes]) -> list[Source]:
        run: list[Source] = []
        for digest in digests:
            source = self.source_of(digest)
            if source is None:
                break
            run.append(source)
        return run

    def _best(self, run: list[Source]) -> list[Source]:
        """Return the first of ``run``, as many as save most time."""
        if self._prefill.seconds is None:
            return run
        computing = self._prefill.seconds * BLOCK_SIZE
        saved = most = 0.0
        count = 0
        for number, source in enumerate(run, 1):
            saved += computing - (self._held[source].rate.seconds or 0.0)
            if saved > most:
                most, count = saved, number
        return run[:count]

    def _make_room(self, source: Source) -> bool:
        held = self._held[source]
        while len(held.digests) >= held.capacity:
            movable = (d for d in held.digests if d not in self._loading and d not in self._saves)
            victim = next(movable, None)
            if victim is None:
                return False
            self._drop(victim, source, self._next_home(victim, source))
        return True

    def _next_home(self, digest: bytes, source: Source) -> Source | None:
        """Return where ``digest`` goes from ``source``, with room made for it."""
        disk = self._held[Source.DISK]
        if source is Source.DISK:
            return None
        if digest in disk.digests:
            disk.touch(digest)
            return None
        if not self._make_room(Source.DISK):
            return None
        disk.digests[digest] = None
        disk.figures.saves += 1
        return Source.DISK

    def _drop(self, digest: bytes, source: Source, target: Source | None) -> None:
        del self._held[source].digests[digest]
        self._drops.append(Drop(digest, source, target))
