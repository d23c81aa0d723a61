"""Prompt lookup: which tokens are proposed, when that pays, and what the scheduler does then."""

import random

import pytest
from simulated_device import RandomDrafter, SimulatedDevice

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.prompt_lookup import MOST_DRAFTS, Drafter, PromptLookup
from backend.scheduler.request import Grammar, GrammarKind, SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import ScheduledSequence, Sequence, SequenceStatus


def proposed(tokens, lookup=None):
    return trusted(lookup).propose(list(tokens))


def trusted(lookup=None):
    """A look-up whose drafts were right."""
    lookup = lookup or PromptLookup()
    lookup.verified(8, 8)
    return lookup


def test_what_followed_the_same_tokens_is_proposed():
    assert proposed([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2]) == (3, 4, 5, 6, 7, 8, 9, 10)


def test_the_longest_n_gram_decides_and_of_equal_ones_the_last():
    assert proposed([1, 2, 3, 50, 9, 2, 3, 60, 9, 1, 2, 3])[0] == 50
    assert proposed([2, 3, 50, 9, 2, 3, 60, 9, 8, 2, 3])[0] == 60


def test_a_repetition_goes_on():
    assert proposed([5, 6, 7, 1, 2, 1, 2, 1, 2]) == (1, 2) * 4
    assert proposed([5, 6, 7, 4, 4, 4]) == (4,) * MOST_DRAFTS


@pytest.mark.parametrize("tokens", [[], [1], [1, 1, 1], list(range(50)), [1, 2, 3, 2, 1]])
def test_nothing_is_proposed_of_what_is_new(tokens):
    assert proposed(tokens) == ()


@pytest.mark.parametrize("alphabet", [2, 5, 40])
def test_a_growing_text_gets_the_drafts_of_one_that_is_indexed_at_once(alphabet):
    rng = random.Random(alphabet)
    tokens = [rng.randrange(alphabet) for _ in range(40)]
    growing, num_found, num_equal = trusted(), 0, 0
    for _ in range(200):
        tokens.append(rng.randrange(alphabet))
        drafts = growing.propose(tokens)
        trusted(growing)
        num_equal += drafts == proposed(tokens)  # but where n-grams share a slot
        if drafts:
            num_found += 1
            following = [
                tokens[end : end + 1]
                for end in range(2, len(tokens))
                if tokens[end - 2 : end] == tokens[-2:]
            ]
            assert [drafts[0]] in following
    assert num_found > 15
    assert num_equal > 150


def test_a_very_long_text_takes_bounded_memory():
    rng = random.Random(1)
    tokens = [rng.randrange(100_000) for _ in range(200_000)]
    lookup = PromptLookup()
    assert proposed(tokens + tokens[-500:-480], lookup) == tuple(tokens[-480:-472])
    assert len(lookup._table) * lookup._table.itemsize <= 512 * 1024


def test_nothing_is_proposed_until_what_would_have_been_was_right():
    lookup, tokens = PromptLookup(), [1, 2] * 10
    lengths = []
    for _ in range(12):
        if lookup.propose(tokens):
            lengths.append(len(tokens))
        tokens.append(1 + len(tokens) % 2)
    assert lengths == [28, 29, 30, 31]


def test_refused_drafts_end_proposals_and_right_ones_that_were_not_tried_bring_them_back():
    lookup, tokens = trusted(), [1, 2] * 10
    assert lookup.propose(tokens)
    lookup.verified(8, 0)
    assert lookup.propose(tokens) == ()
    for _ in range(30):
        tokens.append(1 + len(tokens) % 2)
        lookup.propose(tokens)
    assert lookup.propose(tokens)
    for new in range(50, 54):
        tokens += [1, 2]
        lookup.propose(tokens)
        tokens.append(new)
        lookup.propose(tokens)
    tokens += [1, 2]
    assert lookup.propose(tokens) == ()


def copying(number=0, prompt=20, answer=100, **options):
    """A sequence that has repeated two tokens for a while and decodes now."""
    sequence = Sequence(number, [1, 2] * (prompt // 2), prompt + answer, **options)
    sequence.tokens += [1, 2]
    sequence.num_computed_tokens = len(sequence.tokens) - 1
    sequence.lookup = PromptLookup()
    sequence.lookup.verified(8, 6)  # so that half of them are expected to be right
    return sequence


def row(sequence):
    return ScheduledSequence(sequence, sequence.num_computed_tokens, 1, samples=True)


def pays(drafter, num_rows=1):
    return bool(drafter.propose([row(copying(n)) for n in range(num_rows)], overlapped=False))


def test_a_step_without_drafts_is_seen_first_and_then_one_with_them():
    drafter = Drafter()
    assert not pays(drafter)
    drafter.observe(1, 0, 0.010)
    assert pays(drafter)


@pytest.mark.parametrize("num_rows", [1, 4, 15])
@pytest.mark.parametrize(("factor", "expected"), [(1.1, True), (2.9, True), (3.2, False)])
def test_drafts_are_made_where_tokens_come_faster_with_them(num_rows, factor, expected):
    """Half of the eight drafts are expected to be right: with a margin, worth two more steps."""
    drafter = Drafter()
    drafter.observe(num_rows, 0, 0.010)
    drafter.observe(num_rows, 8 * num_rows, 0.010 * factor)
    assert [pays(drafter, num_rows) for _ in range(4)] == [True] * 3 + [expected]  # three try
    assert drafter.is_open(num_rows) is expected
    assert drafter.is_open(2 * num_rows)


def test_where_drafts_do_not_pay_three_steps_try_again_after_longer_and_longer_pauses():
    drafter, trials = Drafter(), []
    drafter.observe(1, 0, 0.010)
    drafter.observe(1, 8, 0.100)
    for step in range(1000):
        with_drafts = drafter.is_open(1) and pays(drafter)
        if with_drafts:
            trials.append(step)
        drafter.observe(1, 8 * with_drafts, 0.100 if with_drafts else 0.010)
    assert trials[::3] == [0, 35, 102, 233, 492]
    assert trials[1::3] == [each + 1 for each in trials[::3]]
    for _ in range(3):
        drafter.observe(1, 8, 0.010)  # the machine became faster
    for _ in range(1000):
        drafter.observe(1, 0, 0.010)
    assert all(pays(drafter) for _ in range(5))


def test_beside_others_that_go_on_meanwhile_a_draft_must_gain_more_than_the_wait_costs():
    drafter = Drafter()
    for rows in (2, 3):
        drafter.observe(rows, 0, 0.010)
        drafter.observe(rows, 8, 0.010)
    last, early = copying(0, answer=4), copying(1)
    other = Sequence(2, [5, 6, 7, 8, 9, 10], 20)
    other.tokens += [11]
    early.num_unseen_tokens = last.num_unseen_tokens = 1
    assert drafter.waiting([early, last]) == {early}  # one token more to expect, and one to lose
    assert drafter.waiting([last]) == {last}
    early.num_unseen_tokens = last.num_unseen_tokens = 0
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
    drafter = Drafter()
    drafter.observe(1, 0, 0.010)
    assert drafter.propose([row(copying(sampling=sampling))], overlapped=False) == {}
    assert drafter.propose([row(copying())], overlapped=False) != {}


class Proposing:
    """Proposes the same drafts to whoever decodes."""

    def __init__(self, drafts):
        self.drafts = drafts
        self.outcomes = []

    def is_open(self, num_rows):
        return True

    def waiting(self, decoding):
        return set(decoding)

    def propose(self, rows, *, overlapped):
        return dict.fromkeys(range(len(rows)), self.drafts)

    def verified(self, sequence, num_drafts, num_accepted):
        self.outcomes.append((num_drafts, num_accepted))

    def observe(self, num_rows, num_drafts, seconds):
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
def test_whole_answers_are_what_they_are_without_drafts(overlap):
    """The device checks every read: nothing that a refused draft wrote is taken for a token's KV.

    So the tokens must be those of the script, which a scheduler without drafts gives too.
    """
    drafter = RandomDrafter(3, most=8)
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
    assert engine.num_draft_tokens == sum(drafts for drafts, _ in drafter.outcomes) > 100
    assert 0 < engine.num_accepted_draft_tokens < engine.num_draft_tokens
