"""The scheduler under random arrivals, aborts, preemptions, hits, crashes, drafts and endings.

After every step: no block is lost, owned twice or read before it holds what its reader expects; the
budget is kept; the oldest overdue sequence advances, so that nobody starves.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_device import GuessingDrafter, RandomDrafter, SimulatedDevice

from backend.scheduler.block_pool import BlockPool, blocks_for
from backend.scheduler.cache_events import BlockRemoved, EventLog
from backend.scheduler.prefix_cache import PrefixCache
from backend.scheduler.request import Grammar, GrammarKind, Priority, SamplingParams
from backend.scheduler.scheduler import NeverFitsError, QueueFullError, Scheduler
from backend.scheduler.sequence import Sequence, SequenceStatus
from backend.scheduler.snapshots import Snapshots
from backend.scheduler.tiers import Tiers

MAX_WAIT = 25.0
MAX_WAITING = 12
END = 99
PLAIN = SamplingParams()
PENALISED = SamplingParams(presence_penalty=0.5)
CONSTRAINED = SamplingParams(grammar=Grammar(GrammarKind.JSON_OBJECT))


requests = st.fixed_dictionaries(
    {
        "document": st.integers(0, 2),
        "shared": st.integers(0, 80),
        "own": st.integers(1, 30),
        "answer": st.integers(1, 40),
        "priority": st.sampled_from(Priority),
        "salt": st.sampled_from(["", "", "other"]),
        "copies": st.integers(1, 3),
        "patience": st.none() | st.floats(0, 40),
        "sampling": st.sampled_from([PLAIN, PLAIN, PENALISED, CONSTRAINED]),
        "ends_at": st.integers(0, 60),
        "reads_cache": st.sampled_from([True, True, True, False]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Plays the engine's loop, its clients and a device that fails now and then."""

    @initialize(
        num_blocks=st.integers(1, 14),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 60),
        long_prompt_tokens=st.integers(0, 60),
        drafts=st.none() | st.integers(0, 2**20),
        guesses=st.booleans(),
        tiers=st.none() | st.tuples(st.integers(0, 8), st.integers(0, 8)),
        snapshots=st.none() | st.integers(0, 9),
    )
    def start(
        self,
        *,
        num_blocks,
        max_num_seqs,
        spare_budget,
        long_prompt_tokens,
        drafts,
        guesses,
        tiers,
        snapshots,
    ):
        if snapshots is not None:  # states cannot go back, and tiers have none
            drafts = tiers = None
            snapshots = Snapshots(snapshots)
        self.budget = max_num_seqs + spare_budget
        self.max_num_seqs = max_num_seqs
        pool = BlockPool(num_blocks)
        self.events = EventLog(10_000)
        if tiers is not None:
            tiers = Tiers(host_blocks=tiers[0], disk_blocks=tiers[1])
        self.cache = PrefixCache(pool, events=self.events, tiers=tiers, snapshots=snapshots)
        drafter = None
        if drafts is not None:
            drafter = GuessingDrafter(drafts, num_blocks) if guesses else RandomDrafter(drafts)
        self.scheduler = Scheduler(
            pool,
            drafter=drafter,
            max_num_seqs=max_num_seqs,
            max_tokens_per_step=self.budget,
            cache=self.cache,
            max_waiting=MAX_WAITING,
            max_wait=MAX_WAIT,
            long_prompt_tokens=long_prompt_tokens,
        )
        self.device = SimulatedDevice(self.scheduler, drafter)
        self.open: list[Sequence] = []
        self.loads_a_step = 2
        self.turns = 0
        self.arrivals = 0
        self.published: set[bytes] = set()

    @rule(asked=requests)
    def arrive(self, asked):
        """Prompts share the beginnings of a few documents, answers are alike between copies."""
        document = asked["document"]
        prompt = [document] * asked["shared"] + [10 + document] * asked["own"]
        length = len(prompt) + asked["answer"]
        patience = asked["patience"]
        for copy in range(asked["copies"]):
            sequence = Sequence(
                self.arrivals,
                list(prompt),
                length,
                asked["priority"],
                deadline=None if patience is None else self.device.now + patience,
                sampling=asked["sampling"],
                end_token_ids=frozenset({END}),
                cache_salt=asked["salt"],
                reads_cache=asked["reads_cache"],
            )
            self.arrivals += 1
            fits = blocks_for(length - 1) <= self.scheduler.pool.num_blocks
            full = self.scheduler.num_waiting >= MAX_WAITING  # the preempted wait too
            try:
                answer = [20 + copy % 2] * asked["answer"]
                if asked["ends_at"] < len(answer):
                    answer[asked["ends_at"]] = END
                self.device.add(sequence, answer)
            except NeverFitsError:
                assert not fits
            except QueueFullError:
                assert fits
                assert full
            else:
                assert fits
                assert not full
                self.open.append(sequence)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        sequence = data.draw(st.sampled_from(self.open))
        for _ in range(2):
            self.scheduler.finish(sequence)
            busy = sequence.num_steps_in_flight or sequence.num_loads_in_flight
            over = SequenceStatus.ENDING if busy else None
            assert sequence.status is (over or SequenceStatus.FINISHED)
            assert bool(sequence.block_table) == bool(over)
        self.open.remove(sequence)

    @rule()
    def expire(self):
        waited = {each for each in self.open if each.admitted is None}
        late = set(self.scheduler.expire(self.device.now))
        now = self.device.now
        assert late == {
            each for each in waited if each.deadline is not None and each.deadline <= now
        }
        self.open = [each for each in self.open if each not in late]

    @precondition(lambda self: self.open)
    @rule(times=st.integers(1, 25), overlap=st.booleans())
    def steps(self, times, overlap):
        for _ in range(times):
            if self.open:
                self.step(overlap=overlap)

    @precondition(lambda self: self.device.tiers.pending)
    @rule(data=st.data(), succeeds=st.booleans())
    def end_load(self, data, succeeds):
        block = data.draw(st.sampled_from(sorted(self.device.tiers.pending)))
        self.scheduler.take_in(self.device.tiers.end(block, succeeds=succeeds))

    @precondition(lambda self: any(self.device.tiers.held.values()))
    @rule(data=st.data())
    def lose_save(self, data):
        held = self.device.tiers.held
        source = data.draw(st.sampled_from([each for each in held if held[each]]))
        digest = data.draw(st.sampled_from(sorted(held[source])))
        self.scheduler.take_in(self.device.tiers.lose(source, digest))

    @precondition(lambda self: self.open and len(self.device.in_flight) < 2)
    @rule()
    def launch_in_vain(self):
        if self.launch():
            self.device.take_back()

    @precondition(lambda self: self.device.in_flight)
    @rule()
    def crash(self):
        step = self.device.in_flight[0][0]
        ended = set(self.device.crash())
        assert ended == {each.sequence for each in step if each.sequence in self.open}
        self.open = [each for each in self.open if each not in ended]

    @precondition(lambda self: self.device.in_flight)
    @rule(data=st.data())
    def not_finite(self, data):
        sampling = [each.sequence for each in self.device.in_flight[0][0] if each.samples]
        if sampling:
            sequence = data.draw(st.sampled_from(sampling))
            self.device.collect({sequence})
            assert sequence.status in {SequenceStatus.ENDING, SequenceStatus.FINISHED}
            self.forget_ended()

    def step(self, *, overlap):
        oldest = min(self.open, key=lambda each: (each.arrived, each.sequence_id))
        overdue = self.device.now - oldest.arrived >= MAX_WAIT
        standing = oldest.status, oldest.num_computed_tokens
        running = [each for each in self.open if each.status is SequenceStatus.RUNNING]
        preemptions = self.scheduler.num_preemptions
        while len(self.device.in_flight) > overlap:
            self.device.collect()
            self.forget_ended()
        in_flight = len(self.device.in_flight)
        decoding = set(self.scheduler._running.decoding)  # known from outside by its effect alone
        step = self.launch()
        sequences = [scheduled.sequence for scheduled in step]
        assert len(set(sequences)) == len(sequences) <= self.max_num_seqs
        assert sum(scheduled.num_tokens for scheduled in step) <= self.budget
        assert all(each in self.open for each in sequences)
        loading = bool(self.device.tiers.pending)
        assert step or in_flight or loading or not self.open, "somebody is left unserved"
        if overdue and standing[0] is SequenceStatus.RUNNING:
            assert oldest.status is SequenceStatus.RUNNING or oldest not in self.open
        served = not in_flight and not loading
        if overdue and served and oldest in running and oldest in self.open:
            assert oldest in sequences
        if self.scheduler.num_preemptions == preemptions and not in_flight:
            assert decoding <= {*sequences}
        for block in list(self.device.tiers.pending)[: self.loads_a_step]:
            self.scheduler.take_in(self.device.tiers.end(block))
        if self.device.in_flight and (len(self.device.in_flight) > overlap or not step):
            self.device.collect()
            self.forget_ended()

    def launch(self):
        waiting = [each for each in self.open if each.status is SequenceStatus.WAITING]
        step = self.device.launch()
        self.scheduler.check_integrity()
        left = [each for each in self.open if each.status is SequenceStatus.WAITING]
        self.check_turns(set(waiting) - set(left), [each for each in left if each in waiting])
        return step

    def check_turns(self, admitted, left):
        """Whoever is overdue is passed once at most for each overdue one that is admitted."""
        passing = [each for each in admitted if any(self.comes_before(one, each) for one in left)]
        assert len(passing) <= 1
        self.turns += sum(self.device.now - each.arrived >= MAX_WAIT for each in admitted)
        self.turns -= len(passing)
        assert self.turns >= 0

    def comes_before(self, one, other):
        """``one`` is overdue and older."""
        is_overdue = self.device.now - one.arrived >= MAX_WAIT
        return is_overdue and one.sequence_id < other.sequence_id

    def forget_ended(self):
        over = {SequenceStatus.ENDING, SequenceStatus.FINISHED}
        self.open = [each for each in self.open if each.status not in over]

    @invariant()
    def consistent(self):
        self.scheduler.check_integrity()
        held = {block for each in self.open for block in each.block_table}
        if not self.device.in_flight and not self.device.tiers.pending:
            assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.open)
            assert self.scheduler.pool.num_used == len(held)
        assert self.scheduler.num_running <= self.max_num_seqs

    @invariant()
    def events_tell_what_can_be_found(self):
        for event in (event for batch in self.events.take() for event in batch.events):
            if isinstance(event, BlockRemoved):
                self.published.remove(event.digest)
            else:
                assert not self.published & set(event.digests)
                self.published |= set(event.digests)
        assert len(self.published) == len(self.cache)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        # Everybody is overdue at last, and then served by age: that bounds the number of steps.
        bound = MAX_WAIT + sum(3 * sequence.max_length + 5 for sequence in self.open)
        steps = 0
        while self.open:
            self.step(overlap=bool(steps % 3))
            steps += 1
            assert steps <= bound
        self.device.drain()
        for block in list(self.device.tiers.pending):
            self.scheduler.take_in(self.device.tiers.end(block))
        self.scheduler.check_integrity()
        assert not self.scheduler.has_work
        assert self.scheduler.pool.num_used == 0


TestScheduler = SchedulerMachine.TestCase
