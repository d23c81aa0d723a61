"""Drafts: which sequences have some, when that pays, and what the scheduler does then."""

import random

import pytest
from simulated_device import GuessingDrafter, RandomDrafter, SimulatedDevice

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.drafts import MOST_DRAFTS, MOST_ROWS, Drafter
from backend.scheduler.prompt_lookup import PromptLookup
from backend.scheduler.request import Grammar, GrammarKind, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import ScheduledSequence, Sequence, SequenceStatus


def copying(drafter, number=0, prompt=20, answer=100, rate=1.0, **options):
    """A sequence that has repeated two tokens for a while and decodes now."""
    sequence = Sequence(number, [1, 2] * (prompt // 2), prompt + answer, **options)
    sequence.tokens += [1, 2]
    sequence.num_computed_tokens = len(sequence.tokens) - 1
    lookup = drafter.lookups[sequence] = PromptLookup()
    lookup.follow(sequence.tokens)
    lookup.rate = rate
    return sequence


def row(sequence):
    return ScheduledSequence(sequence, sequence.num_computed_tokens, 1, samples=True)


def num_proposed(drafter, num_rows=1, rate=1.0):
    rows = [row(copying(drafter, n, rate=rate)) for n in range(num_rows)]
    proposed = drafter.propose(rows, overlapped=False)
    assert len(proposed) in (0, num_rows)
    return sum(map(len, proposed.values()))


def observed(num_rows, num_drafts=0, factor=1.0, drafter=None, times=3):
    drafter = drafter or Drafter()
    for _ in range(times):
        drafter.observe(num_rows, num_drafts, num_rows, 0.010 * factor)
    return drafter


def test_steps_without_drafts_are_seen_first_and_then_one_with_them():
    drafter = Drafter()
    for _ in range(3):
        assert num_proposed(drafter) == 0
        drafter.observe(1, 0, 1, 0.010)
    assert num_proposed(drafter) == MOST_DRAFTS
    assert num_proposed(drafter, 2) == 0  # of so many rows nothing is known


@pytest.mark.parametrize(
    ("num_rows", "rate", "expected"),
    [(1, 0.6, 0), (1, 0.8, 8), (1, 0.95, 13), (4, 0.8, 32), (16, 0.8, 0), (16, 0.97, 256)],
)
def test_until_drafts_were_measured_they_must_promise_much(num_rows, rate, expected):
    assert num_proposed(observed(num_rows), num_rows, rate) == expected


@pytest.mark.parametrize(
    ("num_rows", "rate", "factor", "expected"),
    [
        (1, 0.7, 2.0, True),
        (1, 0.7, 3.0, False),
        (1, 0.49, 1.01, False),
        (4, 0.9, 4.0, True),
        (4, 0.9, 6.0, False),
        (15, 0.9, 2.0, True),
        (15, 0.9, 3.5, False),
    ],
)
def test_drafts_are_made_where_tokens_come_faster_with_them(num_rows, rate, factor, expected):
    drafter = observed(num_rows)
    for num_drafts in range(1, num_rows * MOST_DRAFTS + 1):
        observed(num_rows, num_drafts, factor, drafter)
    assert bool(num_proposed(drafter, num_rows, rate)) is expected


def test_a_slow_moment_of_the_machine_decides_nothing():
    drafter = observed(1)
    observed(1, MOST_DRAFTS, 2.0, drafter)
    observed(1, MOST_DRAFTS, 50.0, drafter, times=7)
    assert num_proposed(drafter) == MOST_DRAFTS


def test_where_drafts_do_not_pay_three_steps_try_again_after_a_pause():
    drafter, trials = observed(1), []
    for step in range(1400):
        num_drafts = num_proposed(drafter)
        if num_drafts:
            trials.append(step)
        drafter.observe(1, num_drafts, 1, 0.300 if num_drafts else 0.010)
    assert trials == [0, 1, 2, 516, 517, 518, 1032, 1033, 1034]


def test_large_batches_are_not_looked_at():
    drafter = Drafter()
    assert drafter.is_open(4)
    assert not drafter.is_open(MOST_ROWS + 1)


@pytest.mark.parametrize(("tokens", "seconds", "pays"), [(24, 0.011, True), (17, 0.011, False)])
def test_among_many_rows_steps_with_drafts_are_compared_with_steps_without(tokens, seconds, pays):
    drafter = Drafter()
    for _ in range(24):
        assert not drafter.is_open(16)
        drafter.observe(16, 0, 16, 0.010)
    for _ in range(100):
        drafter.observe(16, 0, 16, 0.010)  # nobody copies yet
    for _ in range(24):
        assert drafter.is_open(16)
        drafter.observe(16, 8, tokens, seconds)
    for _ in range(1024):
        assert drafter.is_open(16) == pays
        drafter.observe(16, 0, 16, 0.010)
    assert not drafter.is_open(16)  # and compared again
    assert drafter.is_open(4)


def test_a_step_with_drafts_that_found_no_memory_is_followed_by_steps_without():
    drafter = observed(1)
    drafter.pause()
    for _ in range(512):
        assert not drafter.is_open(1)
        drafter.observe(1, 0, 1, 0.010)
    assert drafter.is_open(1)


def test_beside_others_that_go_on_meanwhile_a_draft_must_gain_more_than_the_wait_costs():
    drafter = Drafter()
    for rows in (1, 2):
        observed(rows, drafter=drafter)
        for num_drafts in range(1, 2 * MOST_DRAFTS + 1):
            observed(rows, num_drafts, drafter=drafter)
    last, early = copying(drafter, 0, answer=4), copying(drafter, 1)
    other = Sequence(2, [5, 6, 7, 8, 9, 10], 20)
    other.tokens += [11]
    for one in (last, early):
        one.num_unseen_tokens = 1
    assert drafter.waiting([early, other]) == {early}
    assert drafter.waiting([last, other]) == set()  # one token more to expect, and one to lose
    assert drafter.waiting([last]) == {last}
    for one in (last, early):
        one.num_unseen_tokens = 0
    assert drafter.waiting([early, other]) == set()
    assert drafter.propose([row(early), row(other)], overlapped=True).keys() == {0}
    assert drafter.propose([row(last), row(other)], overlapped=True) == {}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(presence_penalty=0.5),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(grammar=Grammar(GrammarKind.JSON_OBJECT)),
    ],
)
def test_sequences_whose_tokens_are_verified_one_by_one_get_no_drafts(sampling):
    drafter = observed(1)
    assert drafter.propose([row(copying(drafter, sampling=sampling))], overlapped=False) == {}
    assert drafter.propose([row(copying(drafter))], overlapped=False) != {}


class Proposing:
    """Proposes the same drafts to whoever decodes."""

    model = None

    def __init__(self, drafts):
        self.drafts = drafts

    def is_open(self, num_rows):
        return True

    def pause(self):
        pass

    def forget(self, sequence):
        pass

    def waiting(self, decoding):
        return set(decoding)

    def propose(self, rows, *, overlapped):
        return dict.fromkeys(range(len(rows)), self.drafts)

    def batch(self, step):
        return None

    def verified(self, sequence, start, drafts, right):
        pass

    def observe(self, num_rows, num_drafts, num_tokens, seconds, draft_seconds):
        pass


def decoding(drafts, prompt=14, answer=40, blocks=8, budget=64, **options):
    """A scheduler with one sequence that has one generated token."""
    engine = Scheduler(
        BlockPool(blocks), max_num_seqs=2, max_tokens_per_step=budget, drafter=Proposing(drafts)
    )
    one = Sequence(0, [100] * prompt, prompt + answer, **options)
    engine.add(one, 0.0)
    while one.num_computed_tokens < prompt:
        step = engine.schedule(0.0)
        done(engine, *[(7,) for each in step if each.samples], step=step)
    return engine, one


def done(engine, *tokens, step=None):
    step = engine.schedule(0.0) if step is None else step
    engine.complete(step, tokens, 0.0)
    engine.check_integrity()
    return step


def test_accepted_drafts_and_one_more_token_count_and_refused_ones_leave_no_block():
    engine, one = decoding(drafts=(1, 2, 3, 4))
    step = engine.schedule(0.0)
    assert step == (ScheduledSequence(one, 14, 5, True, (1, 2, 3, 4)),)
    assert len(one.block_table) == 2
    assert engine.schedule(0.0) == ()  # its positions are not known
    done(engine, (1, 9), step=step)
    assert one.tokens[14:] == [7, 1, 9]
    assert (one.num_new_tokens, one.num_computed_tokens, one.num_unseen_tokens) == (2, 16, 0)
    assert (len(one.block_table), engine.pool.num_used, len(engine.cache)) == (1, 1, 1)
    assert (engine.num_draft_tokens, engine.num_accepted_draft_tokens) == (4, 1)
    assert engine.schedule(0.0)[0].start == 16


def test_a_finished_sequence_leaves_nothing_in_the_drafter():
    drafter = Drafter()
    engine = Scheduler(BlockPool(8), max_num_seqs=2, max_tokens_per_step=64, drafter=drafter)
    one = Sequence(0, [1, 2] * 7, 40)
    engine.add(one, 0.0)
    for token in (1, 2):
        done(engine, (token,))
    assert one in drafter.lookups
    engine.finish(one)
    assert drafter.lookups == {}


def test_a_block_that_refused_drafts_filled_is_not_cached():
    engine, one = decoding(drafts=(1, 2, 3, 4))
    done(engine, (8,))
    assert (one.num_computed_tokens, len(engine.cache)) == (15, 0)
    done(engine, (1, 2, 3, 4, 5))
    assert (one.num_computed_tokens, len(engine.cache)) == (20, 1)


def test_the_executor_is_told_again_of_a_block_that_takes_the_place_of_a_freed_one():
    engine, one = decoding(drafts=(1, 2, 3, 4))
    step = engine.schedule(0.0)
    one.num_sent_blocks = 2
    done(engine, (9,), step=step)
    assert (len(one.block_table), one.num_sent_blocks) == (1, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"answer": 4}, 2),
        ({"answer": 3}, 1),
        ({"answer": 2}, 0),
        ({"budget": 3}, 2),
        ({"blocks": 1, "answer": 2}, 0),
        ({"blocks": 2, "prompt": 25, "answer": 8}, 4),
        ({"blocks": 2, "prompt": 29, "answer": 4}, 2),
    ],
)
def test_drafts_are_dropped_where_length_budget_or_blocks_are_short(options, expected):
    engine, _ = decoding(drafts=(1, 2, 3, 4), **options)
    if options.get("blocks") == 2:
        assert engine.pool.num_free == 0
    [scheduled] = engine.schedule(0.0)
    assert len(scheduled.drafts) == expected
    assert engine.num_preemptions == 0
    engine.check_integrity()


def test_a_block_that_another_sequence_may_need_is_not_taken_for_drafts():
    engine, _one = decoding(drafts=(1,) * 8, blocks=3, prompt=10, answer=30)
    other = Sequence(1, [200] * 9, 40)
    engine.add(other, 0.0)
    step = engine.schedule(0.0)
    done(engine, *[(5,) for _ in step], step=step)
    step = engine.schedule(0.0)
    assert [len(each.drafts) for each in step] == [4, 6]  # one block is free, and two may grow
    assert engine.pool.num_free == 1


def test_half_of_what_decoding_leaves_is_kept_for_prompts():
    engine, _ = decoding(drafts=(1,) * 8, budget=11, prompt=20)
    engine.add(Sequence(1, [200] * 40, 60), 0.0)
    step = engine.schedule(0.0)
    assert [each.num_tokens for each in step] == [6, 5]


@pytest.mark.parametrize("end", [1, 2, 9])
def test_what_comes_behind_an_end_token_is_dropped(end):
    engine, one = decoding(drafts=(1, 2, 3, 4), end_token_ids=frozenset({end}))
    done(engine, (1, 2, 3, 9))
    expected = [1, 2, 3, 9][: [1, 2, 3, 9].index(end) + 1]
    assert one.tokens[15:] == expected
    assert one.num_computed_tokens == len(one.tokens) - 1


@pytest.mark.parametrize("tokens", [(), (2,) * 2, (1, 2, 3, 4, 5, 6), (1, 3, 3)])
def test_tokens_that_are_no_drafts_and_one_more_are_refused(tokens):
    engine, _ = decoding(drafts=(1, 2, 3, 4))
    step = engine.schedule(0.0)
    with pytest.raises(ValueError, match="sequence 0"):
        engine.complete(step, [tokens], 0.0)


def test_without_drafts_there_is_one_token():
    engine, _ = decoding(drafts=(1,), answer=2)
    step = engine.schedule(0.0)
    with pytest.raises(ValueError, match="2 new tokens for sequence 0"):
        engine.complete(step, [(1, 2)], 0.0)


def test_drafts_that_were_not_launched_are_taken_back_with_their_blocks():
    engine, one = decoding(drafts=(1, 2, 3, 4))
    engine.take_back(engine.schedule(0.0))
    engine.check_integrity()
    assert (one.num_computed_tokens, len(one.block_table), one.num_unseen_tokens) == (14, 1, 0)
    done(engine, (1, 2, 3, 4, 5))
    assert one.tokens[14:] == [7, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("outcome", [(1, 2), None])
def test_a_sequence_that_ended_with_drafts_in_flight_frees_its_blocks_with_the_step(outcome):
    engine, one = decoding(drafts=(1, 2, 3, 4))
    step = engine.schedule(0.0)
    engine.finish(one)
    assert (one.status, engine.pool.num_used) == (SequenceStatus.ENDING, 2)
    done(engine, outcome, step=step)
    assert (one.status, engine.pool.num_used) == (SequenceStatus.FINISHED, 0)
    assert one.tokens[14:] == [7]
    assert (engine.num_tokens_after_end, engine.num_draft_tokens) == (5, 0)


def test_a_failed_step_with_drafts_erases_what_they_may_have_written():
    engine, one = decoding(drafts=(1, 2, 3, 4))
    assert engine.fail(engine.schedule(0.0)) == (one,)
    engine.check_integrity()
    assert sorted(engine.pool.take_to_erase()) == [1, 2]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "drafter", [lambda: RandomDrafter(3, most=8), lambda: GuessingDrafter(3, 40)]
)
def test_whole_answers_are_what_they_are_without_drafts(overlap, drafter):
    """The device checks every read: nothing that a refused draft wrote is taken for a token's KV.

    So the tokens must be those of the script, which a scheduler without drafts gives too.
    """
    drafter = drafter()
    engine = Scheduler(BlockPool(40), max_num_seqs=4, max_tokens_per_step=48, drafter=drafter)
    device = SimulatedDevice(engine, drafter)
    rng = random.Random(4)
    sequences = [Sequence(number, [number] * 20, 80) for number in range(6)]
    answers = [[rng.randrange(100, 200) for _ in range(60)] for _ in sequences]
    for sequence, answer in zip(sequences, answers, strict=True):
        device.add(sequence, answer)
    while engine.has_work:
        step = device.launch()
        engine.check_integrity()
        while len(device.in_flight) > overlap or (device.in_flight and not step):
            device.collect()
            step = True
    assert [sequence.tokens[20:] for sequence in sequences] == answers
    assert (engine.pool.num_used, engine.num_preemptions) == (0, 0)
    assert engine.num_draft_tokens > 100
    assert 0 < engine.num_accepted_draft_tokens < engine.num_draft_tokens
