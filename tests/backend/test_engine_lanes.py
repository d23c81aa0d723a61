"""Who is served when: lanes, priorities, ageing, deadlines, and work that several wait for."""

import random

import pytest

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.request import Priority
from backend.scheduler.scheduler import QueueFullError, Scheduler
from backend.scheduler.sequence import Sequence, SequenceStatus


def scheduler(blocks=400, **options):
    options = {"max_num_seqs": 8, "max_tokens_per_step": 100, "long_prompt_tokens": 50, **options}
    return Scheduler(BlockPool(blocks), **options)


def sequence(number, prompt, answer=50, priority=Priority.NORMAL, **options):
    """Each with tokens of its own, so that no prefix is shared by chance."""
    return Sequence(number, [1000 + number] * prompt, prompt + answer, priority, **options)


def add(engine, *sequences, now=0.0):
    for each in sequences:
        each.arrived = now
        engine.add(each, now)


def run_step(engine, now=0.0, ends=()):
    """Return {sequence id: tokens} of one step; ``ends`` finish with it."""
    step = engine.schedule(now)
    engine.check_integrity()
    if step:
        engine.complete(step, [(2,) for scheduled in step if scheduled.samples], now)
    for each in step:
        if (
            each.sequence.sequence_id in ends
            or len(each.sequence.tokens) == each.sequence.max_length
        ):
            engine.finish(each.sequence)
    engine.check_integrity()
    return {each.sequence.sequence_id: each.num_tokens for each in step}


def test_short_prompts_pass_a_long_one_that_keeps_a_share_of_every_step():
    engine = scheduler()
    add(engine, sequence(0, 400))
    assert run_step(engine) == {0: 100}
    add(engine, sequence(1, 40), sequence(2, 45))
    # A quarter of the budget is the long one's; the third is short, and cut.
    assert run_step(engine) == {0: 25, 1: 40, 2: 35}
    assert run_step(engine) == {1: 1, 2: 10, 0: 89}
    assert run_step(engine) == {1: 1, 2: 1, 0: 98}


def test_long_prompts_are_computed_one_at_a_time():
    engine = scheduler()
    add(engine, sequence(0, 150), sequence(1, 150))
    assert run_step(engine) == {0: 100}
    # What the first leaves of a step is the second's.
    assert run_step(engine) == {0: 50, 1: 50}
    assert run_step(engine) == {0: 1, 1: 99}


def test_a_long_prompt_of_a_higher_priority_stops_one_of_a_lower():
    engine = scheduler()
    add(engine, sequence(0, 300, priority=Priority.LOW))
    assert run_step(engine) == {0: 100}
    add(engine, sequence(1, 150, priority=Priority.LOW), sequence(2, 150))
    assert run_step(engine) == {2: 100}
    assert run_step(engine) == {2: 50, 0: 50}
    assert run_step(engine) == {2: 1, 0: 99}


def test_a_stream_of_short_prompts_never_stops_a_long_one():
    engine = scheduler(max_wait=float("inf"))
    long_one = sequence(0, 1000)
    add(engine, long_one)
    steps = 0
    while long_one.num_pending_tokens > 1:
        steps += 1
        add(engine, *(sequence(steps * 10 + number, 45, answer=1) for number in range(3)))
        run_step(engine)
        assert steps <= 1000 // 25
    assert steps > 20


def test_a_long_prompt_gets_the_next_free_place_but_one():
    """Short ones would otherwise take every place that gets free, for ever."""
    engine = scheduler(max_num_seqs=2, max_wait=float("inf"))
    add(engine, sequence(0, 10), sequence(1, 10), sequence(2, 300))
    assert run_step(engine) == {0: 10, 2: 90}
    assert run_step(engine, ends={0}) == {0: 1, 2: 99}
    # While it is computed, others are for short ones.
    assert run_step(engine) == {1: 10, 2: 90}


def test_while_a_long_one_answers_short_ones_get_every_place_that_gets_free():
    """It has the place that was kept for long ones, though its prompt is computed by now."""
    engine = scheduler(max_num_seqs=2)
    add(engine, sequence(0, 60), sequence(1, 5))
    assert run_step(engine) == {0: 60, 1: 5}
    add(engine, sequence(2, 60), sequence(3, 5))
    assert run_step(engine, ends={1}) == {0: 1, 1: 1}
    assert run_step(engine, ends={3}) == {0: 1, 3: 5}
    assert run_step(engine, ends={0}) == {0: 1, 2: 60}
    add(engine, sequence(4, 60), sequence(5, 5))
    assert run_step(engine) == {2: 1, 5: 5}


def test_short_prompts_take_turns_with_those_that_are_overdue():
    """A burst of long ones that is worked off late would otherwise make everybody late."""
    engine = scheduler(max_num_seqs=1, max_wait=100.0)
    add(engine, *(sequence(number, 200) for number in range(3)))
    add(engine, *(sequence(number, 10) for number in range(3, 6)), now=90.0)
    order = []
    for now in range(150, 190):
        ran = run_step(engine, now=float(now), ends=set(range(6)))
        order += [number for number in ran if number not in order]
    assert order == [0, 3, 1, 4, 2, 5]


def test_size_is_what_is_not_cached():
    engine = scheduler()
    add(engine, first := sequence(0, 300))
    while first.status is not SequenceStatus.FINISHED:
        run_step(engine, ends={0} if first.num_pending_tokens <= 100 else ())
    again = Sequence(1, [1000] * 330, 400)
    add(engine, sequence(2, 400), again)
    # 304 tokens of the second are there, so it is a short one, and passes.
    assert run_step(engine) == {1: 42, 2: 58}
    assert again.num_cached_tokens == 288
    assert engine.cache.queries == 300 + 330 + 400
    assert engine.cache.hits == 288


def test_within_a_lane_priority_comes_before_arrival():
    engine = scheduler(max_num_seqs=1)
    add(engine, sequence(0, 10, priority=Priority.LOW), sequence(1, 10), sequence(2, 10))
    add(engine, sequence(3, 10, priority=Priority.HIGH))
    order = [next(iter(run_step(engine, ends=range(9)))) for _ in range(4)]
    assert order == [3, 1, 2, 0]


def test_whoever_is_overdue_comes_before_every_priority_and_lane():
    engine = scheduler(max_num_seqs=1, max_wait=10.0)
    add(engine, sequence(0, 200, priority=Priority.LOW), now=0.0)
    add(engine, sequence(1, 10, priority=Priority.HIGH), sequence(2, 10), now=5.0)
    assert run_step(engine, now=9.0, ends={1}) == {1: 10}
    assert run_step(engine, now=10.0) == {0: 100}
    assert run_step(engine, now=11.0, ends={0}) == {0: 100}
    assert run_step(engine, now=12.0) == {2: 10}


def test_an_overdue_one_that_lacks_blocks_lets_nobody_pass():
    engine = scheduler(blocks=10, max_wait=10.0)
    add(engine, sequence(0, 60, answer=20))
    run_step(engine)
    add(engine, sequence(1, 100, answer=1), sequence(2, 10, answer=1))
    assert 2 in run_step(engine, now=1.0)
    add(engine, sequence(3, 10, answer=1), now=2.0)
    assert run_step(engine, now=10.0, ends={0}) == {0: 1}
    assert run_step(engine, now=11.0) == {1: 100}
    assert 3 in run_step(engine, now=12.0)


def test_a_long_one_that_lacks_blocks_keeps_no_place_and_no_budget():
    engine = scheduler(blocks=11, max_num_seqs=3)
    add(engine, sequence(0, 60))
    run_step(engine)
    add(engine, sequence(1, 140, answer=1))
    run_step(engine)
    add(engine, sequence(2, 48, answer=1), sequence(3, 45, answer=1))
    assert run_step(engine) == {0: 1, 2: 48, 3: 45}


def test_a_newcomer_leaves_a_block_for_each_that_decodes():
    engine = scheduler(blocks=6)
    add(engine, sequence(0, 16, answer=30), sequence(1, 16, answer=30))
    run_step(engine)
    add(engine, sequence(2, 40, answer=1))
    # Four blocks are free before the first two grow into two of them.
    assert run_step(engine) == {0: 1, 1: 1}
    assert run_step(engine, ends={0}) == {0: 1, 1: 1}
    assert run_step(engine) == {1: 1, 2: 40}
    assert engine.num_preemptions == 0


def test_of_those_that_run_the_lowest_priority_is_preempted_then_the_least_work():
    engine = scheduler(blocks=7, max_wait=float("inf"))
    high, low = sequence(0, 16, priority=Priority.HIGH), sequence(1, 48, priority=Priority.LOW)
    much, little = sequence(2, 32), sequence(3, 16)
    add(engine, high, low, much, little)
    run_step(engine)
    # All are at the end of a block, and none is free.
    run_step(engine)
    assert low.status is SequenceStatus.WAITING
    assert {each.status for each in (high, much, little)} == {SequenceStatus.RUNNING}
    add(engine, sequence(4, 16, priority=Priority.HIGH))
    for _ in range(16):
        run_step(engine)
    assert little.status is SequenceStatus.WAITING
    assert much.status is SequenceStatus.RUNNING


def test_the_oldest_overdue_is_never_preempted_whatever_its_priority():
    engine = scheduler(blocks=5, max_wait=10.0)
    old = sequence(0, 16, answer=40, priority=Priority.LOW)
    add(engine, old)
    run_step(engine)
    add(engine, sequence(1, 30, answer=20, priority=Priority.HIGH), now=9.0)
    assert run_step(engine, now=9.0) == {0: 1, 1: 30}
    now = 10.0
    while len(old.tokens) < 50:
        run_step(engine, now=now)
        now += 0.1
        assert old.status is SequenceStatus.RUNNING
    assert engine.num_preemptions >= 1


def test_choices_of_one_request_compute_their_prompt_once():
    engine = scheduler()
    copies = [Sequence(number, [5] * 40, 60) for number in range(4)]
    add(engine, *copies)
    assert run_step(engine) == {0: 40}
    assert engine.num_waiting == 3
    assert run_step(engine) == {0: 1, 1: 8, 2: 8, 3: 8}
    assert [each.num_cached_tokens for each in copies] == [0, 32, 32, 32]


def test_a_burst_with_one_long_beginning_is_computed_once_and_is_short_then():
    engine = scheduler()
    burst = [Sequence(number, [5] * 320 + [100 + number] * 20, 400) for number in range(5)]
    add(engine, *burst)
    steps = [run_step(engine) for _ in range(4)]
    assert steps == [{0: 100}, {0: 100}, {0: 100}, {0: 40}]
    # Each has a beginning of 320 tokens to itself no longer.
    assert run_step(engine) == {0: 1, 1: 20, 2: 20, 3: 20, 4: 20}


def test_those_who_wait_for_shared_work_go_on_when_it_is_given_up():
    engine = scheduler()
    copies = [Sequence(number, [5] * 160, 200) for number in range(3)]
    add(engine, *copies)
    run_step(engine)
    engine.finish(copies[0])
    # What was computed of it is there; the next one computes the rest.
    assert run_step(engine) == {1: 64}
    assert copies[1].num_cached_tokens == 96
    assert run_step(engine) == {1: 1, 2: 16}


def test_nobody_waits_for_the_work_of_a_lower_priority():
    engine = scheduler()
    low, high = (
        Sequence(number, [5] * 400, 420, priority)
        for number, priority in enumerate((Priority.LOW, Priority.HIGH))
    )
    add(engine, low)
    assert run_step(engine) == {0: 100}
    add(engine, high)
    assert run_step(engine) == {1: 100}
    assert high.num_cached_tokens == 96


def test_who_waits_for_shared_work_may_leave():
    engine = scheduler()
    copies = [Sequence(number, [5] * 160, 200) for number in range(3)]
    add(engine, *copies)
    run_step(engine)
    run_step(engine)
    engine.finish(copies[1])
    engine.check_integrity()
    assert run_step(engine) == {0: 1, 2: 16}


def test_the_overdue_do_not_wait_for_shared_work():
    engine = scheduler(max_wait=10.0)
    copies = [Sequence(number, [5] * 400, 420) for number in range(2)]
    add(engine, *copies)
    assert run_step(engine, now=0.0) == {0: 100}
    assert run_step(engine, now=10.0) == {0: 100}
    assert engine.num_running == 1
    engine.finish(copies[0])
    assert run_step(engine, now=11.0) == {1: 100}


def test_prompts_that_share_with_nobody_of_their_salt_wait_for_nobody():
    engine = scheduler()
    add(engine, *(Sequence(number, [5] * 40, 60, cache_salt=str(number)) for number in range(2)))
    assert run_step(engine) == {0: 40, 1: 40}


def test_a_sequence_that_must_see_all_its_prompt_reads_no_cache_but_fills_it():
    engine = scheduler()
    first = Sequence(0, [5] * 40, 60, reads_cache=False)
    second = Sequence(1, [5] * 40, 60, reads_cache=False)
    third = Sequence(2, [5] * 40, 60)
    add(engine, first, second)
    assert run_step(engine) == {0: 40, 1: 40}
    add(engine, third)
    assert run_step(engine) == {0: 1, 1: 1, 2: 8}
    assert engine.cache.hits == 32


def test_a_full_queue_says_when_to_come_again():
    engine = scheduler(max_num_seqs=1, max_waiting=2)
    add(engine, sequence(0, 10), sequence(1, 10))
    with pytest.raises(QueueFullError, match="2 sequences wait already") as first:
        engine.add(sequence(2, 10), 0.0)
    assert first.value.retry_after == 1.0
    for step, now in enumerate((5.0, 10.0, 15.0)):
        run_step(engine, now=now, ends=range(99))
        add(engine, sequence(10 + step, 10), now=now)
    with pytest.raises(QueueFullError) as later:
        engine.add_all([sequence(20, 10), sequence(21, 10)], 20.0)
    # One was admitted every five seconds, and two wait.
    assert later.value.retry_after == pytest.approx(10.0)
    assert engine.num_waiting == 2


def test_deadlines_end_the_wait_for_the_first_step_and_nothing_else():
    engine = scheduler(max_num_seqs=1)
    running, late, patient = (
        sequence(0, 10, deadline=1.0),
        sequence(1, 10, deadline=2.0),
        sequence(2, 10),
    )
    add(engine, running, late, patient)
    run_step(engine)
    assert engine.expire(1.5) == ()
    assert engine.expire(2.0) == (late,)
    assert late.status is SequenceStatus.FINISHED
    assert engine.expire(99.0) == ()
    assert (engine.num_running, engine.num_waiting) == (1, 1)


def test_a_preempted_sequence_does_not_expire():
    engine = scheduler(blocks=2)
    add(engine, sequence(0, 16, answer=10), sequence(1, 16, answer=10, deadline=1.0))
    run_step(engine)
    run_step(engine)
    assert engine.num_preemptions == engine.num_waiting == 1
    assert engine.expire(5.0) == ()


def arrivals(rng, number, seconds, long_share):
    """Lengths are about those of the Azure trace of 2023, a quarter as long."""
    at = 0.0
    for index in range(number):
        at += rng.expovariate(number / seconds)
        if rng.random() < long_share:
            prompt = rng.randrange(1500, 2500)
        else:
            prompt = max(10, min(int(rng.lognormvariate(4.6, 0.8)), 400))
        yield at, sequence(index, prompt, max(1, int(rng.lognormvariate(3.5, 0.7))))


def simulate(engine, requests):
    """Return the TTFT of every request, in seconds; steps take what they would on a small GPU."""
    now, first_token, waiting = 0.0, {}, list(requests)
    prompts = {each.sequence_id: (at, each.num_prompt_tokens) for at, each in waiting}
    waiting.reverse()
    while waiting or engine.has_work:
        if not engine.has_work:
            now = max(now, waiting[-1][0])
        while waiting and waiting[-1][0] <= now:
            at, each = waiting.pop()
            each.arrived = at
            engine.add(each, now)
        step = engine.schedule(now)
        now += 0.004 + 0.00002 * sum(each.num_tokens for each in step)
        engine.complete(step, [(2,) for each in step if each.samples], now)
        for scheduled in step:
            if scheduled.samples:
                first_token.setdefault(scheduled.sequence.sequence_id, now)
            if len(scheduled.sequence.tokens) == scheduled.sequence.max_length:
                engine.finish(scheduled.sequence)
    return [(prompt, first_token[number] - at) for number, (at, prompt) in sorted(prompts.items())]


def p99(values):
    return sorted(values)[int(0.99 * len(values))]


@pytest.mark.parametrize("seed", [1, 2])
def test_short_prompts_among_long_ones_wait_a_fifth_of_what_they_do_first_come_first_served(seed):
    def run(**options):
        engine = Scheduler(BlockPool(6000), max_num_seqs=64, max_tokens_per_step=512, **options)
        return simulate(engine, arrivals(random.Random(seed), 1000, 13.0, 0.12))

    served = run(long_prompt_tokens=10**9, max_wait=float("inf"))
    lanes = run(long_prompt_tokens=400)
    short = [p99([ttft for prompt, ttft in each if prompt <= 400]) for each in (served, lanes)]
    assert short[0] > 5 * short[1]
    # Long ones pay for it, within bounds.
    longest = [max(ttft for _, ttft in each) for each in (served, lanes)]
    assert longest[1] < 3 * longest[0]
