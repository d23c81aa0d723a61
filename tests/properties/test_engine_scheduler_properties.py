"""The scheduler under random arrivals, aborts, preemptions and endings.

After every step: no block is lost or owned twice, the budget is kept, decoding comes first, nobody
is admitted before one of a better rank, and the first of those that run advances, so that within a
priority nobody starves.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.core.block_pool import BlockPool, blocks_for
from backend.core.scheduler import NeverFitsError, Scheduler
from backend.core.sequence import Sequence, SequenceStatus
from backend.core.types import Priority


class SchedulerMachine(RuleBasedStateMachine):
    """Plays the engine: every planned token is computed, caught-up sequences get one more."""

    @initialize(
        num_blocks=st.integers(1, 12),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 40),
    )
    def start(self, num_blocks, max_num_seqs, spare_budget):
        self.budget = max_num_seqs + spare_budget
        self.max_num_seqs = max_num_seqs
        self.scheduler = Scheduler(
            BlockPool(num_blocks), max_num_seqs=max_num_seqs, max_tokens_per_step=self.budget
        )
        self.open: list[Sequence] = []
        self.arrivals = 0

    @rule(prompt=st.integers(1, 90), answer=st.integers(1, 60), priority=st.sampled_from(Priority))
    def arrive(self, prompt, answer, priority):
        sequence = Sequence(self.arrivals, [7] * prompt, prompt + answer, priority)
        self.arrivals += 1
        capacity = self.scheduler.pool.num_blocks
        fits = blocks_for(prompt + answer - 1) <= capacity
        try:
            self.scheduler.add(sequence)
        except NeverFitsError:
            assert not fits
        else:
            assert fits
            self.open.append(sequence)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        sequence = data.draw(st.sampled_from(self.open))
        self.scheduler.finish(sequence)
        assert sequence.block_table == []
        self.scheduler.finish(sequence)
        self.open.remove(sequence)

    @precondition(lambda self: self.open)
    @rule(times=st.integers(1, 20))
    def steps(self, times):
        for _ in range(times):
            if self.open:
                self.step()

    def step(self):
        running = {s for s in self.open if s.status is SequenceStatus.RUNNING}
        first = min(running or self.open, key=lambda sequence: sequence.rank)
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        planned = [scheduled.sequence for scheduled in step]
        assert first in planned
        waiting = [s.rank for s in self.open if s.status is SequenceStatus.WAITING]
        for sequence in set(planned) - running:
            assert all(sequence.rank < rank for rank in waiting)
        assert len(set(planned)) == len(planned) <= self.max_num_seqs
        assert sum(scheduled.num_tokens for scheduled in step) <= self.budget
        for scheduled in step:
            sequence = scheduled.sequence
            assert sequence.status is SequenceStatus.RUNNING
            assert 1 <= scheduled.num_tokens <= sequence.num_pending_tokens
            reached = sequence.num_computed_tokens + scheduled.num_tokens
            assert len(sequence.block_table) >= blocks_for(reached)
        decoding = [s for s in self.open if s.block_table and s.num_pending_tokens == 1]
        assert set(decoding) <= set(planned)
        samples = [scheduled.samples for scheduled in step]
        self.scheduler.complete(step)
        for sequence, sampled in zip(planned, samples, strict=True):
            assert sampled == (sequence.num_pending_tokens == 0)
            if sampled:
                sequence.tokens.append(7)
                if len(sequence.tokens) == sequence.max_length:
                    self.scheduler.finish(sequence)
                    self.open.remove(sequence)

    @invariant()
    def consistent(self):
        self.scheduler.check_integrity()
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.open)
        assert self.scheduler.num_running <= self.max_num_seqs
        used = sum(len(sequence.block_table) for sequence in self.open)
        assert self.scheduler.pool.num_used == used

    def teardown(self):
        # Everybody who was accepted ends: the total work bounds the number of steps.
        work = sum(sequence.max_length for sequence in self.open)
        steps = 0
        while self.open:
            self.step()
            steps += 1
            assert steps <= work * (1 + len(self.open)) + work
        if hasattr(self, "scheduler"):
            assert not self.scheduler.has_work
            assert self.scheduler.pool.num_used == 0


TestScheduler = SchedulerMachine.TestCase
