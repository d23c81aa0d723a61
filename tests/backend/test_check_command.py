"""`refrain backend check`: without a GPU, and in Triton's interpreter in place of one."""

import json

import pytest
import torch

from backend.__main__ import main
from backend.check import copy_bandwidth, decode_seconds, step_bytes
from backend.executor.factory import NO_KERNELS
from backend.models.loading import load_network

pytest_plugins = ["interpreter", "tiny_checkpoints"]

RUN = "interpreted_check:run_command"


def last_line(text):
    return json.loads(text.rstrip().splitlines()[-1])


def test_without_a_gpu_it_says_so_and_what_serves(capsys):
    assert main(["check", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "GPU" in said
    assert "No kernel was run" in said
    assert "PyTorch's attention, element-wise operations and sampling serve instead" in said
    told = last_line(said)
    assert (told["passed"], told["models"]) == (None, [])
    assert told["machine"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_asked_for_and_is_not_there_is_a_failure(capsys):
    assert main(["check", "--device", "cuda"]) == 1
    assert_failed(capsys, "device cuda: torch finds no CUDA device: ")


def assert_failed(capsys, why):
    said, complained = capsys.readouterr()
    told = last_line(said)
    assert told["passed"] is False
    assert told["error"].startswith(why)
    assert complained == f"refrain backend check: {told['error']}\n"


def test_a_model_is_looked_at_even_without_a_gpu(capsys, tmp_path):
    missing = str(tmp_path / "none")
    assert main(["check", "--device", "cpu", "--model", missing]) == 1
    assert_failed(capsys, f"{missing}: no such directory")


def test_a_failure_that_nobody_foresaw_is_on_the_last_line_too(capsys, monkeypatch):
    def fail(name):
        raise RuntimeError("driver\ngone")

    monkeypatch.setattr("backend.check.device_of", fail)
    assert main(["check"]) == 1
    said, complained = capsys.readouterr()
    assert "Traceback" in complained
    assert last_line(said)["error"] == "RuntimeError: driver gone"


def test_without_a_compiler_the_error_says_so(capsys, monkeypatch):
    monkeypatch.setattr("backend.check.device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr("backend.check._facts", lambda _: {})
    monkeypatch.setattr("backend.check.unavailable_reason", lambda: "no C compiler")
    assert main(["check"]) == 1
    told = last_line(capsys.readouterr().out)
    assert (told["passed"], told["error"]) == (False, "Triton cannot compile: no C compiler")


@pytest.mark.parametrize("arguments", [["--device", "tpu"], ["--port", "80"], ["more"]])
def test_bad_usage(capsys, arguments):
    assert main(["check", *arguments]) == 2
    assert "Usage: refrain backend check" in capsys.readouterr().err


def test_help_tells_of_exit_codes(capsys):
    assert main(["check", "--help"]) == 0
    said = capsys.readouterr().out
    assert "exit codes" in said
    assert "--model" in said


@pytest.mark.parametrize("breaks", [None, "silu_mul"])
def test_a_table_and_one_line_of_json(interpreter, checkpoint, breaks):
    directory = str(checkpoint("llama")[0])
    arguments = ["--model", directory, "--device", "cpu", "--max-model-len", "128"]
    code, said = interpreter(RUN, arguments, breaks)
    assert code == int(breaks is not None)
    assert ("DIFFERS" in said) is (breaks is not None)
    assert "GPU" not in said
    (row,) = (line for line in said.splitlines() if line.startswith("silu_mul"))
    assert row.split()[-1] == ("pass" if breaks is None else "DIFFERS")
    told = last_line(said)
    assert told["passed"] is (breaks is None)
    (model,) = told["models"]
    failed = [each["kernel"] for each in model["kernels"] if not each["passed"]]
    assert failed == ([] if breaks is None else ["silu_mul"])
    assert len(model["kernels"]) > 10


def test_a_model_that_is_not_there(interpreter, tmp_path):
    code, said = interpreter(RUN, ["--model", str(tmp_path / "none"), "--device", "cpu"])
    assert code == 1
    assert "no such directory" in last_line(said)["error"]


def test_a_copy_has_a_bandwidth():
    assert copy_bandwidth(torch.device("cpu"), 1 << 20) > 0


def test_what_a_decode_step_takes_and_reads(checkpoint):
    cpu, dtype = torch.device("cpu"), torch.float32
    network = load_network(checkpoint("mistral")[0], device=cpu, dtype="float32")
    assert decode_seconds(network, NO_KERNELS, cpu, dtype, (2, 40)) > 0
    config = network.shape
    # Each layer looks back 20 tokens, at a key and a value of each head.
    per_sequence = config.num_layers * 20 * 2 * config.num_kv_heads * config.head_dim * 4
    one, three = (step_bytes(network, dtype, count, 40) for count in (1, 3))
    assert three - one == 2 * per_sequence
    assert one - per_sequence == network.weights.streamed_bytes


def test_what_a_mixture_reads_is_not_known(checkpoint):
    network = load_network(checkpoint("mixtral")[0], device=torch.device("cpu"), dtype="float32")
    assert step_bytes(network, torch.float32, 1, 40) is None
