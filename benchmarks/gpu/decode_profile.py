"""What one decode step does on the device: torch's profiler, its largest rows."""

import statistics
import time
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from backend.engine.core import EngineCore
from gpu.machine import Machine, Note
from gpu.serving import BATCHES, CONTEXT
from gpu.shapes import advance, card_shape, engine, generate, random_model, random_prompts, submit

ROWS = 25
_STEPS = 8
"""Steps that are timed without the profiler; two more are profiled."""


def decode_profile(machine: Machine, note: Note) -> None:
    """Profile a step without overlap, so that it holds one step's work and no other's."""
    name, values = card_shape(machine)
    note("shape", name)
    model = random_model(machine, values)
    for count in (2,) if machine.smoke else BATCHES:
        context = 8 if machine.smoke else CONTEXT
        steps = 2 if machine.smoke else _STEPS
        longest = context + steps + 8
        with engine(
            machine,
            model,
            max_num_seqs=count,
            max_model_len=longest,
            overlap=False,
        ) as core:
            prompts = random_prompts(model.config.vocab_size, [context] * count)
            # Once the prefix cache has the prompts, all of them decode from the first steps on.
            generate(core, prompts, [1] * count)
            submit(core, prompts, [longest - context] * count)
            for _ in range(3):
                advance(core)
            if core.scheduler.num_running != count:
                raise RuntimeError(f"{core.scheduler.num_running} of {count} sequences run")
            note(f"{count} x {context}", _profiled(machine, core, steps))
        del core


def _profiled(machine: Machine, core: EngineCore, steps: int) -> dict[str, Any]:
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        core.step()
        times.append(time.perf_counter() - start)
    activities = [ProfilerActivity.CPU, *([] if machine.smoke else [ProfilerActivity.CUDA])]
    # The first profile starts the profiler itself.
    for _ in range(2):
        with profile(activities=activities) as profiler:
            core.step()
            machine.synchronise()
    where = DeviceType.CPU if machine.smoke else DeviceType.CUDA
    every = [
        {"name": each.key[:120], "calls": each.count, "us": _own_time(each, where)}
        for each in profiler.key_averages()
        if each.device_type == where
    ]
    every.sort(key=lambda row: -float(row["us"]))
    device = sum(float(row["us"]) for row in every)
    step = statistics.median(times) * 1e6
    return {
        "step_us": step,
        "device_us": device,
        "device_share_of_step": device / step,
        "kernels": sum(int(row["calls"]) for row in every),
        "rows": every[:ROWS],
    }


def _own_time(event: Any, where: DeviceType) -> float:
    if where == DeviceType.CPU:
        return float(event.self_cpu_time_total)
    # Older versions of torch say cuda where newer ones say device.
    older = getattr(event, "self_cuda_time_total", 0.0)
    return float(getattr(event, "self_device_time_total", older))
