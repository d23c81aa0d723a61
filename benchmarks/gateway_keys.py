"""What gateway keys cost, and how exactly their use is counted.

Cost: exact hits and misses of one worker on one core, without gateway keys, with a key, and with a
key that has every limit and budget, none of them near. The gateway without keys is the peer. Rounds
alternate. A ratio is that of the best rounds, since the machine may be shared: the best rate, and
the least processor time of a request. The aim is 0.9 of the gateway without keys.

Counts: 200 holders ask two workers, together 2,000 requests a second, open loop, within one minute
of the clock. One request in ten is a miss. Half of the holders are far from their limits: the store
must have counted each of their requests, and each token that a call has used. The others ask for
more than their ``rpm``: so many and no more must go through. The client has counted, too.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import orjson
from load import NEW_QUESTIONS, Arrival, Outcome, WrkResult, post, question, run_arrivals, run_wrk
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    Server,
    processor_seconds,
    start_gateway,
    start_upstream,
)

from gateway.cache.stores.counts import Count
from gateway.cache.stores.redis.link import RedisLink
from gateway.cache.stores.redis.sums import RedisKeyCounts
from gateway.cache.stores.sqlite.sums import SqliteKeyCounts
from gateway.cache.stores.windows import PERIODS

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from running_redis import RunningRedis

PRICES = "model,input,output,cached_input\nbench,1,4,\n"
FAR = "rpm=1G tpm=1G concurrency=1k budget=1Gtokens/day,1MUSD/month soft_budget=1MUSD/day"
SIDES = {"no keys": None, "a key": "", "limits": FAR}
CASES = {"hits": (32, ""), "misses": (16, NEW_QUESTIONS)}
Results = dict[str, dict[str, list[tuple[WrkResult, float]]]]

HOLDERS = 200
MISS = 10
"""Of so many requests of a holder one asks something new."""


def write_keys(folder: Path, lines: dict[str, str]) -> dict[str, object]:
    """Write a file of keys, ``sk-NAME`` for each name, and prices; return the settings."""
    text = "".join(
        f"{name} {sha256(secret(name).encode()).hexdigest()} {more}\n"
        for name, more in lines.items()
    )
    (folder / "keys").write_text(text)
    (folder / "prices.csv").write_text(PRICES)
    return {"gateway_keys": str(folder / "keys"), "prices": str(folder / "prices.csv")}


def secret(name: str) -> str:
    """Return the key of a holder; that of ``bench`` is what wrk sends."""
    return name if name == "bench" else f"sk-{name}"


def measure_cost(rounds: int, seconds: float) -> Results:
    """Return for each case and side the results, each with the processor time of a request."""
    results: Results = {case: {side: [] for side in SIDES} for case in CASES}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        gateways: dict[str, Server] = {}
        for side, attributes in SIDES.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = {} if attributes is None else write_keys(folder, {"bench": attributes})
            gateways[side] = start_gateway(stack, upstream, policy=EXACT_ONLY, settings=settings)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for case, (connections, vary) in CASES.items():
                # No side has always the same neighbour.
                turn = list(gateways.items())[:: 1 if number % 2 else -1]
                for side, server in turn:
                    before = processor_seconds(server.process)
                    got = run_wrk(
                        server.port,
                        question(),
                        core=CLIENT_CORE,
                        connections=connections,
                        seconds=seconds,
                        vary=vary,
                    )
                    spent = processor_seconds(server.process) - before
                    results[case][side].append((got, spent / got.requests))
    return results


def cost_figures(results: Results) -> dict[str, float]:
    """Print a table; return the ratios to the gateway without keys."""
    found: dict[str, float] = {}
    print(f"{'one core':8}{'':>9}{'/s':>9}{'CPU us':>8}{'of rate':>9}{'rounds':>12}{'of CPU':>8}")
    for case, of in results.items():
        peers = of["no keys"]
        for side, rounds in of.items():
            rates = [
                mine.rate / peer.rate for (mine, _), (peer, _) in zip(rounds, peers, strict=True)
            ]
            rate, spent = max(each.rate for each, _ in rounds), min(each for _, each in rounds)
            of_rate = rate / max(each.rate for each, _ in peers)
            of_time = min(each for _, each in peers) / spent
            print(f"{case:8}{side:>9}{rate:>9.0f}{1e6 * spent:>8.1f}{of_rate:>9.2f}", end="")
            print(f"{min(rates):>7.2f}-{max(rates):.2f}{of_time:>8.2f}")
            if side != "no keys":
                name = f"{case}_{side.replace(' ', '_')}"
                found |= {f"{name}_ratio": of_rate, f"{name}_cpu_ratio": of_time}
                found[f"{name}_ratio_median"] = statistics.median(rates)
    return found


@dataclass(slots=True)
class Seen:
    """What the client has counted, by holder."""

    sent: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def report(self, outcome: Outcome) -> None:
        """Count the outcome of a request."""
        name, reply = outcome.arrival.label, outcome.reply
        self.sent[name] += 1
        if reply is None or reply.status not in (200, 429):
            self.failed[name if reply is None else str(reply.status)] += 1
        elif reply.status == 200:
            self.answered[name] += 1
            if not {"hit", "collapsed"} & set(reply.cache_status.replace(" ", "").split(";")):
                self.tokens[name] += orjson.loads(reply.body)["usage"]["total_tokens"]


def traffic(names: list[str], rate: int, seconds: float) -> Iterator[Arrival]:
    """Yield the requests of all holders by turns."""
    known = question()
    requests = {
        name: post(known, headers=f"Authorization: Bearer {secret(name)}\r\n") for name in names
    }
    for number in range(int(rate * seconds)):
        turn, place = divmod(number, len(names))
        name = names[place]
        request = requests[name]
        if turn % MISS == place % MISS:
            words = "".join(chr(97 + int(digit)) for digit in str(number))
            body = known.replace(b"new phone", f"phone of model {words}".encode())
            request = post(body, headers=f"Authorization: Bearer {secret(name)}\r\n")
        yield Arrival(number / rate, request, name)


def measure_counts(store: str, rate: int, seconds: float) -> dict[str, float]:
    """Load two workers; return how far what is counted is from what was sent."""
    half = [f"n{number:03}" for number in range(HOLDERS)]
    free, bound = half[::2], half[1::2]
    sent = int(rate * seconds / HOLDERS)
    most = sent // 2
    lines = dict.fromkeys(free, FAR) | dict.fromkeys(bound, f"rpm={most}")
    with ExitStack() as stack:
        upstream = start_upstream(stack, core=None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = "disk"
        if store == "redis":
            redis = RunningRedis(folder)
            redis.start()
            stack.callback(redis.kill)
            url = redis.url
        settings = write_keys(folder, lines) | {"workers": 2, "store": url}
        gateway = start_gateway(
            stack,
            upstream,
            core=None,
            policy=EXACT_ONLY,
            settings=settings,
            data_dir=folder / "data",
        )
        # All within one minute of the clock, so that a rate is a plain number.
        if (left := 60 - time.time() % 60) < seconds + 5:
            print(f"the next minute begins in {left:.0f} s", file=sys.stderr)
            time.sleep(left + 0.5)
        minute, began, spent = int(time.time() // 60), time.perf_counter(), time.process_time()
        seen = Seen()
        run_arrivals(gateway.port, traffic(half, rate, seconds), seen.report, ready=64)
        took = time.perf_counter() - began
        if int(time.time() // 60) != minute:
            raise SystemExit("the load did not end within its minute")
        client = (time.process_time() - spent) / took
        now = time.time()
        time.sleep(1.0)  # the last counts are handed over in the background
        data = folder / "data" / "key-counts.sqlite3"
        counted = asyncio.run(_counted(url, data, now))
    return _count_figures(free, bound, most, seen, counted) | {
        "requests_per_second": sum(seen.sent.values()) / took,
        "client_core": client,
    }


async def _counted(url: str, file: Path, now: float) -> dict[Count, int]:
    link = None if url == "disk" else RedisLink(url, seconds=10)
    counts = SqliteKeyCounts(file) if link is None else RedisKeyCounts(link)
    whats = ("requests/minute", "tokens/day", "USD/month")
    found = await counts.load(
        [(what, PERIODS[what.partition("/")[2]].window_of(now)) for what in whats]
    )
    await counts.close()
    if link is not None:
        await link.close()
    return dict(found)


def _count_figures(
    free: list[str], bound: list[str], most: int, seen: Seen, counted: dict[Count, int]
) -> dict[str, float]:
    totals: dict[str, Counter[str]] = {}
    for (holder, what, _), amount in counted.items():
        totals.setdefault(what, Counter())[holder] += amount
    requests, tokens = totals.get("requests/minute", Counter()), totals.get("tokens/day", Counter())

    def off(mine: Counter[str], theirs: Counter[str], names: list[str]) -> list[float]:
        return [100 * abs(mine[name] / theirs[name] - 1) for name in names]

    over = [100 * (seen.answered[name] / most - 1) for name in bound]
    return {
        "failed": sum(seen.failed.values()),
        "requests_off_percent": statistics.mean(off(requests, seen.sent, free)),
        "requests_off_percent_worst": max(off(requests, seen.sent, free)),
        "tokens_off_percent": statistics.mean(off(tokens, seen.tokens, free)),
        "tokens_off_percent_worst": max(off(tokens, seen.tokens, free)),
        "admitted_off_percent": statistics.mean(off(requests, seen.answered, bound)),
        "over_limit_percent": statistics.mean(over),
        "over_limit_percent_worst": max(over, key=abs),
    }


def main() -> None:
    """Print tables and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--rate", type=int, default=2_000, help="requests a second of all holders")
    parser.add_argument("--minute", type=float, default=40.0, help="seconds of that load, up to 50")
    parser.add_argument("--only", choices=("cost", "counts"))
    options = parser.parse_args()
    told: dict[str, float] = {}
    if options.only != "counts":
        told |= cost_figures(measure_cost(options.rounds, options.seconds))
    if options.only != "cost":
        for store in ("disk", "redis"):
            found = measure_counts(store, options.rate, options.minute)
            print(f"{HOLDERS} holders, two workers, counts in {store}")
            for name, value in found.items():
                print(f"  {name.replace('_', ' '):28}{value:>10.3f}")
            told |= {f"{store}_{name}": value for name, value in found.items()}
    print(json.dumps({"benchmark": "gateway_keys", **{k: round(v, 3) for k, v in told.items()}}))


if __name__ == "__main__":
    main()
