"""Ranks that compute one model together: a process each, with the same runner over its part.

Rank 0 has the scheduler. It tells the others each call of its runner before it makes the call
itself, so all do the same collective operations in the same order. Every rank samples: logits have
the same bits everywhere and noise is keyed, so tokens stay where the next step reads them.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from backend.executor.model_runner import InFlight, Launched, ModelRunner
from backend.executor.sampled import Sampled
from backend.executor.sampler.sampler import GrammarMask
from backend.executor.shared_memory import COLLECTIVE_SECONDS, Shared, SharedMemory
from backend.scheduler.batch import StepBatch

T = TypeVar("T")

LOOPBACK = "127.0.0.1"


class Group:
    """``Communicator`` by torch.distributed: NCCL on CUDA, on the CPU gloo and shared memory."""

    def __init__(
        self,
        rank: int,
        size: int,
        port: int,
        device: torch.device,
        *,
        shared: Shared | None = None,
        listening: int | None = None,
    ) -> None:
        """Join the group whose store is at ``port`` of this host; rank 0 has ``listening`` there.

        ``device`` is this rank's. Without ``shared`` all goes through gloo. Raises RuntimeError
        when not all ranks come.
        """
        # An engine of one rank does without it.
        from torch import distributed  # noqa: PLC0415

        # The ranks are on one host, and nobody else is to reach their sockets.
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
        self.rank, self.size = rank, size
        on_cpu = device.type == "cpu"
        self._memory = SharedMemory(rank, shared) if shared and on_cpu else None
        self._distributed: Any = distributed
        timeout = timedelta(seconds=COLLECTIVE_SECONDS)
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK,
            port,
            size,
            is_master=rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listening,
        )
        distributed.init_process_group(
            "gloo" if on_cpu else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timeout,
        )

    def all_reduce(self, part: Tensor) -> Tensor:
        """Return the sum over ranks, with the same bits on each; ``part`` may be overwritten."""
        # A product may lie transposed in memory, or have a gap behind each row.
        part = part.contiguous()
        if self._memory is not None:
            return self._memory.all_reduce(part)
        self._distributed.all_reduce(part)
        return part

    def all_gather(self, part: Tensor) -> Tensor:
        """Return [rows, size * columns] of [rows, columns] from each rank, in their order."""
        part = part.contiguous()
        if self._memory is not None:
            return self._memory.all_gather(part)
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._distributed.all_gather(parts, part)
        return torch.cat(parts, dim=-1)

    def exchange(self, value: T) -> list[T]:
        """Return the ``value`` of each rank; to agree on numbers while loading."""
        values: list[Any] = [None] * self.size
        self._distributed.all_gather_object(values, value)
        return values


@dataclass(frozen=True, slots=True)
class Call:
    """A call of rank 0's runner, which the others repeat."""

    method: str
    argument: Any = None


class LeadingRunner:
    """Rank 0's runner: ``ModelRunner`` for the engine, which the other ranks follow.

    Whatever it raises ends the group: the others may be in the middle of a collective operation,
    so neither a smaller step nor a next one can be computed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tell: Callable[[Call], None],
        end: Callable[[Exception], NoReturn],
    ) -> None:
        """``tell`` sends a call to all other ranks, ``end`` ends this process and theirs."""
        self._runner = runner
        self._tell = tell
        self._end = end
        self.device = runner.device
        self.vocab_size = runner.vocab_size
        self.transfer = runner.transfer  # None: tiers are of one rank
        self.block_bytes = runner.block_bytes

    def launch(self, step: StepBatch) -> Launched:
        """Compute the hidden states of ``step``."""
        return self._all("launch", step, lambda: self._runner.launch(step))

    def sample(self, launched: Launched, mask: GrammarMask | None = None) -> InFlight:
        """Choose the next tokens."""
        told = None if mask is None else (mask.rows, mask.bits.numpy())
        return self._all("sample", told, lambda: self._runner.sample(launched, mask))

    def collect(self, in_flight: InFlight) -> list[Sampled | None]:
        """Wait, and return the tokens of each row that samples, in the step's order."""
        return self._all("collect", None, lambda: self._runner.collect(in_flight))

    def discard(self, blocks: Iterable[int]) -> None:
        """Erase blocks whose content is not finite."""
        rows = tuple(blocks)
        self._all("discard", rows, lambda: self._runner.discard(rows))

    def warm_up(self) -> None:
        """Compile and capture on all ranks, in one order."""
        self._all("warm_up", None, self._runner.warm_up)

    def sleep(self) -> None:
        """Give memory back on all ranks."""
        self._all("sleep", None, self._runner.sleep)

    def wake(self) -> None:
        """Take the memory again and warm up, on all ranks in one order."""
        self._all("wake", None, self._runner.wake)

    def _all(self, method: str, argument: object, run: Callable[[], T]) -> T:
        try:
            self._tell(Call(method, argument))
            return run()
        except Exception as error:  # noqa: BLE001  # it ends the process, with a reason
            self._end(error)


_PLAIN = {
    each.__name__: each for each in (ModelRunner.warm_up, ModelRunner.sleep, ModelRunner.wake)
}


def follow(runner: ModelRunner, calls: Iterator[Call]) -> None:
    """Make the ``calls`` of rank 0 on another rank, until they end."""
    launched: Launched | None = None
    in_flight: deque[InFlight] = deque()
    for call in calls:
        match call.method:
            case "launch":
                launched = runner.launch(call.argument)
            case "sample":
                if launched is None:
                    raise RuntimeError("nothing was launched")
                mask = None
                if call.argument is not None:
                    rows, bits = call.argument
                    mask = GrammarMask(rows, torch.from_numpy(bits))
                in_flight.append(runner.sample(launched, mask))
                launched = None  # it may be the output of a graph, whose memory it would hold
            case "collect":
                runner.collect(in_flight.popleft())
            case "discard":
                runner.discard(call.argument)
            case method:
                _PLAIN[method](runner)
