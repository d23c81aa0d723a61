import pytest

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.request import Priority
from backend.scheduler.scheduler import NeverFitsError, Scheduler
from backend.scheduler.sequence import Sequence, SequenceStatus


def scheduler(blocks=100, max_num_seqs=8, budget=64):
    return Scheduler(BlockPool(blocks), max_num_seqs=max_num_seqs, max_tokens_per_step=budget)


def sequence(number, prompt, answer=50, priority=Priority.NORMAL, **options):
    """Each with tokens of its own, so that no prefix is shared by chance."""
    return Sequence(number, [1000 + number] * prompt, prompt + answer, priority, **options)


def run_step(engine, now=0.0):
    """Return {sequence id: tokens} of one step, computed and sampled."""
    step = engine.schedule(now)
    engine.check_integrity()
    complete(engine, step, now)
    return planned(step)


def planned(step):
    return {scheduled.sequence.sequence_id: scheduled.num_tokens for scheduled in step}


def complete(engine, step, now=0.0):
    if step:
        engine.complete(step, [(2,) for scheduled in step if scheduled.samples], now)
    engine.check_integrity()


def test_a_long_prompt_is_computed_in_chunks_while_others_decode():
    engine = scheduler(budget=20)
    engine.add(sequence(0, 4), 0.0)
    assert run_step(engine) == {0: 4}
    engine.add(sequence(1, 50), 0.0)
    assert run_step(engine) == {0: 1, 1: 19}
    assert run_step(engine) == {0: 1, 1: 19}
    assert run_step(engine) == {0: 1, 1: 12}
    assert run_step(engine) == {0: 1, 1: 1}


def test_sequences_join_and_leave_at_every_step():
    engine = scheduler(max_num_seqs=2)
    first, second, third = (sequence(number, 3) for number in range(3))
    for each in (first, second, third):
        engine.add(each, 0.0)
    assert run_step(engine) == {0: 3, 1: 3}
    engine.finish(first)
    assert run_step(engine) == {1: 1, 2: 3}


def test_the_latest_arrival_is_preempted_and_readmitted_before_newcomers():
    engine = scheduler(blocks=3)
    old, young = sequence(0, 16, answer=20), sequence(1, 16, answer=20)
    engine.add(old, 0.0)
    engine.add(young, 0.0)
    assert run_step(engine) == {0: 16, 1: 16}
    engine.add(sequence(2, 16, answer=20), 0.0)
    # Both need a second block and one is left: the younger gives way.
    assert run_step(engine) == {0: 1}
    assert young.status is SequenceStatus.WAITING
    assert young.num_computed_tokens == 0
    assert len(young.tokens) == 17
    assert engine.num_preemptions == 1
    engine.finish(old)
    # What was computed of it is still there, but for the last token.
    assert list(run_step(engine).items()) == [(1, 1), (2, 16)]


def test_those_of_a_higher_priority_are_admitted_first():
    engine = scheduler(max_num_seqs=1)
    lanes = (Priority.LOW, Priority.NORMAL, Priority.HIGH) * 2
    waiting = [sequence(number, 3, priority=lane) for number, lane in enumerate(lanes)]
    for each in waiting:
        engine.add(each, 0.0)
    order = []
    while engine.has_work:
        [running] = run_step(engine)
        order.append(running)
        engine.finish(waiting[running])
    assert order == [2, 5, 1, 4, 0, 3]


def test_the_lower_priority_is_preempted_whoever_came_first():
    engine = scheduler(blocks=2)
    engine.add(sequence(0, 16, answer=10, priority=Priority.LOW), 0.0)
    engine.add(sequence(1, 16, answer=10, priority=Priority.HIGH), 0.0)
    assert run_step(engine) == {0: 16, 1: 16}
    # Both need a second block and there is none.
    assert run_step(engine) == {1: 1}


def test_a_sequence_that_can_never_fit_is_refused_and_not_queued():
    engine = scheduler(blocks=2)
    with pytest.raises(NeverFitsError, match="34 tokens need 3 KV blocks of the 2"):
        engine.add(sequence(0, 4, answer=30), 0.0)
    assert not engine.has_work
    engine.add(sequence(1, 3, answer=30), 0.0)
    assert run_step(engine) == {1: 3}


def test_finishing_twice_frees_once():
    engine = scheduler()
    running, waiting = sequence(0, 5), sequence(1, 5)
    engine.add(running, 0.0)
    run_step(engine)
    engine.add(waiting, 0.0)
    for each in (running, waiting, running, waiting):
        engine.finish(each)
    assert engine.pool.num_used == 0
    assert not engine.has_work
    assert engine.schedule(0.0) == ()


@pytest.mark.parametrize(("seqs", "budget"), [(0, 5), (6, 5)])
def test_limits_that_contradict_each_other_are_refused(seqs, budget):
    with pytest.raises(ValueError, match="max_num_seqs"):
        scheduler(max_num_seqs=seqs, budget=budget)
