"""Resident memory of a gateway at the bound of its entries (``memory_bytes``).

So many distinct questions come one after another, and then as many more, a fifth of them streamed,
and another fifth of the requests ask again. The entries of the first half are several times the
bound. So the second half is to add nothing: what counts is the memory after it beside the memory
after the first half. The semantic cache is off unless ``--semantic`` is given.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import orjson
from load import post, run_load
from servers import EXACT_ONLY, processes, resident_mib, role, start_gateway, start_upstream

STEPS = 5
CONNECTIONS = 16
MAX_GROWTH = 0.05


def requests(first: int, last: int) -> Iterator[bytes]:
    """Yield requests for the questions of these numbers, and some of them again."""
    for number in range(first, last):
        text = f"What is number {number} of the list?"
        body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
        yield post(orjson.dumps(body | {"stream": number % 5 == 1}))
        if number % 5 == 0 and number - 7 >= first:
            text = f"What is number {number - 7} of the list?"
            body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
            yield post(orjson.dumps(body))


def resident(leader: int) -> dict[str, float]:
    """Return the memory of the gateway's processes in MiB, and of all together."""
    found: dict[str, float] = {}
    for process in processes(leader):
        name = "supervisor" if process == leader else role(process)
        found[name] = found.get(name, 0.0) + resident_mib(process)
    return found | {"all": sum(found.values())}


def main() -> None:
    """Run it, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bound-mib", type=int, default=32, help="memory_bytes (default: 32)")
    parser.add_argument("--requests", type=int, default=100_000, help="distinct, twice")
    parser.add_argument("--semantic", action="store_true", help="with semantic lookups")
    options = parser.parse_args()
    figures: list[tuple[int, dict[str, float]]] = []
    with ExitStack() as stack:
        gateway = start_gateway(
            stack,
            start_upstream(stack),
            core=None,
            policy=None if options.semantic else EXACT_ONLY,
            settings={"memory_bytes": f"{options.bound_mib}MiB"},
        )
        run_load(gateway.port, requests(-200, 0), connections=1)
        figures.append((0, resident(gateway.process)))
        for step in range(2 * STEPS):
            first, last = (each * options.requests // STEPS for each in (step, step + 1))
            run_load(gateway.port, requests(first, last), connections=CONNECTIONS)
            figures.append((last, resident(gateway.process)))
            print(f"{last} questions", file=sys.stderr)
    names = [name for name in figures[0][1] if name != "all"] + ["all"]
    print(f"resident memory in MiB; entries in memory are bounded by {options.bound_mib} MiB")
    print(f"{'questions':>10}" + "".join(f"{name:>12}" for name in names))
    for done, mib in figures:
        print(f"{done:>10,}" + "".join(f"{mib[name]:>12.1f}" for name in names))
    half, end = figures[STEPS][1], figures[-1][1]
    growth = {name: end[name] / half[name] - 1 for name in names}
    flat = growth["all"] <= MAX_GROWTH
    told = ", ".join(f"{name} {100 * growth[name]:+.1f} %" for name in names)
    print(f"the second half: {told} (aim {100 * MAX_GROWTH:.0f} %: {'flat' if flat else 'missed'})")
    report = {"bound_mib": options.bound_mib, "requests": options.requests, "flat": flat}
    report |= {f"{name}_growth": round(growth[name], 4) for name in names}
    report |= {"grown_mib": round(end["all"] - figures[0][1]["all"], 1)}
    print(json.dumps({"benchmark": "memory_bound", **report}))


if __name__ == "__main__":
    main()
