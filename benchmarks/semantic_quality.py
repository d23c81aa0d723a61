"""Quality of semantic hits on the evaluation data: plain cosine, the peers' way, beside ours.

    python benchmarks/semantic_quality.py [--only ROW] [--sample N] [--errors ROW N] [--guards]

Prints the table with 95 % intervals and ends with one line of JSON. Nothing is tuned on these sets.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from quality import errors, peers
from quality.cache import default_decision, filled
from quality.kept import Kept, default_directory
from quality.outcomes import Outcome
from quality.progress import told
from quality.rows import counted
from quality.sets import DATA, TRIALS, MissingDataError
from quality.systems import WHOLE, System, guards, rules, whole
from quality.table import as_json, breakdown, table
from quality.trial import Trial
from quality.vectors import vectors_of

from embeddings.encoder import Vector
from embeddings.model_files import VERIFIER_DIRECTORY

Outcomes = dict[str, list[Outcome]]


def main() -> None:
    options = arguments()
    began = time.monotonic()
    trials = []
    for name in options.only:
        try:
            trials.append(TRIALS[name](options.data).sampled(options.sample))
        except MissingDataError as error:
            print(f"{name}: skipped, {error}")
    results: dict[str, Outcomes] = {}
    with Kept(options.cache) as kept:
        measured = systems(options, kept)
        vectors = vectors_of({text for trial in trials for text in trial.texts}, kept)
        for trial in trials:
            results[trial.name] = asyncio.run(outcomes_of(trial, vectors, measured))
    if options.errors:
        for name, found in results.items():
            system = options.system or measured[-1].name
            print(f"{name}, {system}:", *errors.told(found[system], options.errors), sep="\n")
        return
    report(results, time.monotonic() - began)


def systems(options: argparse.Namespace, kept: Kept) -> list[System]:
    """Return the systems that are ours, in the order of the table."""
    found = [rules(kept, options.cache)]
    if options.guards:
        found.append(guards(kept))
    all_of_it = whole(options.verifier, kept, options.cache, options.threshold)
    if isinstance(all_of_it, str):
        print(f"{WHOLE}: left out, {all_of_it}")
    else:
        found.append(all_of_it)
    return found


async def outcomes_of(
    trial: Trial, vectors: Mapping[str, Vector], measured: Sequence[System]
) -> Outcomes:
    """Return what each system makes of a trial."""
    alone = peers.nearest(trial, vectors)
    found: Outcomes = {
        f"cosine {threshold:.2f}": [outcome.at(threshold) for outcome in alone]
        for threshold in peers.THRESHOLDS
    }
    cache = await filled(trial, vectors)
    for system in measured:
        decision = system.decision(default_decision())
        label = f"{trial.name}, {system.name}"
        found[system.name] = [
            await cache.ask(request, decision, system.verifier)
            for request in told(label, trial.asked)
        ]
    return found


def report(results: Mapping[str, Outcomes], seconds: float) -> None:
    figures = counted(results)
    print(*table(figures, WHOLE), sep="\n")
    for name, most in (("checklist", ": "), ("checklist", None), ("gsm_plus", None)):
        if name in results:
            print("", *breakdown(results[name], most=most), sep="\n")
    print(
        json.dumps(
            {
                "benchmark": "semantic_quality",
                "seconds": round(seconds, 1),
                "rows": as_json(figures),
            }
        )
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    rows = ", ".join(TRIALS)
    add("--only", action="append", choices=TRIALS, metavar="ROW", help=rows)
    add("--sample", type=int, metavar="N", help="ask at most so many in each row")
    add("--data", type=Path, default=DATA, help="the evaluation data")
    add("--cache", type=Path, default=default_directory(), help="kept vectors and scores")
    add("--guards", action="store_true", help="also what the guards leave to the model")
    add("--verifier", type=Path, default=VERIFIER_DIRECTORY, help="a directory of weights")
    add("--threshold", type=float, help="in place of the one that follows from the budget")
    add("--errors", nargs=2, metavar=("ROW", "N"), help="N wrong hits and N misses of a row")
    add("--system", metavar="NAME", help="whose errors; the last column's unless named")
    options = parser.parse_args()
    if options.errors:
        name, count = options.errors
        if name not in TRIALS or not count.isdecimal():
            parser.error(f"--errors: expected one of {rows}, and a number")
        options.only, options.errors = [name], int(count)
    options.only = options.only or list(TRIALS)
    return options


if __name__ == "__main__":
    main()
