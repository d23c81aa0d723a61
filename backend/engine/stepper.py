"""Steps: scheduled, launched, collected; with overlap one is launched before the last is collected.

Law: what was launched is collected, or has failed, exactly once and in order, and then its blocks
are free to go. A failure while computing ends the sequences of that step and no others; only a lost
device is raised. A step that finds no memory is taken back and comes again smaller.
"""

import contextlib
import gc
import logging
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import torch

from backend.engine.step_faults import DeviceLostError, Fault, fault_of
from backend.executor.model_runner import InFlight, ModelRunner
from backend.executor.sampled import Sampled
from backend.executor.sampler.sampler import GrammarMask
from backend.grammar.matcher import allocate_bitmask, fill_bitmask
from backend.scheduler.batch import batch_of, note_launched
from backend.scheduler.budget import OomBackoff
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import ScheduledSequence, Sequence, Step

logger = logging.getLogger(__name__)


class StepListener(Protocol):
    """Hears what came of steps; may finish sequences, of this step or others, while it does."""

    def completed(self, step: Step, began: float, now: float) -> None:
        """Take note that the device computed ``step`` from ``began`` on."""
        ...

    def advanced(self, sequence: Sequence, sampled: Sampled | None) -> None:
        """Take the next tokens of ``sequence``; None: the model's output was not finite."""
        ...

    def failed(self, sequences: tuple[Sequence, ...], reason: str) -> None:
        """Take note that ``sequences`` were ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Launched:
    step: Step
    in_flight: InFlight
    at: float


class Stepper:
    """Belongs to the engine's loop."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        cap: OomBackoff,
        listener: StepListener,
        *,
        overlap: bool,
    ) -> None:
        """``cap`` is before the scheduler's budget policy."""
        self.scheduler = scheduler
        self._runner = runner
        self._cap = cap
        self._listener = listener
        self._overlap = overlap
        self._launched: _Launched | None = None
        self._collected_at = 0.0

    def turn(self) -> None:
        """Schedule and launch a step, and collect one.

        Raises DeviceLostError; after any exception ``abandon`` is due.
        """
        began = monotonic()
        step = self.scheduler.schedule(began)
        if spoilt := self.scheduler.pool.take_to_erase():
            self._runner.discard(spoilt)
        before, self._launched = self._launched, None
        if step:
            self._launched = self._launch(step, began)
        elif before is None and self.scheduler.has_work:
            raise RuntimeError("there is work, and none of it can be scheduled")
        if before is not None:
            self._collect(before)
        if not self._overlap:
            self._collect_last()

    def abandon(self) -> None:
        """Wait for what the device still computes; its results are nobody's."""
        launched, self._launched = self._launched, None
        spoilt = list(self.scheduler.pool.take_to_erase())
        if launched is not None:
            with contextlib.suppress(Exception):
                results = self._runner.collect(launched.in_flight)
                for each, sampled in zip(_sampling(launched.step), results, strict=True):
                    spoilt += each.sequence.block_table if sampled is None else ()
        if spoilt:
            self._runner.discard(spoilt)

    def _launch(self, step: Step, began: float) -> _Launched | None:
        try:
            computing = self._runner.launch(batch_of(step))
            note_launched(step)
            # Masks are made on the host while the device is at work.
            mask = grammar_mask(step, self._runner.vocab_size)
            return _Launched(step, self._runner.sample(computing, mask), began)
        except Exception as error:
            fault = fault_of(error)
            if fault is Fault.DEVICE:
                raise DeviceLostError(str(error)) from error
            if fault is Fault.MEMORY and self._take_back(step):
                return None
            logger.exception("a step of %d sequences failed", len(step))
            self._fail(step)
            return None

    def _collect_last(self) -> None:
        launched, self._launched = self._launched, None
        if launched is not None:
            self._collect(launched)

    def _collect(self, launched: _Launched) -> None:
        step = launched.step
        try:
            sampled = self._runner.collect(launched.in_flight)
        except Exception as error:
            if fault_of(error) is Fault.DEVICE:
                raise DeviceLostError(str(error)) from error
            logger.exception("a step of %d sequences failed", len(step))
            self._fail(step)
            return
        now = monotonic()
        self.scheduler.complete(
            step, [None if each is None else each.tokens for each in sampled], now
        )
        self._listener.completed(step, max(launched.at, self._collected_at), now)
        self._collected_at = now
        for scheduled, tokens in zip(_sampling(step), sampled, strict=True):
            self._listener.advanced(scheduled.sequence, tokens)

    def _take_back(self, step: Step) -> bool:
        num_tokens = sum(scheduled.num_tokens for scheduled in step)
        if not self._cap.shrink(num_tokens, len(step)):
            return False
        logger.warning("no memory for a step of %d tokens; it is cut in half", num_tokens)
        self.scheduler.take_back(step)
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a device
        return True

    def _fail(self, step: Step) -> None:
        ended = self.scheduler.fail(step)
        self._listener.failed(ended, "the engine failed while it computed this request")


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
    for _, sequence, matcher in constrained:
        start = sequence.num_prompt_tokens + matcher.num_accepted
        matcher.accept_tokens(sequence.tokens[start:])
    fill_bitmask(bitmask, ((row, each[-1]) for row, each in enumerate(constrained)))
    return GrammarMask(tuple(place for place, _, _ in constrained), bitmask)
