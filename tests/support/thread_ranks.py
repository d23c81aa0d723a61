"""Ranks in threads of one process: real runners and shared memory, and no process to wait for."""

import os
import pickle
import queue
import threading

from backend.engine.engine import Engine
from backend.engine.loading import load_model, load_runner
from backend.executor.parallel import follow
from backend.executor.shared_memory import Shared, SharedMemory
from backend.settings import EngineOptions


class ThreadGroup(SharedMemory):
    """A rank's communicator; ``values`` and ``barrier`` belong to all."""

    def __init__(self, rank, shared, values, barrier):
        super().__init__(rank, shared)
        self._values, self._barrier = values, barrier

    def all_reduce(self, part):
        return super().all_reduce(part.contiguous())

    def all_gather(self, part):
        return super().all_gather(part.contiguous())

    def exchange(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        values = [self._values[rank] for rank in range(self.size)]
        self._barrier.wait(60)
        return values


class ThreadRanks:
    """As ``engine.ranks.Ranks``."""

    def __init__(self, options):
        self.size = options.tensor_parallel_size
        self.errors = []
        self._shared = Shared.make(self.size)
        self._values, self._barrier = {}, threading.Barrier(self.size)
        self._queues = [queue.SimpleQueue() for _ in range(1, self.size)]
        self._threads = [
            threading.Thread(target=self._follow, args=(options, rank), daemon=True)
            for rank in range(1, self.size)
        ]
        for thread in self._threads:
            thread.start()

    def group(self, rank):
        return ThreadGroup(rank, self._shared, self._values, self._barrier)

    def join(self, device):
        assert device.type == "cpu"
        return self.group(0)

    def tell(self, call):
        data = pickle.dumps(call)
        for each in self._queues:
            each.put(data)

    def end(self, error):
        raise error

    def close(self):
        """End the threads; raise what one of them raised."""
        for each in self._queues:
            each.put(None)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        for descriptor in self._shared.descriptors:
            os.close(descriptor)
        for error in self.errors:
            raise error

    def _follow(self, options, rank):
        try:
            loaded = load_runner(options, print, rank=rank, join=lambda _: self.group(rank))
            calls = iter(self._queues[rank - 1].get, None)
            follow(loaded.runner, map(pickle.loads, calls))
        except Exception as error:  # noqa: BLE001 (``close`` raises it)
            self.errors.append(error)
            self._barrier.abort()


def parallel_engine(model, ranks=2, **options):
    """Return an engine of several ranks that is yet to be started, and its ranks."""
    given = EngineOptions(str(model), **{"device": "cpu"} | options, tensor_parallel_size=ranks)
    others = ThreadRanks(given)
    loaded = load_model(given, ranks=others)
    return Engine(loaded.core, loaded.tokenizer, loaded.description), others
