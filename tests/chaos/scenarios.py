"""The scenarios: what fails, what clients may see of it, and what must be found afterwards."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import installation as faults
from tests.chaos import upstream as moods
from tests.chaos.installation import EXACT_ONLY, Fault, opened
from tests.chaos.load import BAD, Client, Load, Tally

CALM_SECONDS = 0.5
RECOVERY_SECONDS = 60.0
"""A gateway that is not well again by then will not be."""
REDIS_BEHIND_SECONDS = 2.0
"""With ``appendfsync everysec``, Redis may answer so long before it writes."""

DEFECTS = ("Traceback", "request failed", "stream failed", "call to the upstream failed")
"""Words of the log that say that the gateway itself is wrong."""

REFUSALS = frozenset({500, 502, 503, 504, 429})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fault, and what clients may see."""

    name: str
    fault: Fault
    errors: frozenset[int] = frozenset()
    """The statuses that clients may get; 200 stands for a stream that ends with an error."""
    may_break: bool = False
    """Whether connections of clients may break."""
    may_lose: float | None = None
    """Answers of so many seconds before the fault, and those during it, may be lost. None: none."""
    instant: bool = False
    """Whether the fault is over as soon as it has begun: what follows is recovery."""
    store: str = "disk"
    upstreams: int = 2
    workers: int = 1
    by_meaning: bool = False
    small_disk: bool = False
    clock: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    short: bool = False
    """Whether the normal run of tests has it, for a shorter time."""


@dataclass(frozen=True)
class Result:
    """What was seen, and what must not have been."""

    figures: dict[str, Any]
    broken: Sequence[str]


async def run(
    scenario: Scenario, folder: Path, seconds: float, *, patience: float = RECOVERY_SECONDS
) -> Result:
    """Run a scenario. Raises UnavailableError if the machine lacks what it needs."""
    async with AsyncExitStack() as stack:
        there = await opened(
            stack,
            folder,
            store=scenario.store,
            upstreams=scenario.upstreams,
            workers=scenario.workers,
            policy=None if scenario.by_meaning else EXACT_ONLY,
            small_disk=scenario.small_disk,
            clock=scenario.clock,
            settings=scenario.settings,
        )
        client = Client(there.url)
        stack.push_async_callback(client.close)
        load = Load(client, by_meaning=scenario.by_meaning)
        await load.ask_known()
        calm = load.tally.slowest
        with load.running():
            await asyncio.sleep(CALM_SECONDS)
            calm, load.tally.slowest = load.tally.slowest, 0.0
            began = time.monotonic()
            async with scenario.fault(there):
                await asyncio.sleep(0.0 if scenario.instant else seconds)
                ended = time.monotonic()
            recovery = await load.recovered(ended, patience)
        slowest = load.tally.slowest
        before = time.monotonic() if scenario.may_lose is None else began
        # On a busy machine a write to Redis may be too late, and then no reply says "stored".
        lost = await load.lost(before, promised=scenario.store != "disk")
        ages = [began - at for at in lost]
        broken = [] if await client.is_idle() else ["calls of the upstream are left"]
        if cut := there.cut_lines():
            broken.append(f"{cut} lines of the decision log are cut")
        await there.stop()
        defects = [line for line in there.log if any(words in line for words in DEFECTS)]
        broken += [f"{len(defects)} defects in the log: {line}" for line in defects[:2]]
        figures, seen = _judged(scenario, load.tally, recovery, ages)
        figures["calm_slowest_s"], figures["slowest_s"] = round(calm, 3), round(slowest, 3)
        if there.events:
            figures["events"] = there.events
        return Result(figures, [*seen, *broken])


def _judged(
    scenario: Scenario, tally: Tally, recovery: float | None, ages: list[float]
) -> tuple[dict[str, Any], list[str]]:
    kinds = tally.kinds
    broken = [f"{kinds[kind]} {kind}" for kind in BAD if kinds[kind]] + tally.faults
    unwanted = {status: n for status, n in tally.statuses.items() if status not in scenario.errors}
    if unwanted:
        broken.append(f"errors {unwanted}")
    if kinds["broke"] and not scenario.may_break:
        broken.append(f"{kinds['broke']} connections broke")
    if recovery is None:
        broken.append("no recovery")
    too_old = [age for age in ages if scenario.may_lose is None or age > scenario.may_lose]
    if too_old:
        broken.append(f"{len(too_old)} answers lost, up to {max(too_old):.2f} s before the fault")
    figures: dict[str, Any] = {
        "requests": sum(kinds.values()),
        "hits": kinds["hit"],
        "misses": kinds["miss"],
        "errors": {str(status): n for status, n in sorted(tally.statuses.items())},
        "broke": kinds["broke"],
        "garbage": kinds["garbage"],
        **{kind: kinds[kind] for kind in BAD},
        "answers": len(tally.answered),
        "lost": len(ages),
        "oldest_lost_s": round(max(ages), 3) if ages else None,
        "recovery_s": None if recovery is None else round(recovery, 2),
    }
    return figures, broken


def _of_upstreams() -> list[Scenario]:
    storm = moods.refuses("500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable")
    limits = moods.refuses("429 Too Many Requests", fields="Retry-After: 1\r\n")
    midway = frozenset({200})
    return [
        Scenario(name="no fault", fault=faults.nothing),
        Scenario(name="upstream latency", fault=faults.mood(moods.late(0.4))),
        Scenario(name="upstream stalls", fault=faults.mood(moods.stalls, of=0), errors=REFUSALS),
        Scenario(
            name="upstream stalls midway",
            fault=faults.mood(moods.stalls_midway, of=0),
            errors=midway | REFUSALS,
            may_break=True,
        ),
        Scenario(
            name="upstream resets midway",
            fault=faults.mood(moods.resets_midway, of=0),
            errors=midway | REFUSALS,
            may_break=True,
            short=True,
        ),
        Scenario(
            name="only upstream resets midway",
            fault=faults.mood(moods.resets_midway),
            errors=midway | REFUSALS,
            may_break=True,
            upstreams=1,
        ),
        Scenario(name="upstream drips", fault=faults.mood(moods.drips)),
        Scenario(
            name="upstream closes early",
            fault=faults.mood(moods.closes_early),
            errors=midway | REFUSALS,
            may_break=True,
        ),
        Scenario(name="upstream is no HTTP", fault=faults.mood(moods.babbles, of=0)),
        Scenario(
            name="upstream answers garbage",
            fault=faults.mood(moods.answers_garbage),
            errors=midway | REFUSALS,
        ),
        Scenario(name="5xx storm at one", fault=faults.mood(storm, of=0)),
        Scenario(name="5xx storm at all", fault=faults.mood(storm), errors=REFUSALS),
        Scenario(
            name="5xx storm at the only one",
            fault=faults.mood(storm),
            errors=REFUSALS,
            upstreams=1,
        ),
        Scenario(name="429 storm at one", fault=faults.mood(limits, of=0)),
        Scenario(name="429 storm at all", fault=faults.mood(limits), errors=REFUSALS),
        Scenario(name="upstream gone", fault=faults.upstream_gone),
        Scenario(
            name="only upstream gone", fault=faults.upstream_gone, errors=REFUSALS, upstreams=1
        ),
    ]


def _of_stores() -> list[Scenario]:
    found = []
    for version in ("6.2", "7", "8", "valkey"):
        store = f"redis {version}"
        for name, fault in (
            ("frozen", faults.redis_frozen),
            ("gone", faults.redis_gone),
            ("full", faults.redis_full),
            ("slow", faults.redis_slow),
        ):
            found.append(
                Scenario(
                    name=f"{store} {name}",
                    fault=fault,
                    store=store,
                    may_lose=REDIS_BEHIND_SECONDS if name == "gone" else 0.0,
                )
            )
    logged = {"decision_log": "decisions.jsonl", "store_bytes": 4 << 20}
    return [
        *found,
        Scenario(
            name="disk full",
            fault=faults.disk_full,
            small_disk=True,
            settings=logged,
            may_lose=0.0,
        ),
        Scenario(
            name="disk full, two workers",
            fault=faults.disk_full,
            small_disk=True,
            settings=logged,
            may_lose=0.0,
            workers=2,
        ),
        Scenario(name="no file may grow", fault=faults.no_file_may_grow, may_lose=0.0),
    ]


def _of_processes() -> list[Scenario]:
    return [
        Scenario(
            name="worker killed",
            fault=faults.killed(faults.WORKER),
            instant=True,
            may_lose=0.0,
            may_break=True,
        ),
        Scenario(
            name="one of two workers killed",
            fault=faults.killed(faults.WORKER),
            instant=True,
            may_lose=0.0,
            workers=2,
            may_break=True,
        ),
        Scenario(
            name="embeddings killed",
            fault=faults.killed(faults.EMBEDDINGS),
            instant=True,
            by_meaning=True,
        ),
        Scenario(
            name="supervisor killed",
            fault=faults.supervisor_killed,
            instant=True,
            may_lose=0.0,
            may_break=True,
        ),
        # What is too old by the wrong clock may be deleted.
        Scenario(
            name="clock 2 h ahead",
            fault=faults.clock_jumps("+2h"),
            clock=True,
            may_lose=math.inf,
        ),
        # What is stored by yesterday's clock is too old by today's.
        Scenario(
            name="clock a day back", fault=faults.clock_jumps("-1d"), clock=True, may_lose=0.0
        ),
        Scenario(
            name="all at once",
            fault=faults.all_at_once,
            store="redis 7",
            workers=2,
            errors=frozenset({200}) | REFUSALS,
            may_break=True,
            may_lose=0.0,
            short=True,
        ),
    ]


SCENARIOS = [*_of_upstreams(), *_of_stores(), *_of_processes()]
