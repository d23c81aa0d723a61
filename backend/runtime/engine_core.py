"""One step of the engine, synchronously: schedule, compute, turn tokens into deltas.

Belongs to the engine's thread. A failure while computing a step fails the requests of that step
and no others; requests end in ``_end`` alone, which frees what they hold.
"""

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from backend.core.block_pool import BlockPool
from backend.core.detokenizer import IncrementalDetokenizer
from backend.core.scheduler import NeverFitsError, ScheduledSequence, Scheduler
from backend.core.seeding import choice_seed
from backend.core.sequence import Sequence
from backend.core.stopping import Choice
from backend.core.types import EngineStats, GenerationRequest
from backend.ports import EngineError, RequestRejectedError
from backend.runtime.delivery import Outbox, Stream
from backend.runtime.model_runner import ModelRunner
from backend.runtime.sampled import SampledToken

logger = logging.getLogger(__name__)


class TextSource(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def detokenizer(self) -> IncrementalDetokenizer:
        """Return fresh state for one choice."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """``max_tokens_per_step`` is the token budget; ``max_model_len`` the context in tokens."""

    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_tokens_per_step: int


@dataclass(slots=True, eq=False)
class Job:
    """A request, the stream of who waits for it, and its choices that have not ended."""

    request: GenerationRequest
    stream: Stream
    open_sequences: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Continuation:
    job: Job
    choice: Choice


class EngineCore:
    """Scheduler, model runner and the text state of every choice."""

    def __init__(
        self, runner: ModelRunner, tokenizer: TextSource, limits: EngineLimits, outbox: Outbox
    ) -> None:
        """``outbox`` receives deltas and failures; the caller flushes it."""
        self.limits = limits
        self._runner = runner
        self._tokenizer = tokenizer
        self._outbox = outbox
        self._sequence_ids = count()
        self._continuations: dict[Sequence, _Continuation] = {}
        self._past_preemptions = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self.scheduler = self._new_scheduler()

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        return self.scheduler.has_work

    def submit(self, job: Job) -> None:
        """Queue the choices of ``job``; one that can never run is rejected on its stream."""
        request = job.request
        sampling = request.sampling
        room = self.limits.max_model_len - len(request.prompt_tokens)
        max_new_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        eos_token_ids = frozenset() if sampling.ignore_eos else self._tokenizer.eos_token_ids
        sequences = [
            Sequence(
                next(self._sequence_ids),
                list(request.prompt_tokens),
                len(request.prompt_tokens) + max_new_tokens,
                request.priority,
                sampling,
                choice_seed(seed, index),
                sampling.stop_token_ids | eos_token_ids,
            )
            for index in range(request.n)
        ]
        for index, sequence in enumerate(sequences):
            try:
                self.scheduler.add(sequence)
            except NeverFitsError as error:
                # All choices are alike, so this is the first and nothing was queued.
                self._outbox.put(job.stream, RequestRejectedError(str(error)))
                return
            choice = Choice(
                index,
                sampling,
                max_new_tokens=max_new_tokens,
                eos_token_ids=self._tokenizer.eos_token_ids,
                detokenizer=self._tokenizer.detokenizer(),
            )
            job.open_sequences.append(sequence)
            self._continuations[sequence] = _Continuation(job, choice)
        self._prompt_tokens += len(request.prompt_tokens)

    def abort(self, job: Job) -> None:
        """End what is left of ``job`` without a word: nobody listens any more."""
        for sequence in list(job.open_sequences):
            self._end(sequence)

    def step(self) -> None:
        """Advance every scheduled sequence; a crash of the model ends the step's requests."""
        step = self.scheduler.schedule()
        try:
            sampled = self._runner.collect(self._runner.launch(step))
        except Exception:
            logger.exception("a step of %d sequences failed", len(step))
            self._fail_step(step)
            return
        self.scheduler.complete(step)
        for sequence, token in sampled:
            self._advance(sequence, token)

    def fail_all(self, reason: str) -> None:
        """Fail every request and start over with an empty scheduler."""
        jobs = {continuation.job for continuation in self._continuations.values()}
        self._continuations.clear()
        for job in jobs:
            job.open_sequences.clear()
            self._outbox.put(job.stream, EngineError(reason))
        self._past_preemptions += self.scheduler.num_preemptions
        self.scheduler = self._new_scheduler()

    def stats(self) -> EngineStats:
        """Return the figures as of now."""
        return EngineStats(
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
            kv_blocks_used=self.scheduler.pool.num_used,
            kv_blocks_total=self.scheduler.pool.num_blocks,
            preemptions=self._past_preemptions + self.scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
        )

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            BlockPool(self.limits.num_blocks),
            max_num_seqs=self.limits.max_num_seqs,
            max_tokens_per_step=self.limits.max_tokens_per_step,
        )

    def _advance(self, sequence: Sequence, sampled: SampledToken | None) -> None:
        continuation = self._continuations.get(sequence)
        if continuation is None:
            return  # another choice of its request failed in this very step
        if sampled is None:
            self._runner.discard(sequence.block_table)
            self._fail([continuation.job], "the model's output is not finite for this request")
            return
        sequence.tokens.append(sampled.token)
        self._generated_tokens += 1
        delta = continuation.choice.push(sampled.token, sampled.logprobs)
        if delta is None:
            return
        self._outbox.put(continuation.job.stream, delta)
        if delta.finish_reason is not None:
            self._end(sequence)

    def _fail_step(self, step: Iterable[ScheduledSequence]) -> None:
        jobs = {self._continuations[scheduled.sequence].job for scheduled in step}
        self._fail(jobs, "the engine failed while it computed this request")

    def _fail(self, jobs: Iterable[Job], reason: str) -> None:
        for job in jobs:
            for sequence in list(job.open_sequences):
                self._end(sequence)
            self._outbox.put(job.stream, EngineError(reason))

    def _end(self, sequence: Sequence) -> None:
        continuation = self._continuations.pop(sequence, None)
        if continuation is not None:
            continuation.job.open_sequences.remove(sequence)
            self.scheduler.finish(sequence)
