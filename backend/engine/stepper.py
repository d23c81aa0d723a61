"""Steps: scheduled, launched, collected; with overlap one is launched before the last is collected.

Law: what was launched is collected, or has failed, exactly once and in order, and then its blocks
are free to go. A failure while computing ends the sequences of that step and no others; only a lost
device is raised. A step that finds no memory is taken back and comes again smaller.
"""

import contextlib
import gc
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from time import monotonic
from typing import TypeVar

import torch

from backend.engine.messages import PERSIST_SECONDS
from backend.executor.draft_runner import DraftRunner
from backend.executor.model_runner import InFlight, ModelRunner
from backend.executor.parallel import LeadingRunner
from backend.executor.sampled import Sampled
from backend.executor.sampler.sampler import GrammarMask
from backend.grammar.matcher import allocate_bitmask
from backend.scheduler.batch import batch_of, note_launched
from backend.scheduler.budget import OomBackoff
from backend.scheduler.draft_model import DraftBatch
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step

logger = logging.getLogger(__name__)

T = TypeVar("T")


# torch has a type of its own for memory that its allocator does not get, and for nothing else: not
# for that of the host, of a graph, of a kernel's code, of cuBLAS.
_NO_MEMORY = (
    "allocate memory",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# Triton has an error text of its own for what torch calls a CUDA error.
_STICKY = ("CUDA error", "Triton Error [CUDA]")

_LOAD_SECONDS = 0.005
"""So long a loop that has nothing to do but loads waits for them, before it looks for messages."""


class DeviceLostError(Exception):
    """The device's state is gone: nothing more can be computed by this process."""


class Fault(Enum):
    """Who is hit by a failed step."""

    STEP = auto()
    MEMORY = auto()
    DEVICE = auto()


def fault_of(error: Exception) -> Fault:
    """Tell by the exception that launching or collecting a step raised."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return Fault.MEMORY
    if isinstance(error, RuntimeError):
        text = str(error)
        if any(each in text for each in _NO_MEMORY):
            return Fault.MEMORY
        # An error of a kernel is sticky: every later call fails as well.
        if isinstance(error, torch.AcceleratorError) or any(each in text for each in _STICKY):
            return Fault.DEVICE
    return Fault.STEP


@dataclass(slots=True)
class StepResult:
    """What came of one ``advance``: the collected step, and the sequences of steps that failed.

    The device began with ``step`` at ``began``. ``sampled`` has the next tokens of each sequence
    that samples, None where the model's output was not finite.
    """

    failed: tuple[Sequence, ...] = ()
    step: Step = ()
    began: float = 0.0
    ended: float = 0.0
    sampled: list[tuple[Sequence, Sampled | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Launched:
    step: Step
    in_flight: InFlight
    at: float


class Stepper:
    """Belongs to the engine's loop."""

    def __init__(
        self,
        runner: ModelRunner | LeadingRunner,
        scheduler: Scheduler,
        cap: OomBackoff,
        *,
        overlap: bool,
        draft: DraftRunner | None = None,
    ) -> None:
        """``cap`` is before the scheduler's budget policy; ``draft`` guesses tokens."""
        self.scheduler = scheduler
        self._runner = runner
        self._draft = draft
        self._cap = cap
        self._overlap = overlap
        self._launched: _Launched | None = None
        self._collected_at = 0.0

    def advance(self) -> StepResult:
        """Schedule and launch a step, and collect one.

        Raises DeviceLostError; after any exception ``abandon`` is due.
        """
        transfer = self._runner.transfer
        if transfer is not None:
            self.scheduler.take_in(_on_device(transfer.finished))
        began = monotonic()
        step = self.scheduler.schedule(began)
        if spoilt := self.scheduler.pool.take_to_erase():
            self._discard(spoilt)
        if transfer is not None:
            _on_device(partial(transfer.begin, self.scheduler.take_transfers()))
        result = StepResult()
        due, self._launched = self._launched, None
        if step:
            self._launched = self._launch(step, began, result)
        elif transfer is not None and due is None and self.scheduler.num_loads_in_flight:
            transfer.wait(_LOAD_SECONDS)
        elif due is None and self.scheduler.has_work:
            raise RuntimeError("there is work, and none of it can be scheduled")
        if not self._overlap:
            due, self._launched = self._launched, None
        if due is not None:
            self._collect(due, result)
        return result

    def abandon(self, *, keeps_disk: bool = False) -> None:
        """Wait for what the device still computes; its results are nobody's."""
        launched, self._launched = self._launched, None
        spoilt = list(self.scheduler.pool.take_to_erase())
        if launched is not None:
            with contextlib.suppress(Exception):
                results = self._runner.collect(launched.in_flight)
                for each, sampled in zip(_sampling(launched.step), results, strict=True):
                    spoilt += each.sequence.block_table if sampled is None else ()
        if spoilt:
            self._discard(spoilt)
        if self._runner.transfer is not None:
            self._runner.transfer.clear(keeps_disk=keeps_disk)

    def _discard(self, blocks: list[int]) -> None:
        self._runner.discard(blocks)
        if self._draft is not None:
            self._draft.discard(blocks)

    def _guess(self, draft: DraftRunner, batch: DraftBatch, step: Step) -> Step | None:
        """Return ``step`` with the draft model's guesses; None: it comes again without them."""
        began = monotonic()
        try:
            guesses = draft.propose(batch)
        except Exception as error:
            fault = fault_of(error)
            if fault is Fault.DEVICE:
                raise DeviceLostError(str(error)) from error
            # No request depends on it.
            logger.warning("the draft model failed; steps go on without it", exc_info=error)
            self.scheduler.drafts_failed(step, for_good=fault is not Fault.MEMORY)
            return None
        for row, guess in zip(batch.rows, guesses, strict=True):
            if guess is None:
                logger.warning("an output of the draft model is not finite; its KV is erased")
                draft.discard(step[row.place].sequence.block_table)
        return self.scheduler.fill(step, guesses, monotonic() - began)

    def _launch(self, step: Step, began: float, result: StepResult) -> _Launched | None:
        if self._draft is not None and (batch := self.scheduler.draft_batch) is not None:
            filled = self._guess(self._draft, batch, step)
            if filled is None:
                return None
            step = filled
        try:
            snapshots = self.scheduler.cache.snapshots
            saves = () if snapshots is None else snapshots.saves_of(step)
            computing = self._runner.launch(batch_of(step, saves))
            note_launched(step)
            # Masks are made on the host while the device is at work.
            mask = grammar_mask(step, self._runner.vocab_size)
            return _Launched(step, self._runner.sample(computing, mask), began)
        except Exception as error:  # noqa: BLE001  # logged, or raised again
            if fault_of(error) is not Fault.MEMORY or not self._take_back(step):
                self._fail(step, result, error)
            return None

    def keep(self, digests: SequenceOf[bytes], rows: torch.Tensor) -> None:
        """Put blocks that came from elsewhere, uint8 [digests, block bytes], into host memory."""
        transfer, tiers = self._runner.transfer, self.scheduler.cache.tiers
        if transfer is None or tiers is None:
            return
        taken = tiers.adopt(digests)
        _on_device(partial(transfer.begin, self.scheduler.take_transfers()))
        transfer.keep([digests[place] for place in taken], rows[taken])

    def read(self, blocks: list[int]) -> torch.Tensor:
        """Return the content of ``blocks``, which nothing in flight writes."""
        runner = self._runner
        if isinstance(runner, LeadingRunner):
            raise TypeError("each rank has a part of a block")
        return _on_device(partial(runner.read_blocks, blocks))

    def persist(self) -> None:
        """Write to disk what the pool and host memory hold, as far as there is time and room."""
        transfer, tiers = self._runner.transfer, self.scheduler.cache.tiers
        if transfer is None or tiers is None or not transfer.disk_blocks:
            return
        self.scheduler.take_in(transfer.finished())
        transfer.begin(self.scheduler.take_transfers())
        wanted = tiers.to_persist(self.scheduler.cache.newest_first())
        num_written = transfer.persist(wanted, PERSIST_SECONDS)
        logger.info("%d of %d KV blocks were written to disk", num_written, len(wanted))

    def _collect(self, launched: _Launched, result: StepResult) -> None:
        step = launched.step
        try:
            sampled = self._runner.collect(launched.in_flight)
        except Exception as error:  # noqa: BLE001  # logged, or raised again
            self._fail(step, result, error)
            return
        result.step, result.ended = step, monotonic()
        result.began = max(launched.at, self._collected_at)
        self._collected_at = result.ended
        tokens = [None if each is None else each.tokens for each in sampled]
        self.scheduler.complete(step, tokens, result.ended)
        sequences = [scheduled.sequence for scheduled in _sampling(step)]
        result.sampled = list(zip(sequences, sampled, strict=True))

    def _take_back(self, step: Step) -> bool:
        num_tokens = sum(scheduled.num_tokens for scheduled in step)
        has_drafts = any(scheduled.drafts for scheduled in step)  # and comes again without
        if not self._cap.shrink(num_tokens, len(step)) and not has_drafts:
            return False
        logger.warning("no memory for a step of %d tokens; it comes again smaller", num_tokens)
        self.scheduler.take_back(step)
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a device
        return True

    def _fail(self, step: Step, result: StepResult, error: Exception) -> None:
        if fault_of(error) is Fault.DEVICE:
            raise DeviceLostError(str(error)) from error
        logger.error("a step of %d sequences failed", len(step), exc_info=error)
        result.failed += self.scheduler.fail(step)


def _on_device(work: Callable[[], T]) -> T:
    """Return what ``work`` returns. Raises DeviceLostError."""
    try:
        return work()
    except Exception as error:
        if fault_of(error) is Fault.DEVICE:
            raise DeviceLostError(str(error)) from error
        raise


def _sampling(step: Step) -> list[ScheduledSequence]:
    return [scheduled for scheduled in step if scheduled.samples]


def grammar_mask(step: Step, vocab_size: int) -> GrammarMask | None:
    """Return which tokens may come next in the rows of ``step`` that have a grammar.

    A row whose matcher fails allows all; what is chosen for it is nobody's.
    """
    constrained = [
        (place, scheduled.sequence, scheduled.sequence.matcher)
        for place, scheduled in enumerate(step)
        if scheduled.samples and scheduled.sequence.matcher is not None
    ]
    if not constrained:
        return None
    bitmask = allocate_bitmask(len(constrained), vocab_size)
    for row, (_, sequence, matcher) in enumerate(constrained):
        start = sequence.num_prompt_tokens + matcher.num_accepted
        matcher.accept_tokens(sequence.tokens[start:])
        matcher.fill_bitmask(bitmask, row)
    return GrammarMask(tuple(place for place, _, _ in constrained), bitmask)
