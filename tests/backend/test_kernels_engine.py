"""The CUDA path of the engine, on CPU tensors in Triton's interpreter: tokens of transformers."""

import random

import pytest
from engine_answers import reference

pytest.importorskip("triton", reason="Triton is not installed")

pytest_plugins = ["interpreter", "tiny_checkpoints"]

GENERATE = "interpreted_engine:generate"
NEW_TOKENS = 2


def prompts(lengths):
    generator = random.Random(0)
    return [[generator.randrange(320) for _ in range(length)] for length in lengths]


def test_a_chunked_prompt_beside_decoding_with_norms_by_head(interpreter, checkpoint):
    directory, model = checkpoint("qwen3")
    batch = prompts([2, 11])
    tokens, _ = interpreter(GENERATE, str(directory), batch, NEW_TOKENS, max_tokens_per_step=8)
    assert tokens == [reference(model, prompt, NEW_TOKENS) for prompt in batch]


def test_keys_and_values_in_eight_bits(interpreter, checkpoint):
    directory, model = checkpoint("qwen3")
    batch = prompts([2, 9])
    how = {"max_tokens_per_step": 8, "kv_scale": 0.053}
    tokens, _ = interpreter(GENERATE, str(directory), batch, NEW_TOKENS, **how)
    assert tokens == [reference(model, prompt, NEW_TOKENS) for prompt in batch]


def test_a_sliding_window_after_warming_up(interpreter, checkpoint):
    directory, model = checkpoint("mistral")
    batch = prompts([model.config.sliding_window + 3])
    tokens, _ = interpreter(GENERATE, str(directory), batch, NEW_TOKENS, warms_up=True)
    assert tokens == [reference(model, prompt, NEW_TOKENS) for prompt in batch]


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_softcaps_and_sinks_in_the_code_of_transformers(interpreter, checkpoint, family):
    directory, model = checkpoint(family)
    batch = prompts([2, model.config.sliding_window + 3])
    how = {"max_tokens_per_step": 16, "overlap": True}
    tokens, _ = interpreter(GENERATE, str(directory), batch, NEW_TOKENS, **how)
    assert tokens == [reference(model, prompt, NEW_TOKENS) for prompt in batch]


def test_a_preempted_sequence_comes_back_with_other_blocks(interpreter, checkpoint):
    directory, model = checkpoint("llama")
    batch = prompts([15, 14])
    tokens, preemptions = interpreter(GENERATE, str(directory), batch, 4, num_blocks=3)
    assert tokens == [reference(model, prompt, 4) for prompt in batch]
    assert preemptions > 0


def test_a_step_launched_before_its_tokens_are_known(interpreter, checkpoint):
    directory, model = checkpoint("llama")
    batch = prompts([3, 5])
    tokens = interpreter("interpreted_engine:generate_ahead", str(directory), batch, NEW_TOKENS)
    assert tokens == [reference(model, prompt, NEW_TOKENS) for prompt in batch]


def test_steps_that_overlap_draw_the_same(interpreter, checkpoint):
    how = {"temperature": 1.0, "seed": 3}
    directory, batch = str(checkpoint("llama")[0]), prompts([1, 3])
    plain, ahead = (
        interpreter(GENERATE, directory, batch, 3, how, overlap=overlap)[0]
        for overlap in (False, True)
    )
    assert ahead == plain


def test_penalties_draw_what_torch_draws(interpreter, checkpoint):
    """The same requests by plain torch and by kernels, sampled with all that is counted."""
    directory, batch = str(checkpoint("llama")[0]), prompts([4, 19])
    how = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2, "presence_penalty": 0.3}
    by_kernels, by_torch = (
        interpreter(GENERATE, directory, batch, 3, how, kernels=kernels)[0]
        for kernels in (True, False)
    )
    assert by_kernels == by_torch


def test_graphs_of_decoding_and_of_mixed_steps_change_no_token(interpreter, checkpoint):
    directory, model = checkpoint("llama")
    batch = prompts([3, 19])
    options = {"graphs": True, "warms_up": True, "overlap": True, "max_num_seqs": 2}
    tokens, _ = interpreter(GENERATE, str(directory), batch, 3, max_tokens_per_step=16, **options)
    assert tokens == [reference(model, prompt, 3) for prompt in batch]
