"""The model runner: tokens stay on the device, and drafts are verified."""

import pytest
import torch

from backend.engine.loading import load_model
from backend.engine.stepper import Fault, fault_of
from backend.executor.attention import torch_copies
from backend.scheduler.batch import Row, StepBatch, batch_of
from backend.scheduler.request import SamplingParams
from backend.scheduler.sequence import ScheduledSequence, Sequence
from backend.settings import EngineOptions

pytest_plugins = ["tiny_checkpoints"]

NEW_TOKENS = 20


@pytest.fixture
def runner(checkpoint):
    return load_model(EngineOptions(str(checkpoint("llama")[0]), device="cpu")).core.runner


def reference(model, prompt):
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
    return output[0, len(prompt) :].tolist()


def started(slot, prompt):
    """Return a sequence with blocks of its own for all that it will grow to."""
    sequence = Sequence(slot, list(prompt), 100, sampling=SamplingParams(temperature=0.0))
    sequence.slot = slot
    sequence.block_table = list(range(1 + 7 * slot, 8 + 7 * slot))
    return sequence


def decoding(sequence, step):
    """Schedule token number ``step`` of the continuation, known or not."""
    return ScheduledSequence(sequence, sequence.num_prompt_tokens + step, 1, samples=True)


def launched(runner, step):
    return runner.sample(runner.launch(batch_of(step)))


def test_steps_launched_before_their_tokens_are_known_choose_the_same(checkpoint, runner):
    model = checkpoint("llama")[1]
    prompts = [list(range(3, 20)), [7] * 30, [250, 9]]
    sequences = [started(number, prompt) for number, prompt in enumerate(prompts)]
    running = sequences
    step = tuple(ScheduledSequence(each, 0, len(each.tokens), samples=True) for each in running)
    flight = launched(runner, step)
    for number in range(NEW_TOKENS):
        before, ahead = running, None
        if number + 1 < NEW_TOKENS:
            # Order changes from step to step, and the last one leaves early.
            order = sequences[number % 2 :: -1] + sequences[number % 2 + 1 :]
            running = [each for each in order if each is not sequences[2] or number < 5]
            ahead = launched(runner, tuple(decoding(each, number) for each in running))
        for sequence, sampled in zip(before, runner.collect(flight), strict=True):
            sequence.tokens += sampled.tokens
        flight = ahead
    for sequence, prompt in zip(sequences[:2], prompts, strict=False):
        assert sequence.tokens[len(prompt) :] == reference(model, prompt)
    assert sequences[2].tokens[2:] == reference(model, prompts[2])[:6]


@pytest.mark.parametrize("wrong", [0, 1, 4, None], ids=lambda at: f"draft {at} is refused")
def test_drafts_are_accepted_as_far_as_they_are_what_would_be_chosen(checkpoint, runner, wrong):
    prompt = list(range(3, 20))
    expected = reference(checkpoint("llama")[1], prompt)
    sequence = started(0, prompt)
    first = launched(runner, (ScheduledSequence(sequence, 0, len(prompt), samples=True),))
    (sampled,) = runner.collect(first)
    assert sampled.tokens == (expected[0],)
    drafts = expected[1:6]
    if wrong is not None:
        drafts[wrong] += 1
    row = Row(0, len(prompt), 6, samples=True, drafted=(expected[0], *drafts))
    (sampled,) = runner.collect(runner.sample(runner.launch(StepBatch((), (), (row,)))))
    count = 1 + (5 if wrong is None else wrong)
    assert sampled.tokens == tuple(expected[1 : 1 + count])
    # The next step goes on behind them, over what refused drafts wrote.
    row = Row(0, len(prompt) + count, 1, samples=True)
    (sampled,) = runner.collect(runner.sample(runner.launch(StepBatch((), (), (row,)))))
    assert sampled.tokens == (expected[1 + count],)


@pytest.mark.parametrize("where", ["build", "forward"])
def test_a_step_that_finds_no_memory_comes_again_with_the_same_tokens(
    checkpoint, runner, monkeypatch, where
):
    """What the host told, and the copies of KV, are as if the step had never been."""
    prompt = list(range(3, 20))
    expected = reference(checkpoint("llama")[1], prompt)
    sequence = started(0, prompt)
    runner.collect(launched(runner, (ScheduledSequence(sequence, 0, 17, samples=True),)))

    def run(start, *drafts, fails=False):
        drafted = (expected[start - 17], *drafts) if drafts else ()
        row = Row(0, start, 1 + len(drafts), samples=True, drafted=drafted)
        step = StepBatch((), (), (row,))
        if fails:
            owner, name = {
                "build": (runner._attention, "plan"),
                "forward": (runner, "_forward"),
            }[where]
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, out_of_memory)
                with pytest.raises(torch.OutOfMemoryError):
                    runner.launch(step)
            return None
        return runner.collect(runner.sample(runner.launch(step)))[0].tokens

    def out_of_memory(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert run(17) == (expected[1],)
    # The token behind the draft is told by the host; the step that should use it fails.
    assert run(18, expected[2], 1 + expected[3]) == tuple(expected[2:4])
    run(20, fails=True)
    assert run(20) == (expected[4],)
    run(21, fails=True)
    # Another step in between: what the failed one would have written is not relied on.
    assert run(21, expected[5], expected[6]) == tuple(expected[5:8])
    assert run(24) == (expected[8],)
    assert run(25) == (expected[9],)


def test_no_memory_for_a_group_of_copies_is_no_memory_for_later_steps(
    checkpoint, runner, monkeypatch
):
    prompt = list(range(3, 20))
    expected = reference(checkpoint("llama")[1], prompt)
    sequence = started(0, prompt)
    runner.collect(launched(runner, (ScheduledSequence(sequence, 0, 17, samples=True),)))
    step = StepBatch((), (), (Row(0, 17, 1, samples=True),))
    with monkeypatch.context() as patch:
        patch.setattr(
            torch_copies._Group,
            "_fill",
            lambda *arguments: (_ for _ in ()).throw(torch.OutOfMemoryError()),
        )
        with pytest.raises(torch.OutOfMemoryError):
            runner.launch(step)
    (sampled,) = runner.collect(runner.sample(runner.launch(step)))
    assert sampled.tokens == (expected[1],)


def test_a_step_whose_tokens_were_noted_cannot_come_again(runner, monkeypatch):
    sequence = started(0, range(3, 20))
    computing = runner.launch(batch_of((ScheduledSequence(sequence, 0, 17, samples=True),)))

    def out_of_memory(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner._sampler, "count", out_of_memory)
    with pytest.raises(RuntimeError, match="after its tokens were noted") as caught:
        runner.sample(computing)
    assert fault_of(caught.value) is Fault.STEP
