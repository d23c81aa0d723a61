"""The self-check finds nothing on a sound GPU, in all types that models come in."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
pytest_plugins = ["tiny_checkpoints"]

from backend.__main__ import main
from backend.executor.self_check import self_check
from backend.models.loading import load_network


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_every_kernel_passes(checkpoint, family, dtype):
    device = torch.device("cuda")
    network = load_network(checkpoint(family)[0], device=device, dtype=dtype)
    assert self_check(network, device, network.dtype, 2048).detail == ()


def test_the_command_measures_bandwidth_and_steps(capsys):
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    assert "memory bandwidth" in said
    assert said.count("of the bandwidth bound") == 4
