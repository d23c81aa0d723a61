"""The self-check finds nothing on a sound GPU, in all types that models come in."""

import shutil

import pytest
import torch
from quantized_checkpoints import LAYOUTS, quantize_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
pytest_plugins = ["tiny_checkpoints"]

from backend.__main__ import main
from backend.executor.factory import KernelGroup
from backend.executor.self_check import self_check
from backend.models.loading import load_network


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen3_moe", "gemma2", "gpt_oss"])
def test_every_kernel_passes(checkpoint, family, dtype):
    device = torch.device("cuda")
    network = load_network(checkpoint(family)[0], device=device, dtype=dtype)
    assert self_check(network, device, network.dtype, 2048).detail == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_product_with_quantised_weights_passes(checkpoint, tmp_path, layout, dtype):
    directory, device = tmp_path / "model", torch.device("cuda")
    shutil.copytree(checkpoint("qwen2")[0], directory)
    quantize_checkpoint(directory, layout)
    network = load_network(directory, device=device, dtype=dtype)
    checked = self_check(network, device, network.dtype, 2048)
    assert checked.detail == ()
    assert any(each.group is KernelGroup.MATMUL for each in checked.findings)


def test_the_command_measures_bandwidth_and_steps(capsys):
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    assert "memory bandwidth" in said
    assert said.count("of the bandwidth bound") == 4
