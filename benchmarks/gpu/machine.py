"""The device: what it is, how fast it copies, how to time what runs on it."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor


@dataclass(frozen=True)
class Machine:
    """Where things run; ``smoke`` is tiny and on CPU, in Triton's interpreter."""

    device: torch.device
    dtype: torch.dtype
    smoke: bool

    @classmethod
    def here(cls, *, smoke: bool) -> "Machine":
        if smoke:
            return cls(torch.device("cpu"), torch.float32, smoke=True)
        return cls(torch.device("cuda"), torch.bfloat16, smoke=False)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
        if not self.smoke:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {
                "device": properties.name,
                "processors": properties.multi_processor_count,
                "memory_gib": round(properties.total_memory / 2**30, 1),
            }
        return facts

    @property
    def processors(self) -> int:
        if self.smoke:
            return 2
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def synchronise(self) -> None:
        if not self.smoke:
            torch.cuda.synchronize()

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def seconds(self, calls: Sequence[Callable[[], Any]], repetitions: int = 30) -> float:
        """Return the median time of one of ``calls``, which take turns over inputs of their own.

        On a GPU they are captured as one graph, so that launching costs nothing.
        """
        if self.smoke:
            start = time.perf_counter()
            for call in calls:
                call()
            return (time.perf_counter() - start) / len(calls)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                for call in calls:
                    call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        times: list[float] = []
        for _ in range(repetitions):
            start_event, end_event = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            start_event.record()
            graph.replay()
            end_event.record()
            end_event.synchronize()
            times.append(float(start_event.elapsed_time(end_event)) / 1000 / len(calls))
        return statistics.median(times)
