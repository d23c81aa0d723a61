"""Two gateway workers beside one on exact hits, told honestly on two cores.

The client needs a core, too, so the rate of two workers on two cores is bounded by the client: what
could be reached is two cores by the processor time of a hit and of its request. The table has that
ceiling beside the rate. What does not depend on the client is the processor time that all processes
of the gateway take for a hit: if it is the same with two workers, two cores answer twice as much.

Hits repeat the same bytes, or ask the same in other bytes each time, which takes a worker much
longer and wrk no longer: there the client counts for little. Nothing is bound to a core, since a
processor that is bound takes another time for the same work. Rounds alternate.
"""

import argparse
import json
import resource
import statistics
import sys
from contextlib import ExitStack

from load import OTHER_BYTES, Client, post, question, run_wrk
from servers import EXACT_ONLY, processor_seconds, start_gateway, start_upstream

CASES = {"same bytes": "", "other bytes": OTHER_BYTES}
Figures = dict[str, list[float]]


def measure(rounds: int, seconds: float, connections: int) -> dict[str, Figures]:
    """Return the figures of all rounds by case: rate, and seconds of processor a hit."""
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        gateways = {}
        for number in (1, 2):
            gateways[number] = start_gateway(
                stack, upstream, core=None, policy=EXACT_ONLY, settings={"workers": number}
            )
            for _ in range(20):  # a connection each, so that every worker has the entry
                with Client(gateways[number].port) as client:
                    client.ask(post(question()))
        results: dict[str, Figures] = {name: {} for name in CASES}
        for each in range(rounds):
            print(f"round {each + 1} of {rounds}", file=sys.stderr)
            for name, vary in CASES.items():
                for number, server in gateways.items():
                    before = processor_seconds(server.process), _client_seconds()
                    got = run_wrk(
                        server.port,
                        question(),
                        connections=connections,
                        seconds=seconds,
                        vary=vary,
                    )
                    spent = processor_seconds(server.process) - before[0]
                    asked = _client_seconds() - before[1]
                    for key, value in (
                        ("rate", got.rate),
                        ("hit", spent / got.requests),
                        ("request", asked / got.requests),
                    ):
                        results[name].setdefault(f"{key} {number}", []).append(value)
        return results


def _client_seconds() -> float:
    """Return the processor time of all clients so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    results = measure(options.rounds, options.seconds, options.connections)
    told: dict[str, float] = {}
    print(f"{'hits, 32 connections':22}{'1 worker/s':>11}{'2 workers/s':>12}{'ratio':>7}", end="")
    print(f"{'could be':>10}{'us a hit: 1':>13}{'2':>6}{'ratio':>7}{'client us':>11}")
    for name, of in results.items():
        middle = {key: statistics.median(values) for key, values in of.items()}
        ratio = statistics.median(b / a for a, b in zip(of["rate 1"], of["rate 2"], strict=True))
        scaled = statistics.median(a / b for a, b in zip(of["hit 1"], of["hit 2"], strict=True))
        could = 2 / (middle["hit 1"] + middle["request 1"]) / middle["rate 1"]
        print(f"{name:22}{middle['rate 1']:>11.0f}{middle['rate 2']:>12.0f}{ratio:>7.2f}", end="")
        print(f"{could:>10.2f}{1e6 * middle['hit 1']:>13.1f}{1e6 * middle['hit 2']:>6.1f}", end="")
        print(f"{scaled:>7.2f}{1e6 * middle['request 1']:>11.1f}")
        key = name.replace(" ", "_")
        told |= {f"{key}_ratio": ratio, f"{key}_could_be": could, f"{key}_cpu_ratio": scaled}
        told[f"{key}_with_cores_to_spare"] = 2 * scaled
    print("with a core for each worker and one for the client:", end=" ")
    print(", ".join(f"{2 * told[f'{n.replace(chr(32), chr(95))}_cpu_ratio']:.2f}" for n in CASES))
    print(json.dumps({"benchmark": "workers", **{k: round(v, 3) for k, v in told.items()}}))


if __name__ == "__main__":
    main()
