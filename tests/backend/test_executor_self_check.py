"""The engine proves its kernels at start: what differs or raises is found, named and replaced."""

import random

import pytest
import torch
from engine_answers import reference

pytest.importorskip("triton", reason="Triton is not installed")

pytest_plugins = ["interpreter", "tiny_checkpoints"]

CHECK = "interpreted_check:findings"
GENERATE = "interpreted_check:check_and_generate"
EVERY = {
    "ATTENTION",
    "OPERATIONS",
    "SAMPLING",
    "MATMUL",
    "EXPERTS",
}
PROMPTS = [
    [random.Random(seed).randrange(320) for _ in range(length)]
    for seed, length in enumerate([3, 18])
]


@pytest.mark.parametrize("family", ["qwen3", "mistral", "qwen2_windows"])
def test_sound_kernels_pass(interpreter, checkpoint, family):
    (findings, kernels, detail), is_still = interpreter(CHECK, str(checkpoint(family)[0]))
    assert all(passes for _, passes in findings)
    assert (kernels, detail) == (EVERY, ())
    assert is_still, "the process's random numbers moved"
    named = {name for name, _ in findings}
    assert {
        "norm, rotation, KV write",
        "decode attention, one split",
        "decode attention, several splits",
        "prefill attention",
        "rms_norm",
        "add_rms_norm",
        "silu_mul",
        "sampling, greedy",
        "sampling, top_k",
    } < named


@pytest.mark.parametrize(("family", "rule"), [("gemma2", "cap 3"), ("gpt_oss", "sinks")])
def test_softcaps_and_sinks_are_compared(interpreter, checkpoint, family, rule):
    directory = str(checkpoint(family)[0])
    findings = interpreter("interpreted_check:shape_findings", directory)
    assert all(passes for _, _, passes in findings)
    shapes = {shape for kernel, shape, _ in findings if kernel.startswith("decode attention")}
    assert any(rule in shape for shape in shapes)
    assert any("window" in shape and rule in shape for shape in shapes)


@pytest.mark.parametrize("context", [20, 70])
def test_a_short_context_is_compared_within_its_length(interpreter, checkpoint, context):
    directory = str(checkpoint("llama")[0])
    findings = interpreter("interpreted_check:shape_findings", directory, context)
    assert all(passes for _, _, passes in findings)
    keys = [
        int(number)
        for kernel, shape, _ in findings
        if "attention" in kernel
        for number in shape.removesuffix(" keys").rpartition(", ")[2].split("/")
    ]
    assert max(keys) == context


def test_fp8_that_is_rounded_wrong_gives_way_to_kv_in_the_type_of_activations(
    interpreter, checkpoint
):
    """The interpreter loses the carry when it rounds a mantissa up to FP8."""
    directory = str(checkpoint("llama")[0])
    (findings, kernels, detail), _ = interpreter(CHECK, directory, torch.float8_e4m3fn)
    assert kernels == EVERY
    assert "KV in the type of activations" in detail[0]
    decode = "decode attention, one split"
    assert [passes for name, passes in findings if name == decode] == [True, True]


@pytest.mark.parametrize(
    ("breaks", "group", "named"),
    [
        (("decode", "wrong"), "ATTENTION", "attention: PyTorch's attention"),
        (("prefill", "nan"), "ATTENTION", "prefill attention"),
        (("decode", "raises"), "ATTENTION", "RuntimeError: no such instruction"),
        (("write", "wrong"), "ATTENTION", "norm, rotation, KV write"),
        (("write", "nan"), "ATTENTION", "norm, rotation, KV write"),
        (("silu_mul", "wrong"), "OPERATIONS", "element-wise operations: PyTorch's operations"),
        (("rms_norm", "raises"), "OPERATIONS", "no such instruction"),
        (("sampling", "wrong"), "SAMPLING", "sampling: PyTorch's sampling"),
        (("sampling", "raises"), "SAMPLING", "sample_tokens raised RuntimeError"),
    ],
)
def test_a_broken_kernel_is_named_and_replaced(interpreter, checkpoint, breaks, group, named):
    directory, model = checkpoint("qwen3")
    (_, kernels, detail), tokens = interpreter(
        GENERATE, str(directory), PROMPTS, 3, breaks=breaks[0], how=breaks[1]
    )
    assert kernels == EVERY - {group}
    (line,) = detail
    assert named in line
    assert tokens == [reference(model, prompt, 3) for prompt in PROMPTS]


def test_broken_draws_become_those_of_torch(interpreter, checkpoint):
    directory = str(checkpoint("llama")[0])
    how = {"temperature": 0.9, "seed": 4, "top_k": 30}
    _, tokens = interpreter(GENERATE, directory, PROMPTS, 4, how, breaks="sampling", how="wrong")
    by_torch = interpreter(
        "interpreted_engine:generate", directory, PROMPTS, 4, how, kernels=False
    )[0]
    assert tokens == by_torch


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_products_with_quantised_weights(interpreter, checkpoint, kind, breaks):
    """Where they err, they are computed with dequantised weights, and activations as they are."""
    (findings, kernels, detail), error = interpreter(
        "interpreted_check:check_quantised", str(checkpoint("llama")[0]), kind=kind, breaks=breaks
    )
    named = {"int8": "product with int8", "fp8": "product in FP8"}[kind]
    products = [passes for name, passes in findings if name == named]
    assert products
    assert all(products) is not breaks
    assert ("MATMUL" in kernels, len(detail)) == (not breaks, int(breaks))
    assert error < (0.04 if kind == "fp8" and not breaks else 1e-6)


@pytest.mark.parametrize(
    ("family", "breaks"),
    [
        ("mixtral", {}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"how": "wrong"}),
        ("qwen3_moe", {"how": "raises"}),
    ],
    ids=str,
)
def test_products_of_experts(interpreter, checkpoint, family, breaks):
    directory, model = checkpoint(family)
    (findings, kernels, detail), tokens, static = interpreter(
        "interpreted_check:check_experts_and_generate", str(directory), PROMPTS, 3, **breaks
    )
    products = [passes for name, passes in findings if name == "product of experts"]
    # Gate and up, and down, in three tilings.
    assert products == [not breaks] * 6
    assert kernels == (EVERY - {"EXPERTS"} if breaks else EVERY)
    assert ["one by one" in line for line in detail] == [True] * len(breaks)
    assert static is not bool(breaks)
    assert tokens == [reference(model, prompt, 3) for prompt in PROMPTS]
