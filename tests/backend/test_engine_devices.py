"""Where an engine computes: what the names of devices mean, and what is said without a GPU."""

import re

import pytest
import torch

from backend.engine import loading
from backend.engine.loading import device_of, load_engine
from backend.executor.factory import NO_KERNELS, make_runner, read_memory
from backend.executor.input_batch import BatchLimits
from backend.executor.kv_cache import KVCache
from backend.models.config import ModelLoadError
from backend.models.loading import load_network

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")
LIMITS = BatchLimits(2, 2, 16, 64)


@pytest.fixture
def chosen(monkeypatch):
    """Two GPUs, the first of which is the thread's; returns what threads choose."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    """A driver, and a torch that finds no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loading, "_DRIVER_FILES", (tmp_path / "none", tmp_path))


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1", ""])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ModelLoadError, match=re.escape(f"cuda or cuda:N, got '{name}'")):
        load_engine("./any", device=name)


@pytest.mark.parametrize(
    ("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)]
)
def test_a_gpu_is_chosen_by_its_number(chosen, name, index):
    assert device_of(name) == torch.device("cuda", index)
    assert chosen == [index]


def test_a_gpu_that_is_not_there_is_refused(chosen):
    with pytest.raises(ModelLoadError, match="device cuda:2: torch finds 2 CUDA devices"):
        device_of("cuda:2")
    assert device_of("cpu") == CPU
    assert not chosen


@pytest.mark.parametrize(
    ("cuda", "error", "said"),
    [
        (None, "", "it is built without CUDA; install the extra gpu"),
        (
            "13.0",
            "The NVIDIA driver on\nyour system is too old",
            "driver on your system is too old",
        ),
        ("13.0", "No CUDA GPUs are available", "look at CUDA_VISIBLE_DEVICES"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_auto_says_why_it_takes_the_cpu_beside_a_driver(monkeypatch, caplog, cuda, error, said):
    def init():
        raise RuntimeError(error)

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert device_of("auto") == CPU
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert said in record.getMessage()
    with pytest.raises(ModelLoadError, match=f"device cuda:1: .*{said}"):
        device_of("cuda:1")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_driver_auto_takes_the_cpu_and_says_nothing(monkeypatch, caplog):
    monkeypatch.setattr(loading, "_DRIVER_FILES", ())
    assert device_of("auto") == CPU
    assert not caplog.records


def test_the_thread_that_warms_up_launches_on_the_models_gpu(checkpoint, chosen, monkeypatch):
    network = load_network(checkpoint("llama")[0], device=CPU, dtype="float32")
    cache = KVCache(network.shape, 4, device=CPU, dtype=torch.float32)
    runner = make_runner(network, cache, LIMITS, kernels=NO_KERNELS)
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(runner, "device", gpu)
    runner.warm_up()
    assert chosen == [gpu]


def test_memory_is_measured_on_the_engines_device(checkpoint, monkeypatch):
    network = load_network(checkpoint("llama")[0], device=CPU, dtype="float32")
    devices = []
    for name, result in {
        "memory_allocated": 10,
        "reset_peak_memory_stats": None,
        "synchronize": None,
        "max_memory_allocated": 30,
        "mem_get_info": (100, 200),
    }.items():
        monkeypatch.setattr(
            torch.cuda, name, lambda device, result=result: devices.append(device) or result
        )
    reading = read_memory(
        network, LIMITS, device=CPU, kv_dtype=network.dtype, utilization=0.5, kernels=NO_KERNELS
    )
    assert (reading.weights, reading.step, reading.free) == (10, 20, 100)
    assert devices == [CPU] * 5
