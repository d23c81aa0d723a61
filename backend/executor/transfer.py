"""Moves blocks between the KV pool, host memory and disk: the only I/O of ``scheduler.tiers``.

Host memory has slots of a block each. Some are spare: what is on its way to the disk or from there
is in a slot, and a thread of its own reads and writes the file. So a step never waits for the disk.

Laws:
- A save is copied, or on its way in the order of the device's work, before its block is written.
- A block is reported as loaded when whatever is launched from then on reads its content.
- What fails is reported and is nobody's failure: a load that fails leaves the block as it was.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from backend.executor.block_copies import (
    BUFFER_BYTES,
    NO_MEMORY,
    Copier,
    CudaCopier,
    Filling,
    HostCopier,
)
from backend.executor.block_file import BlockFile
from backend.executor.kv_cache import KVCache
from backend.models.config import ModelLoadError
from backend.scheduler.tiers import (
    Drop,
    Load,
    LoadSeconds,
    Save,
    Source,
    TransferReport,
    Transfers,
)

logger = logging.getLogger(__name__)

DISK_SECONDS = 10.0
"""A disk that does not answer for so long has lost what was asked of it."""

_SPARE_SHARE = 8
_LEAST_SPARE = 8
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """For the disk's thread: ``slot`` to disk where ``block`` is None, else from disk for it."""

    digest: bytes
    slot: int
    block: int | None = None
    ready: torch.cuda.Event | None = None
    is_spare: bool = True
    age: int = 0


@dataclass(frozen=True, slots=True)
class _Drop:
    """Drop ``digest``; None: as many as needed for ``room``, or for no room at all everything."""

    digest: bytes | None
    room: int = 0


@dataclass(frozen=True, slots=True)
class _Done:
    job: _Job
    succeeded: bool
    seconds: float


class _DiskThread:
    """Does jobs in order, and never ends before it is told to."""

    def __init__(self, file: BlockFile, slots: Tensor) -> None:
        self.results: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._file = file
        self._slots = slots.numpy()
        self._fails = False
        self._jobs: queue.SimpleQueue[_Job | _Drop | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def put(self, job: _Job | _Drop | None) -> None:
        """Add a job; None is the last."""
        self._jobs.put(job)

    def digests(self, seconds: float) -> tuple[bytes, ...] | None:
        """Return what the file holds after all jobs so far; None where they take longer."""
        done = threading.Event()
        self._jobs.put(done)
        return self._file.digests if done.wait(seconds) else None

    def join(self, seconds: float) -> None:
        """Wait for the last job."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            began = monotonic()
            try:
                succeeded = self._do(job)
            except Exception as error:  # noqa: BLE001  # logged; it costs one block
                succeeded = False
                if not self._fails:
                    logger.warning("the disk tier fails, and serves what it can: %s", error)
            if isinstance(job, _Job):
                self._fails = not succeeded if job.block is None else self._fails
                self.results.put(_Done(job, succeeded, monotonic() - began))
        self._file.close()

    def _do(self, job: _Job | _Drop) -> bool:
        if isinstance(job, _Drop):
            if job.digest is not None:
                self._file.drop(job.digest)
            elif job.room:
                self._file.make_room(job.room)
            else:
                self._file.clear()
            return True
        if job.ready is not None:
            job.ready.synchronize()
        content = memoryview(self._slots[job.slot])
        if job.block is not None:
            return self._file.read(job.digest, content)
        self._file.write(job.digest, content, job.age)
        return True


class BlockTransfer:
    """Belongs to the thread that takes steps."""

    def __init__(
        self, cache: KVCache, *, host_bytes: int, file: BlockFile | None, disk_blocks: int
    ) -> None:
        """``file`` has room for ``disk_blocks``. Raises ModelLoadError where memory is short."""
        device = cache.layers[0].blocks.device
        self.block_bytes = cache.bytes_of_block
        num_slots = host_bytes // self.block_bytes
        self.host_blocks, self._spare = num_slots, 0
        if file is not None:
            self._spare = max(num_slots // _SPARE_SHARE, _LEAST_SPARE)
            self.host_blocks = max(num_slots - self._spare, 0)
            if not host_bytes:
                self._spare = max(BUFFER_BYTES // self.block_bytes, _LEAST_SPARE)
        if host_bytes and not self.host_blocks:
            least = (1 + self._spare) * self.block_bytes
            raise ModelLoadError(f"kv-host-bytes: at least {least} are needed, got {host_bytes}")
        on_cuda = device.type == "cuda"
        shape = (self.host_blocks + self._spare, self.block_bytes)
        try:
            slots = torch.empty(shape, dtype=torch.uint8, pin_memory=on_cuda)
        except RuntimeError as error:
            size = shape[0] * shape[1] // 2**20
            raise ModelLoadError(f"kv-host-bytes: no {size} MiB of host memory") from error
        self._copier: Copier = (
            CudaCopier(cache, slots, device) if on_cuda else HostCopier(cache, slots)
        )
        self.disk_blocks = disk_blocks if file is not None else 0
        self.on_disk: tuple[bytes, ...] = () if file is None else file.digests
        """What the disk holds at first, the least recently written first."""
        self._disk = None if file is None else _DiskThread(file, slots)
        self._slots = slots
        self._free = list(range(shape[0]))
        self._slot_of: dict[bytes, int] = {}  # in host memory
        self._ready: dict[int, torch.cuda.Event] = {}  # slots that a copy may not have reached
        self._queued: deque[Load] = deque()  # of the disk, without a slot
        self._jobs: set[_Job] = set()
        self._orphans: set[_Job] = set()
        self._reading: dict[int, _Job] = {}  # by block
        self._heard = 0.0  # of the disk's thread, or it was given a job while it had none
        self._most_jobs = max(BUFFER_BYTES // self.block_bytes, _LEAST_SPARE)  # as it persists
        self._report = TransferReport()

    @torch.inference_mode()
    def begin(self, transfers: Transfers) -> None:
        """Begin what is to move before the next step; it never waits."""
        self._take_results()
        for drop in transfers.drops:
            self._drop(drop)
        if transfers.saves:
            self._save(transfers.saves)
        if transfers.loads:
            self._load(transfers.loads)

    def keep(self, digests: Sequence[bytes], rows: Tensor) -> None:
        """Hold in host memory what came from elsewhere: uint8 [digests, block bytes]."""
        slots = [self._free.pop() for _ in digests[: len(self._free)]]
        if slots:
            self._slots[torch.tensor(slots)] = rows[: len(slots)]
        self._slot_of.update(zip(digests, slots, strict=False))
        self._report.lost += [(Source.HOST, digest) for digest in digests[len(slots) :]]

    @torch.inference_mode()
    def finished(self) -> TransferReport:
        """Return what has ended since the last call."""
        self._take_results()
        waits = self._jobs and (self._reading or self._queued)
        if waits and monotonic() - self._heard > DISK_SECONDS:
            logger.warning("the disk tier did not answer for %g s", DISK_SECONDS)
            self._report.loaded += [(block, False) for block in self._reading]
            self._report.loaded += [(load.block, False) for load in self._queued]
            self._reading.clear()
            self._queued.clear()
        for part, seconds in self._copier.filled():
            self._report.loaded += [(each.block, seconds is not None) for each in part]
            self._free += [each.slot for each in part if each.is_spare]
            num_host = sum(each.source is Source.HOST for each in part)
            if seconds is None:
                logger.warning("no memory to load %d blocks", len(part))
            elif num_host == len(part):
                self._report.timed.append(LoadSeconds(Source.HOST, num_host, seconds))
        self._read_queued()
        report, self._report = self._report, TransferReport()
        return report

    def wait(self, seconds: float) -> None:
        """Wait until a load has ended, ``seconds`` at most."""
        if not self._report.loaded and not self._copier.wait(seconds):
            self._wait_for_disk(seconds)

    def clear(self, *, keeps_disk: bool = False) -> None:
        """Hold nothing any more; loads and saves on their way are nobody's.

        ``keeps_disk``: ``on_disk`` is what the disk holds still.
        """
        self._copier.forget()
        self.on_disk = ()
        if self._disk is not None:
            kept = self._disk.digests(DISK_SECONDS) if keeps_disk else None
            if kept is None:
                self._disk.put(_Drop(None))
            self.on_disk = kept or ()
        self._slot_of.clear()
        self._ready.clear()
        self._queued.clear()
        self._reading.clear()
        busy = {job.slot for job in self._jobs}
        self._free = [slot for slot in range(self.host_blocks + self._spare) if slot not in busy]
        # Their slots are free when the thread is done with them, wherever they came from.
        self._orphans = set(self._jobs)
        self._report = TransferReport()

    @torch.inference_mode()
    def persist(self, wanted: Sequence[tuple[bytes, int | None]], seconds: float) -> int:
        """Write ``wanted`` to disk, the most important first; return how many were written.

        Each is a digest and its block, None where host memory has it. It takes ``seconds`` at most.
        Loads on their way do not end any more: ``clear`` or ``close`` is due.
        """
        until = monotonic() + seconds
        if self._disk is None or not wanted:
            return 0
        self._take_results()
        self._queued.clear()
        self._reading.clear()
        self._free += [each.slot for each in self._copier.forget() if each.is_spare]
        before = len(self._report.lost)
        jobs: set[_Job] = set()
        for age, (digest, block) in zip(range(len(wanted), 0, -1), wanted, strict=True):
            if not self._has_turn(until):
                break
            if block is not None and self._free:
                slot = self._free.pop()
                try:
                    ready = self._copier.save([block], [slot])
                except NO_MEMORY:
                    self._free.append(slot)
                    continue
            elif block is None and digest in self._slot_of:
                slot = self._slot_of[digest]
                ready = self._ready.get(slot)
            else:
                continue
            job = _Job(digest, slot, ready=ready, is_spare=block is not None, age=age)
            jobs.add(job)
            self._put(_Drop(None, room=1))
            self._put(job)
        while jobs & self._jobs and monotonic() < until:
            self._wait_for_disk(until - monotonic())
        return len(jobs - self._jobs) - (len(self._report.lost) - before)

    def close(self) -> None:
        """Close the file when the disk's thread has done what it was given."""
        if self._disk is not None:
            self._disk.put(None)
            self._disk.join(_CLOSE_SECONDS)

    def _has_turn(self, until: float) -> bool:
        """Wait for a slot and for the disk, which has few jobs: they must end. False: too late."""
        while monotonic() < until:
            if len(self._jobs) < self._most_jobs and (self._free or not self._jobs):
                return True
            self._wait_for_disk(until - monotonic())
        return False

    def _wait_for_disk(self, seconds: float) -> None:
        if self._disk is not None:
            with suppress(queue.Empty):
                self._take(self._disk.results.get(timeout=max(seconds, 0.0)))

    def _drop(self, drop: Drop) -> None:
        digest, source, target = drop
        if source is Source.DISK:
            self._put(_Drop(digest))
            return
        slot = self._slot_of.pop(digest, None)
        if slot is not None:
            ready = self._ready.pop(slot, None)
            if target is Source.DISK and len(self._jobs) < self._spare:
                self._put(_Job(digest, slot, ready=ready))
                return
            if ready is not None:
                ready.synchronize()  # the disk's thread may fill it next, behind no stream
            self._free.append(slot)
        if target is not None:
            self._report.lost.append((target, digest))

    def _save(self, saves: Sequence[Save]) -> None:
        # The last are heads of what was used last: without them, tails are not found.
        first = max(len(saves) - len(self._free), 0)
        kept, lost = saves[first:], saves[:first]
        slots = [self._free.pop() for _ in kept]
        try:
            ready = self._copier.save([each.block for each in kept], slots)
        except NO_MEMORY:
            logger.warning("no memory to save %d blocks", len(kept))
            self._free += slots
            kept, lost = (), saves
        for (_, digest, target), slot in zip(kept, slots, strict=False):
            if target is Source.DISK:
                self._put(_Job(digest, slot, ready=ready))
                continue
            self._slot_of[digest] = slot
            if ready is not None:
                self._ready[slot] = ready
        self._report.lost += [(each.target, each.digest) for each in lost]

    def _load(self, loads: Sequence[Load]) -> None:
        fillings: list[Filling] = []
        for load in loads:
            if load.source is Source.DISK:
                self._queued.append(load)
            elif (slot := self._slot_of.get(load.digest)) is None:
                self._report.loaded.append((load.block, False))
            else:
                fillings.append(Filling(load.block, slot, Source.HOST, is_spare=False))
        if fillings:
            self._copier.fill(fillings)
        self._read_queued()

    def _read_queued(self) -> None:
        while self._queued and self._free:
            load = self._queued.popleft()
            job = _Job(load.digest, self._free.pop(), load.block)
            self._reading[load.block] = job
            self._put(job)

    def _put(self, job: _Job | _Drop) -> None:
        if self._disk is None:
            raise RuntimeError("there is no disk tier")
        if isinstance(job, _Job):
            if not self._jobs:
                self._heard = monotonic()
            self._jobs.add(job)
        self._disk.put(job)

    def _take_results(self) -> None:
        if self._disk is None:
            return
        while not self._disk.results.empty():  # nobody else takes them out
            self._take(self._disk.results.get())

    def _take(self, done: _Done) -> None:
        job, succeeded, seconds = done.job, done.succeeded, done.seconds
        self._heard = monotonic()
        self._jobs.discard(job)
        if job in self._orphans:
            self._orphans.discard(job)
            self._free.append(job.slot)
        elif job.block is None:
            if job.is_spare:
                self._free.append(job.slot)
            if not succeeded:
                self._report.lost.append((Source.DISK, job.digest))
        elif self._reading.get(job.block) is not job:
            self._free.append(job.slot)  # it came too late
        else:
            del self._reading[job.block]
            if succeeded:
                self._report.timed.append(LoadSeconds(Source.DISK, 1, seconds))
                self._copier.fill([Filling(job.block, job.slot, Source.DISK, is_spare=True)])
            else:
                self._report.loaded.append((job.block, False))
                self._free.append(job.slot)
