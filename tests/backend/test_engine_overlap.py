"""Steps in flight: what may be scheduled before the last step's tokens are known, and when blocks
are free."""

import pytest
from simulated_device import RandomDrafter

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.request import Grammar, GrammarKind, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import Sequence, SequenceStatus


def scheduler(blocks=20, **options):
    options = {"max_num_seqs": 4, "max_tokens_per_step": 64, **options}
    return Scheduler(BlockPool(blocks), **options)


def sequence(number, prompt, answer=20, **options):
    return Sequence(number, [100 + number] * prompt, prompt + answer, **options)


def numbers(step):
    return [(each.sequence.sequence_id, each.start, each.num_tokens, each.samples) for each in step]


def complete(engine, step, token=7):
    engine.complete(step, [(token,) for each in step if each.samples], 0.0)
    engine.check_integrity()


def started(engine, *sequences):
    """Launch the first step of ``sequences``."""
    for each in sequences:
        engine.add(each, 0.0)
    return engine.schedule(0.0)


def test_a_step_counts_on_the_token_of_the_step_before_without_knowing_it():
    engine, one = scheduler(), sequence(0, 5)
    first = started(engine, one)
    second = engine.schedule(0.0)
    assert numbers(first) == [(0, 0, 5, True)]
    assert numbers(second) == [(0, 5, 1, True)]
    assert (one.tokens, one.num_unseen_tokens, one.length) == ([100] * 5, 2, 7)
    complete(engine, first, token=1)
    assert (one.tokens[5:], one.num_unseen_tokens) == ([1], 1)
    third = engine.schedule(0.0)
    complete(engine, second, token=2)
    complete(engine, third, token=3)
    assert (one.tokens[5:], one.num_unseen_tokens, one.num_computed_tokens) == ([1, 2, 3], 0, 7)


def test_chunks_of_a_prompt_follow_each_other_without_waiting():
    engine = scheduler(max_tokens_per_step=10)
    first = started(engine, sequence(0, 25))
    assert numbers((*first, *engine.schedule(0.0))) == [(0, 0, 10, False), (0, 10, 10, False)]


def test_no_more_than_two_steps_are_in_flight():
    engine = scheduler()
    started(engine, sequence(0, 5))
    engine.schedule(0.0)
    assert engine.num_steps_in_flight == 2
    with pytest.raises(RuntimeError, match="2 steps are in flight"):
        engine.schedule(0.0)


def test_steps_are_completed_in_order_and_once():
    engine = scheduler()
    first = started(engine, sequence(0, 5))
    second = engine.schedule(0.0)
    with pytest.raises(ValueError, match="not the oldest"):
        engine.complete(second, [(7,)], 0.0)
    complete(engine, first)
    with pytest.raises(ValueError, match="not the oldest"):
        engine.complete(first, [(7,)], 0.0)


def test_a_sequence_at_its_last_token_is_not_scheduled_past_it():
    engine, one = scheduler(), sequence(0, 5, answer=2)
    first = started(engine, one)
    second = engine.schedule(0.0)
    complete(engine, first)
    assert engine.schedule(0.0) == ()
    complete(engine, second)
    assert len(one.tokens) == one.max_length
    assert engine.schedule(0.0) == ()
    engine.finish(one)
    assert not engine.has_work


@pytest.mark.parametrize("sampling", [SamplingParams(grammar=Grammar(GrammarKind.JSON_OBJECT))])
def test_who_needs_its_history_waits_for_it_while_others_go_on(sampling):
    engine = scheduler()
    first = started(engine, sequence(0, 5, sampling=sampling), sequence(1, 5))
    second = engine.schedule(0.0)
    assert numbers(second) == [(1, 5, 1, True)]
    complete(engine, first)
    assert numbers(engine.schedule(0.0)) == [(0, 5, 1, True), (1, 6, 1, True)]


def test_blocks_of_a_finished_sequence_are_free_when_the_last_step_that_writes_them_is_over():
    engine, one = scheduler(), sequence(0, 20)
    first = started(engine, one)
    second = engine.schedule(0.0)
    engine.finish(one)
    assert one.status is SequenceStatus.ENDING
    engine.check_integrity()
    complete(engine, first)
    engine.finish(one)
    assert (one.status, engine.pool.num_used) == (SequenceStatus.ENDING, 2)
    complete(engine, second)
    assert (one.status, engine.pool.num_used) == (SequenceStatus.FINISHED, 0)
    assert one.tokens == [100] * 20
    assert engine.num_tokens_after_end == 21
    assert not engine.has_work


def test_a_sequence_that_ended_with_one_step_ignores_the_next():
    engine, one, other = scheduler(), sequence(0, 5), sequence(1, 5)
    first = started(engine, one, other)
    second = engine.schedule(0.0)
    complete(engine, first, token=1)
    engine.finish(one)
    complete(engine, second, token=2)
    assert (one.tokens[5:], other.tokens[5:]) == ([1], [1, 2])
    assert one.status is SequenceStatus.FINISHED


def test_a_prefix_is_found_only_once_its_step_is_completed():
    engine = scheduler()
    first = started(engine, sequence(0, 32))
    engine.add(Sequence(1, [100] * 40, 60), 0.0)
    second = engine.schedule(0.0)
    assert [number for number, *_ in numbers(second)] == [0]
    complete(engine, first)
    assert (1, 32, 8, True) in numbers(engine.schedule(0.0))


def test_a_preempted_sequence_keeps_the_token_that_was_on_its_way():
    engine = scheduler(blocks=3)
    old, young = sequence(0, 16), sequence(1, 16)
    first = started(engine, old, young)
    # Both need a second block and there is one.
    second = engine.schedule(0.0)
    assert numbers(second) == [(0, 16, 1, True)]
    assert (young.status, len(young.block_table)) == (SequenceStatus.PREEMPTING, 1)
    engine.check_integrity()
    complete(engine, first, token=5)
    assert (young.status, young.tokens[16:]) == (SequenceStatus.WAITING, [5])
    complete(engine, second)
    engine.finish(old)
    assert numbers(engine.schedule(0.0)) == [(1, 16, 1, True)]


def test_blocks_of_a_victim_that_are_still_written_are_waited_for_a_step():
    engine = scheduler(blocks=2)
    old, young = sequence(0, 16, answer=10), sequence(1, 16, answer=10)
    first = started(engine, old, young)
    assert engine.schedule(0.0) == ()
    assert young.status is SequenceStatus.PREEMPTING
    complete(engine, first)
    assert numbers(engine.schedule(0.0)) == [(0, 16, 1, True)]
    assert engine.num_preemptions == 1


def test_a_sequence_may_end_while_it_is_being_preempted():
    engine = scheduler(blocks=2)
    old, young = sequence(0, 16, answer=10), sequence(1, 16, answer=10)
    first = started(engine, old, young)
    engine.schedule(0.0)
    engine.finish(young)
    assert young.status is SequenceStatus.ENDING
    complete(engine, first)
    assert (young.status, engine.num_waiting) == (SequenceStatus.FINISHED, 0)


def test_several_tokens_where_a_later_step_counts_on_one_are_refused():
    engine = scheduler()
    first = started(engine, sequence(0, 5))
    engine.schedule(0.0)
    with pytest.raises(ValueError, match="2 new tokens for sequence 0"):
        engine.complete(first, [(1, 2)], 0.0)


@pytest.mark.parametrize("sampled", [[(1,)], [(1,), (2,), (3,)]])
def test_a_step_with_too_few_or_too_many_samples_is_refused_before_anything_changes(sampled):
    engine, one = scheduler(), sequence(0, 5)
    first = started(engine, one, sequence(1, 5))
    with pytest.raises(ValueError, match="2 sequences sample"):
        engine.complete(first, sampled, 0.0)
    assert one.num_unseen_tokens == 1
    complete(engine, first)


def test_a_failed_step_ends_its_sequences_and_no_others_and_publishes_nothing():
    engine = scheduler(max_num_seqs=1)
    one, other = sequence(0, 16), sequence(1, 5)
    first = started(engine, one, other)
    assert engine.fail(first) == (one,)
    assert one.status is SequenceStatus.FINISHED
    engine.check_integrity()
    assert len(engine.cache) == 0
    assert numbers(engine.schedule(0.0)) == [(1, 0, 5, True)]


def test_a_failed_step_with_another_in_flight_drains_before_blocks_are_free():
    engine, one = scheduler(), sequence(0, 20)
    first = started(engine, one)
    second = engine.schedule(0.0)
    assert engine.fail(first) == (one,)
    assert (one.status, engine.pool.num_used) == (SequenceStatus.ENDING, 2)
    assert engine.fail(second) == ()
    assert (one.status, engine.pool.num_used) == (SequenceStatus.FINISHED, 0)
    assert sorted(engine.pool.take_to_erase()) == [1, 2]


def test_the_younger_step_may_fail_first():
    """Launching it raised while the older one was still computing."""
    engine, one, other = scheduler(), sequence(0, 5), sequence(1, 5)
    first = started(engine, one)
    engine.add(other, 0.0)
    second = engine.schedule(0.0)
    assert engine.fail(second) == (one, other)
    complete(engine, first)
    assert not engine.has_work
    assert engine.pool.num_used == 0


def test_a_step_taken_back_comes_again_and_its_prompts_are_prompts():
    engine, one, other = scheduler(max_tokens_per_step=20), sequence(0, 5), sequence(1, 16)
    complete(engine, started(engine, one))
    engine.add(other, 0.0)
    step = engine.schedule(0.0)
    engine.take_back(step)
    engine.check_integrity()
    assert numbers(engine.schedule(0.0)) == numbers(step) == [(0, 5, 1, True), (1, 0, 16, True)]
    assert (one.num_unseen_tokens, other.num_unseen_tokens) == (1, 1)


def test_a_prompt_of_one_token_is_a_prompt_again_when_its_step_is_taken_back():
    engine, one = scheduler(drafter=RandomDrafter(0)), sequence(0, 1)
    for _ in range(20):  # and never has drafts, which only an answer has
        step = started(engine, *() if one.slot >= 0 else (one,))
        assert numbers(step) == [(0, 0, 1, True)]
        engine.take_back(step)


def test_a_sequence_may_end_before_its_step_is_taken_back():
    engine, one = scheduler(), sequence(0, 5)
    step = started(engine, one)
    engine.finish(one)
    engine.take_back(step)
    engine.check_integrity()
    assert (one.status, engine.pool.num_used) == (SequenceStatus.FINISHED, 0)
    with pytest.raises(ValueError, match="not the newest"):
        engine.take_back(step)


def test_what_is_not_finite_is_finished_forgotten_and_erased():
    engine = scheduler(max_tokens_per_step=20)
    one = sequence(0, 36)
    first = started(engine, one)
    complete(engine, first)
    assert len(engine.cache) == 1
    second = engine.schedule(0.0)
    engine.complete(second, [None], 0.0)
    engine.check_integrity()
    assert one.status is SequenceStatus.FINISHED
    assert len(engine.cache) == 0
    assert sorted(engine.pool.take_to_erase()) == [1, 2, 3]


def test_who_shares_a_block_with_what_was_not_finite_goes_on_and_it_is_erased_later():
    engine = scheduler()
    one, other = sequence(0, 20), Sequence(1, [100] * 20, 40)
    complete(engine, started(engine, one))
    step = started(engine, other)
    assert one.block_table[0] == other.block_table[0]
    engine.complete(step, [None if each.sequence is one else (7,) for each in step], 0.0)
    assert other.status is SequenceStatus.RUNNING
    assert other.block_table[0] not in engine.pool.take_to_erase()
    engine.finish(other)
    assert 1 in engine.pool.take_to_erase()
