"""The model runner: tokens that the host does not know yet are taken from the step before."""

import pytest
import torch

from backend.executor.model_loader import load_model
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


def started(number, prompt):
    """Return a sequence with blocks of its own for all that it will grow to."""
    sequence = Sequence(number, list(prompt), 100, sampling=SamplingParams(temperature=0.0))
    sequence.block_table = list(range(1 + 7 * number, 8 + 7 * number))
    return sequence


def decoding(sequence, step):
    """Schedule token number ``step`` of the continuation, known or not."""
    return ScheduledSequence(sequence, sequence.num_prompt_tokens + step, 1, samples=True)


def test_steps_launched_before_their_tokens_are_known_choose_the_same(checkpoint, runner):
    model = checkpoint("llama")[1]
    prompts = [list(range(3, 20)), [7] * 30, [250, 9]]
    sequences = [started(number, prompt) for number, prompt in enumerate(prompts)]
    flight = runner.launch(
        tuple(ScheduledSequence(each, 0, len(each.tokens), samples=True) for each in sequences)
    )
    for step in range(NEW_TOKENS - 1):
        # Order changes from step to step, and the last one leaves early.
        order = sequences[step % 2 :: -1] + sequences[step % 2 + 1 :]
        running = [each for each in order if each is not sequences[2] or step < 5]
        ahead = runner.launch(tuple(decoding(each, step) for each in running))
        for sequence, sampled in runner.collect(flight):
            sequence.tokens.append(sampled.token)
        flight = ahead
    for sequence, sampled in runner.collect(flight):
        sequence.tokens.append(sampled.token)
    for sequence, prompt in zip(sequences[:2], prompts, strict=False):
        assert sequence.tokens[len(prompt) :] == reference(model, prompt)
    assert sequences[2].tokens[2:] == reference(model, prompts[2])[:6]


def test_an_unknown_token_that_no_step_chose_is_an_error(runner):
    with pytest.raises(RuntimeError, match="no step before"):
        runner.launch((decoding(started(0, [1, 2, 3]), 0),))
