"""Gateways that know nothing of one another before four replicas: with and without load_signal.

A simulation with the real table and routing. Each replica takes 16 requests at a time and queues
the others; one of the four is half as fast. Requests last 4 s on average, and arrive at 90 % of
what the replicas can do. The figure is the wait in a replica's queue. The peer in the same run is
the same without the signal.

    python benchmarks/load_signal.py [--rounds N]
"""

import argparse
import json
import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from gateway.upstream.pool.routing import LeastLoaded, PrefixAware
from gateway.upstream.pool.table import Call, PoolTable
from gateway.upstream.pool.upstream_state import Member
from gateway.upstream.pool.watch.engine_load import EngineLoad
from gateway.upstream.pool.watch.probes import LOAD_SECONDS
from gateway.upstream.request import Outgoing

SLOTS = 16
MEAN_SECONDS = 4.0
SPEEDS = {"r0": 0.5, "r1": 1.0, "r2": 1.0, "r3": 1.0}
UTILISATION = 0.9
SECONDS = 600.0
PROMPTS = 200
BLOCKS = 8


@dataclass
class Replica:
    """An engine with a queue."""

    speed: float
    running: int = 0
    queue: deque[tuple[PoolTable, Call, float]] = field(default_factory=deque)

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(self.running, len(self.queue), 0.9 * self.running / SLOTS)


class Simulation:
    """One run; ``waits`` has the seconds of each request in a queue."""

    def __init__(self, tables: list[PoolTable], seed: int) -> None:
        self.random = random.Random(seed)
        self.tables = tables
        self.replicas = {name: Replica(speed) for name, speed in SPEEDS.items()}
        self.waits: list[float] = []
        self._events: list[tuple[float, int, tuple[object, ...]]] = []
        self._numbers = count()

    def at(self, now: float, *event: object) -> None:
        heappush(self._events, (now, next(self._numbers), event))

    def run(self, *, signal: bool) -> None:
        rate = UTILISATION * SLOTS * sum(SPEEDS.values()) / MEAN_SECONDS
        self.at(0.0, "arrival")
        phase = random.Random(0)
        for table in self.tables if signal else ():
            for name in self.replicas:
                self.at(phase.random() * LOAD_SECONDS, "reading", table, name)
        now = 0.0
        while now < SECONDS:
            now, _, event = heappop(self._events)
            match event:
                case ("arrival",):
                    self.at(now + self.random.expovariate(rate), "arrival")
                    self.arrive(now)
                case ("end", PoolTable() as table, Call() as call):
                    table.release(call)
                    replica = self.replicas[call.name]
                    replica.running -= 1
                    if replica.queue:
                        self.begin(*replica.queue.popleft(), now)
                case ("reading", PoolTable() as table, str(name)):
                    table.record_load(name, self.replicas[name].load, now)
                    self.at(now + LOAD_SECONDS, "reading", table, name)

    def arrive(self, now: float) -> None:
        table, prompt = self.random.choice(self.tables), self.random.randrange(PROMPTS)
        prefix = tuple(hash((prompt, block)) for block in range(BLOCKS))
        call = table.acquire(Outgoing("/v1/chat/completions", (), b"", "m", prefix), now)
        assert isinstance(call, Call)
        table.first_byte(call, now)
        replica = self.replicas[call.name]
        if replica.running < SLOTS:
            self.begin(table, call, now, now)
        else:
            replica.queue.append((table, call, now))

    def begin(self, table: PoolTable, call: Call, arrived: float, now: float) -> None:
        replica = self.replicas[call.name]
        replica.running += 1
        self.waits.append(now - arrived)
        seconds = self.random.expovariate(1 / MEAN_SECONDS) / replica.speed
        self.at(now + seconds, "end", table, call)


def figures(routing: type[LeastLoaded], gateways: int, rounds: int, *, signal: bool) -> list[float]:
    """Return the mean wait, and that of the slowest in a hundred."""
    waits: list[float] = []
    for seed in range(rounds):
        members = [Member(name) for name in SPEEDS]
        tables = [PoolTable(members, routing(), 0.0) for _ in range(gateways)]
        simulation = Simulation(tables, seed)
        simulation.run(signal=signal)
        waits += simulation.waits
    waits.sort()
    return [sum(waits) / len(waits), waits[int(0.99 * len(waits))]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    results = {}
    print(f"{'routing, gateways':24}{'without: mean, p99':>22}{'with: mean, p99':>22}")
    for name, routing in (("load", LeastLoaded), ("prefix", PrefixAware)):
        for gateways in (1, 2, 8):
            without = figures(routing, gateways, rounds, signal=False)
            read = figures(routing, gateways, rounds, signal=True)
            place = f"{name}, {gateways}"
            shown = ["{:.2f} s, {:.2f} s".format(*each) for each in (without, read)]
            print(f"{place:24}{shown[0]:>22}{shown[1]:>22}")
            results[place] = {"without": without, "with": read}
    print(json.dumps({"benchmark": "load_signal", "results": results}))


if __name__ == "__main__":
    main()
