"""The requests of an engine: what is open, what came of it, and how it ends.

Belongs to the engine's loop; ``stepper`` computes. Every request gets one end, whatever happens.
Sequences end in ``_end`` alone, which frees what they hold.
"""

import secrets
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from itertools import count
from time import monotonic

import torch

from backend.engine.messages import Abort, Item, Submit
from backend.engine.stepper import Stepper
from backend.executor.draft_runner import DraftRunner
from backend.executor.memory import MemoryMeter
from backend.executor.model_runner import ModelRunner
from backend.executor.parallel import LeadingRunner
from backend.executor.sampled import Sampled
from backend.grammar.compiler import GrammarCompiler, PendingGrammar
from backend.grammar.matcher import GrammarError
from backend.ports import (
    EngineError,
    GrammarRejectedError,
    OverloadedError,
    QueueTimeoutError,
    RequestRejectedError,
)
from backend.ports import QueueFullError as QueueIsFullError
from backend.scheduler.block_pool import BlockPool
from backend.scheduler.budget import OomBackoff, TokenBudget, budget_policy
from backend.scheduler.cache_events import EventBatch, EventLog
from backend.scheduler.draft_model import DraftModel
from backend.scheduler.drafts import Drafter
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import FinishReason, TokenDelta, TokenLogprobs, choice_seed
from backend.scheduler.scheduler import NeverFitsError, QueueFullError, Scheduler
from backend.scheduler.sequence import Sequence
from backend.scheduler.snapshots import Snapshots
from backend.scheduler.stats import EngineStats, Recorder, Recording, TierStats
from backend.scheduler.stopping import finish_reason
from backend.scheduler.tiers import Tiers

_CACHE_EVENTS = 1 << 17
"""Many times what one step stores and removes."""

_MOST_COMPILING = 1_024
"""Requests that wait for their grammar; they are in no queue yet."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """``max_tokens_per_step`` is the token budget; ``max_model_len`` the context in tokens.

    ``max_waiting`` sequences may wait, ``queue_seconds`` each, where its request says nothing else.
    Targets are in seconds. ``overlap`` launches a step before the last one's tokens are known.
    ``speculation`` verifies drafts by prompt lookup, where they pay; a draft model guesses
    ``num_speculative_tokens`` at a time, if there is one.
    """

    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_tokens_per_step: int
    max_waiting: int = 1024
    queue_seconds: float | None = None
    target_ttft: float | None = None
    target_itl: float | None = None
    overlap: bool = False
    speculation: bool = False
    num_speculative_tokens: int = 4
    num_snapshots: int | None = None
    """Of recurrent states; None: the model has none."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request and its choices that have not ended, by index."""

    number: int
    streams: bool
    open_sequences: dict[int, Sequence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Continuation:
    job: _Job
    index: int
    held: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of tokens that are not sent yet."""
    held_of_prompt: list[TokenLogprobs] = field(default_factory=list)


class EngineCore:
    """Scheduler, model runner and every request that has not ended."""

    def __init__(
        self,
        runner: ModelRunner | LeadingRunner,
        eos_token_ids: frozenset[int],
        limits: EngineLimits,
        grammars: GrammarCompiler,
        *,
        fingerprint: bytes = b"",
        adapters: tuple[bytes, ...] = (),
        cache_events: bool = False,
        draft: DraftRunner | None = None,
    ) -> None:
        """``eos_token_ids`` end an answer of the model, ``fingerprint`` tells it from others.

        Fingerprints of ``adapters`` do so too. ``draft`` guesses tokens that ``runner`` verifies.
        ``cache_events`` keeps news of the prefix cache, which must be taken after each step.
        """
        self.grammars = grammars
        self._compiling: dict[int, tuple[Submit, PendingGrammar]] = {}
        self.limits = limits
        self.fingerprints = (fingerprint, *adapters)
        self.is_asleep = False
        self.transfer_counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """Of blocks that came from other engines or went there, named as metrics are."""
        self._cache_log = EventLog(_CACHE_EVENTS) if cache_events else None
        self._memory = MemoryMeter(runner.device)
        self.runner = runner
        self._draft = draft
        self._eos_token_ids = eos_token_ids
        self._sequence_ids = count()
        self._jobs: dict[int, _Job] = {}
        self._continuations: dict[Sequence, _Continuation] = {}
        self._items: list[tuple[int, Item]] = []
        self._recorder = Recorder()
        self._past = EngineStats()
        """The figures of what there was before the last ``start_over``."""
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._stepper = self._new_stepper()

    @property
    def scheduler(self) -> Scheduler:
        """The current scheduler; ``start_over`` replaces it."""
        return self._stepper.scheduler

    def warm_up(self) -> None:
        """Take first steps; see ``ModelRunner.warm_up``."""
        self.runner.warm_up()
        if self._draft is not None:
            self._draft.warm_up()

    def submit(self, message: Submit) -> None:
        """Queue the choices of a request, once its grammar is compiled, or say why it cannot be."""
        grammar = message.request.sampling.grammar
        if grammar is None:
            self._queue(message, None)
            return
        if len(self._compiling) >= _MOST_COMPILING:
            error = OverloadedError("too many requests wait for their grammars", 1.0)
            self._items.append((message.number, error))
            return
        pending = self.grammars.compile(grammar)
        self._compiling[message.number] = message, pending
        self.admit_compiled()

    def admit_compiled(self) -> None:
        """Queue the requests whose grammar has been compiled in the meantime."""
        for number, (message, pending) in list(self._compiling.items()):
            if pending.done:
                del self._compiling[number]
                self._queue(message, pending)

    def _queue(self, message: Submit, grammar: PendingGrammar | None) -> None:
        request = message.request
        try:
            sequences = self._sequences(message, grammar)
            self.scheduler.add_all(sequences, monotonic(), among=request.among)
        except (GrammarError, NeverFitsError, OverloadedError, QueueFullError) as error:
            self._items.append((message.number, _refusal(error)))
            return
        # Who looks for stop strings sees every token; otherwise a plain reply needs the last only.
        job = _Job(message.number, request.stream or bool(request.sampling.stop))
        for index, sequence in enumerate(sequences):
            job.open_sequences[index] = sequence
            self._continuations[sequence] = _Continuation(job, index)
        self._recorder.arrived(sequences, message.arrived)
        self._jobs[message.number] = job
        self._prompt_tokens += len(request.prompt_tokens)

    def abort(self, message: Abort) -> None:
        """End a choice, or what is left of a request, silently: the client has gone."""
        if message.number in self._compiling:
            _, pending = self._compiling.pop(message.number)
            self.grammars.forget(pending)
        job = self._jobs.get(message.number)
        if job is None:
            return  # it ended while the message was on its way
        for index, sequence in list(job.open_sequences.items()):
            if message.index in (None, index):
                if message.reason is FinishReason.ABORT:
                    self._recorder.client_left(sequence, message.at)
                self._end(sequence, message.reason)

    def step(self) -> None:
        """Advance what can be advanced. Raises DeviceLostError; after others, ``start_over``."""
        now = monotonic()
        for sequence in self.scheduler.expire(now):
            if (continuation := self._continuations.get(sequence)) is not None:
                waited = now - sequence.arrived
                error = QueueTimeoutError(
                    f"the request waited {waited:.1f} s, and nothing could be computed for it",
                    self.scheduler.drain_seconds(now),
                )
                self._fail(continuation.job, error, "queue_timeout")
        result = self._stepper.advance()
        for sequence in result.failed:
            if (continuation := self._continuations.get(sequence)) is not None:
                text = "the engine failed while it computed this request"
                self._fail(continuation.job, EngineError(text))
        if result.step:
            self._recorder.completed(result.step, result.began, result.ended)
        for sequence, sampled in result.sampled:
            # Another sequence of its request, or its client, may have ended it meanwhile.
            if (continuation := self._continuations.get(sequence)) is not None:
                self._advance(sequence, continuation, sampled)

    def _advance(
        self, sequence: Sequence, continuation: _Continuation, sampled: Sampled | None
    ) -> None:
        if sampled is None:
            text = "the model's output is not finite for this request"
            self._fail(continuation.job, EngineError(text))
        elif sequence.matcher is not None and sequence.matcher.failure is not None:
            # Its KV is as good as any, and may stay in the prefix cache; only its last token is
            # not.
            text = f"constrained decoding cannot go on: {sequence.matcher.failure}"
            self._fail(continuation.job, EngineError(text))
        else:
            self._generated_tokens += sequence.num_new_tokens
            self._emit_tokens(sequence, continuation, sampled)

    def start_over(self, reason: str, *, keeps_disk: bool = False) -> None:
        """Fail every request and begin with an empty scheduler, and empty tiers."""
        jobs, self._jobs = self._jobs, {}
        self._continuations.clear()
        compiling, self._compiling = self._compiling, {}
        for number, (_, pending) in compiling.items():
            self.grammars.forget(pending)
            self._items.append((number, EngineError(reason)))
        for job in jobs.values():
            self._items.append((job.number, EngineError(reason)))
        self._stepper.abandon(keeps_disk=keeps_disk)
        self._recorder.all_ended("error")
        self._past = replace(self.stats(), restarts=self._past.restarts + 1)
        self._recorder = Recorder()
        self.transfer_counts = Counter()
        self._prompt_tokens = self._generated_tokens = 0
        if self._cache_log is not None:
            self._cache_log.start_over()
        self._stepper = self._new_stepper()

    def sleep(self) -> None:
        """Drop the KV pool and move the weights to the host; figures and the disk tier go on."""
        restarts = self._past.restarts
        self._stepper.persist()
        self.start_over("the engine is put to sleep", keeps_disk=True)
        self._past = replace(self._past, restarts=restarts)
        self.is_asleep = True
        self.runner.sleep()
        if self._draft is not None:
            self._draft.sleep()

    def wake(self) -> None:
        """Compute again, with an empty prefix cache. Raises what ``warm_up`` raises."""
        self.runner.wake()
        if self._draft is not None:
            self._draft.wake()
        self.is_asleep = False

    @property
    def num_host_blocks(self) -> int:
        """Blocks for which the tier in host memory has room."""
        return 0 if self.runner.transfer is None else self.runner.transfer.host_blocks

    def keep_blocks(self, digests: SequenceOf[bytes], content: bytearray) -> None:
        """Take blocks that another engine computed, one behind the other, into host memory."""
        rows = torch.frombuffer(content, dtype=torch.uint8).view(len(digests), -1)
        self._stepper.keep(digests, rows)

    def read_blocks(self, blocks: list[int]) -> memoryview:
        """Return the content of ``blocks``, one behind the other."""
        return self._stepper.read(blocks).numpy().data.cast("B")

    def persist(self) -> None:
        """Write to the disk tier, if there is one, what the next engine can use; the last call."""
        self._stepper.persist()
        if self.runner.transfer is not None:
            self.runner.transfer.close()

    def take_items(self) -> list[tuple[int, Item]]:
        """Return what was said since the last call."""
        items, self._items = self._items, []
        return items

    def take_cache_events(self) -> list[EventBatch]:
        """Return what the prefix cache stored and removed since the last call."""
        return [] if self._cache_log is None else self._cache_log.take()

    def stats(self) -> EngineStats:
        """Return the figures as of now."""
        scheduler, recording = self.scheduler, self._recorder.read()
        for counts in (scheduler.draft_counts, self.transfer_counts):
            if counts:
                recording += Recording(counts=counts)
        return EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_blocks_used=scheduler.pool.num_used,
            kv_blocks_total=scheduler.pool.num_blocks,
            preemptions=scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            prefix_queries=scheduler.cache.queries,
            prefix_hits=scheduler.cache.hits,
            tokens_after_disconnect=self._recorder.num_tokens_after_disconnect,
            draft_tokens=scheduler.num_draft_tokens,
            accepted_draft_tokens=scheduler.num_accepted_draft_tokens,
            recording=recording,
            tenants=tuple(scheduler.cache.blocks_by_tenant().items()),
            memory=self._memory.read(monotonic()),
            tiers=self._tier_figures(),
        ).following(self._past)

    def _tier_figures(self) -> tuple[TierStats, ...]:
        tiers, transfer = self.scheduler.cache.tiers, self.runner.transfer
        if tiers is None or transfer is None:
            return ()
        return tuple(
            TierStats(source, transfer.block_bytes, replace(figures))
            for source, figures in tiers.figures().items()
        )

    def _new_stepper(self) -> Stepper:
        limits = self.limits
        most = TokenBudget(limits.max_tokens_per_step, limits.max_num_seqs)
        cap = OomBackoff(
            budget_policy(most, target_ttft=limits.target_ttft, target_itl=limits.target_itl)
        )
        pool, tiers, snapshots = BlockPool(limits.num_blocks), None, limits.num_snapshots
        if (transfer := self.runner.transfer) is not None:
            tiers = Tiers(
                host_blocks=transfer.host_blocks,
                disk_blocks=transfer.disk_blocks,
                on_disk=transfer.on_disk,
            )
        scheduler = Scheduler(
            pool,
            cache=PrefixCache(
                pool,
                fingerprint=self.fingerprints[0],
                adapters=self.fingerprints[1:],
                events=self._cache_log,
                tiers=tiers,
                snapshots=None if snapshots is None else Snapshots(snapshots),
            ),
            max_num_seqs=limits.max_num_seqs,
            max_tokens_per_step=limits.max_tokens_per_step,
            budget_policy=cap,
            drafter=self._drafter(),
            max_waiting=limits.max_waiting,
        )
        return Stepper(self.runner, scheduler, cap, overlap=limits.overlap, draft=self._draft)

    def _drafter(self) -> Drafter | None:
        limits, model = self.limits, None
        if self._draft is not None:
            model = DraftModel(
                limits.num_blocks,
                max_model_len=self._draft.max_model_len,
                most=limits.num_speculative_tokens,
            )
        if model is None and not limits.speculation:
            return None
        return Drafter(model, lookup=limits.speculation)

    def _sequences(self, message: Submit, grammar: PendingGrammar | None) -> list[Sequence]:
        request, arrived = message.request, message.arrived
        sampling = request.sampling
        room = self.limits.max_model_len - len(request.prompt_tokens)
        max_new_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        queue_seconds = request.queue_seconds
        if queue_seconds is None:
            queue_seconds = self.limits.queue_seconds
        end_token_ids = sampling.stop_token_ids
        if not sampling.ignore_eos or grammar is not None:  # nothing goes on behind a grammar's end
            end_token_ids |= self._eos_token_ids
        return [
            Sequence(
                next(self._sequence_ids),
                list(request.prompt_tokens),
                len(request.prompt_tokens) + max_new_tokens,
                request.priority,
                sampling,
                choice_seed(seed, index),
                end_token_ids,
                arrived=arrived,
                # Choices wait for the first one's prompt, and count as begun when it does.
                deadline=None if index or queue_seconds is None else arrived + queue_seconds,
                cache_salt=request.cache_salt,
                adapter=request.adapter,
                matcher=None if grammar is None else grammar.matcher(),
                reads_cache=sampling.prompt_logprobs is None,
                block_hashes=list(message.block_hashes),
            )
            for index in range(request.n)
        ]

    def _emit_tokens(
        self, sequence: Sequence, continuation: _Continuation, sampled: Sampled
    ) -> None:
        continuation.held.extend(sampled.logprobs[: sequence.num_new_tokens])
        continuation.held_of_prompt.extend(sampled.prompt_logprobs)
        reason = finish_reason(sequence)
        job = continuation.job
        if job.streams or reason is not None:
            first = sequence.num_prompt_tokens
            if job.streams:
                first = len(sequence.tokens) - sequence.num_new_tokens
            is_begin = first == sequence.num_prompt_tokens
            times = self._recorder.times(sequence) if is_begin else None
            tokens = tuple(sequence.tokens[first:])
            held, prompt = tuple(continuation.held), tuple(continuation.held_of_prompt)
            continuation.held.clear()
            continuation.held_of_prompt.clear()
            cached = sequence.num_cached_tokens
            index = continuation.index
            delta = TokenDelta(index, tokens, held, reason, cached, prompt, times)
            self._items.append((job.number, delta))
        if reason is not None:
            self._end(sequence, reason)

    def _fail(self, job: _Job, error: Exception, why: str = "error") -> None:
        for sequence in list(job.open_sequences.values()):
            self._end(sequence, why)
        self._items.append((job.number, error))

    def _end(self, sequence: Sequence, reason: str) -> None:
        self._recorder.ended(sequence, reason)
        continuation = self._continuations.pop(sequence, None)
        if continuation is None:
            return
        job = continuation.job
        del job.open_sequences[continuation.index]
        if not job.open_sequences:
            self._jobs.pop(job.number, None)
        self.scheduler.finish(sequence)


def _refusal(error: Exception) -> Exception:
    """Return ``error``, which kept a request out, as its client is told."""
    match error:
        case GrammarError():
            return GrammarRejectedError(str(error))
        case NeverFitsError():
            return RequestRejectedError(str(error))
        case QueueFullError():
            return QueueIsFullError(str(error), error.retry_after)
        case _:
            return error
