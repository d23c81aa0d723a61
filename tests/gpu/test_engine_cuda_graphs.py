"""The CUDA path of the engine: graphs, padding and overlap change no token."""

import random
import shutil

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
pytest_plugins = ["tiny_checkpoints"]

from interpreted_engine import generate
from quantized_checkpoints import quantize_checkpoint

from backend.executor.cuda_graphs import CudaRecorder

NEW_TOKENS = 20


@pytest.fixture
def batch():
    generator = random.Random(0)
    return [[generator.randrange(320) for _ in range(n)] for n in (3, 70, 16, 1, 33)]


def run(checkpoint, family, batch, **options):
    directory = str(checkpoint(family)[0])
    settings = {"device": "cuda", "warms_up": True, "max_tokens_per_step": 40} | options
    return generate(directory, batch, NEW_TOKENS, **settings)[0]


def reference(model, prompt):
    model.to("cuda")
    try:
        ids = torch.tensor([prompt], device="cuda")
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
        )
    finally:
        model.to("cpu")
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "phi3"])
def test_graphs_and_overlap_together_equal_transformers(checkpoint, batch, family):
    tokens = run(checkpoint, family, batch, graphs=True, overlap=True)
    assert tokens == [reference(checkpoint(family)[1], prompt) for prompt in batch]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphs_change_no_token(checkpoint, batch, dtype):
    with_graphs, without = (
        run(checkpoint, "qwen3", batch, graphs=graphs, dtype=dtype) for graphs in (True, False)
    )
    assert with_graphs == without


def test_products_in_fp8_are_captured(checkpoint, batch, tmp_path):
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("llama")[0], directory)
    quantize_checkpoint(directory, "fp8 per channel")
    settings = {"device": "cuda", "warms_up": True, "dtype": torch.bfloat16}
    with_graphs, without = (
        generate(str(directory), batch, NEW_TOKENS, graphs=graphs, **settings)[0]
        for graphs in (True, False)
    )
    assert with_graphs == without


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_steps_of_experts_are_captured_and_change_no_token(checkpoint, batch, dtype, caplog):
    with_graphs, without = (
        run(checkpoint, "qwen3_moe", batch, graphs=graphs, dtype=dtype) for graphs in (True, False)
    )
    assert with_graphs == without
    assert "no graph of" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_overlap_changes_no_draw(checkpoint, batch, dtype):
    how = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 7}
    # A prompt a step, so that the two schedule alike and bfloat16 rounds alike.
    plain, ahead = (
        [
            run(checkpoint, "llama", [prompt], sampling=how, dtype=dtype, overlap=overlap)
            for prompt in batch
        ]
        for overlap in (False, True)
    )
    assert ahead == plain


def test_what_cannot_be_captured_runs_without_graphs(checkpoint, batch, monkeypatch):
    def record(recorder, run):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(CudaRecorder, "record", record)
    tokens = run(checkpoint, "llama", batch, graphs=True)
    assert tokens == [reference(checkpoint("llama")[1], prompt) for prompt in batch]


def test_preemption_among_graphs(checkpoint, batch):
    options = {"num_blocks": 9, "max_num_seqs": 5}
    tokens = run(checkpoint, "llama", batch, graphs=True, overlap=True, **options)
    assert tokens == [reference(checkpoint("llama")[1], prompt) for prompt in batch]
