"""A draft model as a source of drafts: when it is asked, and what it computes before it guesses."""

import pytest

from backend.scheduler.block_pool import BlockPool
from backend.scheduler.draft_model import PENDING, DraftModel
from backend.scheduler.drafts import Drafter
from backend.scheduler.prompt_lookup import PromptLookup
from backend.scheduler.request import SamplingParams
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.sequence import ScheduledSequence, Sequence

USUAL = 0.010


def drafter_of(*, lookup=True, most=4, max_model_len=1000, seconds=USUAL):
    """A drafter that knows what one sequence takes, alone and with guesses."""
    drafter = Drafter(DraftModel(64, max_model_len=max_model_len, most=most), lookup=lookup)
    for num_drafts in (0, 1, 2, 4, 8):
        for _ in range(3):
            drafter.observe(1, num_drafts, 1, seconds if num_drafts else USUAL)
    return drafter


def decoding(drafter, prompt=20, answer=400, copies=None):
    """A sequence that decodes, whose last tokens stand in its prompt if it ``copies``."""
    tokens = [1, 2] * (prompt // 2) if copies else list(range(100, 100 + prompt))
    sequence = Sequence(0, tokens, prompt + answer)
    sequence.block_table = list(range(1, 64))
    sequence.tokens += [1, 2]
    sequence.num_computed_tokens = len(sequence.tokens) - 1
    if copies:
        lookup = drafter.lookups[sequence] = PromptLookup()
        lookup.follow(sequence.tokens)
        lookup.rate = copies
    return sequence


def proposed(drafter, sequence):
    row = ScheduledSequence(sequence, sequence.num_computed_tokens, 1, samples=True)
    return drafter.propose([row], overlapped=False).get(0, ())


def verify(drafter, sequence, right):
    """Let ``right`` of the guesses be accepted, if there are any; return how many there are."""
    guesses = proposed(drafter, sequence)
    start = sequence.num_computed_tokens
    if not guesses:
        sequence.tokens += [1000 + start]
        sequence.num_computed_tokens += 1
        return 0
    step = [ScheduledSequence(sequence, start, 1 + len(guesses), True, guesses)]
    drafter.model.computed(drafter.batch(step), step)
    right = min(right, len(guesses))
    sequence.tokens += range(1000 + start, 1001 + start + right)
    sequence.num_computed_tokens = start + right + 1
    drafter.verified(sequence, start, guesses, right)
    return len(guesses)


@pytest.mark.parametrize(
    ("copies", "guesses"), [(None, True), (0.55, True), (0.95, False), (1.0, False)]
)
def test_the_source_that_was_right_more_often_proposes(copies, guesses):
    drafter = drafter_of()
    drafts = proposed(drafter, decoding(drafter, copies=copies))
    assert drafts
    assert (drafts[0] == PENDING) is guesses


def test_without_lookup_only_the_draft_model_proposes():
    drafter = drafter_of(lookup=False)
    assert set(proposed(drafter, decoding(drafter, copies=1.0))) == {PENDING}


def test_wrong_guesses_switch_it_off_for_a_sequence_and_it_is_tried_again_ever_later():
    drafter = drafter_of()
    sequence = decoding(drafter, answer=900)
    tries = [place for place in range(450) if verify(drafter, sequence, right=0)]
    first, *later = tries
    assert first == 0
    assert len(later) <= 7
    gaps = [after - before for before, after in zip(tries, later, strict=False)]
    assert [gap for gap in gaps if gap > 1] == [65, 129]


def test_new_sequences_profit_from_what_was_learnt_of_others():
    drafter = drafter_of()
    for _ in range(16):
        sequence = decoding(drafter)
        while verify(drafter, sequence, right=0):
            pass
        drafter.forget(sequence)
    assert not proposed(drafter, decoding(drafter))


def test_right_guesses_make_more_of_them():
    drafter = drafter_of(most=8, seconds=USUAL * 1.5)
    drafter.model._passes[1] = [0.001]
    sequence = decoding(drafter)
    counts = [verify(drafter, sequence, right=8) for _ in range(30)]
    assert 0 < counts[0] < counts[-1] == 8


@pytest.mark.parametrize(
    ("seconds", "each", "pays"),
    [(1.2, 0.1, True), (1.6, 0.1, True), (1.2, 0.9, False), (6.0, 0.1, False)],
)
def test_it_guesses_where_tokens_come_faster_with_its_own_time(seconds, each, pays):
    drafter = drafter_of(seconds=USUAL * seconds)
    drafter.model._passes[1] = [USUAL * each]
    assert bool(proposed(drafter, decoding(drafter))) is pays


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"max_model_len": 25}, 4), ({"max_model_len": 23}, 2), ({"max_model_len": 21}, 0)],
)
def test_beyond_its_context_it_guesses_nothing(options, expected):
    drafter = drafter_of(**options)
    assert drafter.model.room(decoding(drafter)) == expected


def test_a_long_prompt_is_not_computed_for_a_short_answer():
    drafter = drafter_of()
    assert drafter.model.room(decoding(drafter, prompt=600, answer=300)) == 4
    assert drafter.model.room(decoding(drafter, prompt=600, answer=15)) == 0


def test_what_it_lacks_of_a_prompt_is_computed_within_the_budget_of_several_steps():
    drafter = drafter_of(lookup=False)
    engine = Scheduler(BlockPool(64), max_num_seqs=2, max_tokens_per_step=33, drafter=drafter)
    sequence = Sequence(0, list(range(100)), 200, sampling=SamplingParams())
    engine.add(sequence, 0.0)
    batches = []
    for now in range(9):
        step = engine.schedule(now)
        if engine.draft_batch is not None:
            batches.append(engine.draft_batch)
            guesses = [(5,) * row.num_drafts for row in engine.draft_batch.rows]
            step = engine.fill(step, guesses, 0.0)
        engine.complete(step, [(9,) for each in step if each.samples], now + USUAL)
        engine.check_integrity()
    rows = [row for batch in batches for row in batch.rows]
    assert [(row.start, len(row.tokens), row.num_drafts > 0) for row in rows[:4]] == [
        (0, 32, False),
        (32, 32, False),
        (64, 32, False),
        (96, 8, True),
    ]
    assert len(batches[0].new) == 1
    assert not batches[1].new


def test_blocks_that_it_computed_for_another_are_not_computed_again():
    drafter = drafter_of()
    engine = Scheduler(BlockPool(64), max_num_seqs=2, max_tokens_per_step=99, drafter=drafter)
    starts = []
    now = 0.0
    for number in range(2):
        sequence = Sequence(number, list(range(40)), 60)
        engine.add(sequence, 0.0)
        while len(sequence.tokens) < 44:
            now += 1
            step = engine.schedule(now)
            if engine.draft_batch is not None:
                starts.append([row.start for row in engine.draft_batch.rows])
                guesses = [(5,) * row.num_drafts for row in engine.draft_batch.rows]
                step = engine.fill(step, guesses, 0.0)
            engine.complete(step, [(90 + len(sequence.tokens),)] * len(step), now + USUAL)
        engine.finish(sequence)
    assert starts[0] == [0]
    assert [32] in starts[1:]
