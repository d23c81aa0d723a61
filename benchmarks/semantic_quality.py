"""Quality of semantic hits on the evaluation data: plain cosine, the peers' way, beside ours.

    python benchmarks/semantic_quality.py [--only ROW] [--sample N] [--errors ROW N]

Prints the table with 95 % intervals and ends with one line of JSON. Nothing is tuned on these sets.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from quality import errors, peers
from quality.cache import default_decision, filled
from quality.kept import Kept, default_directory
from quality.outcomes import Outcome
from quality.progress import told
from quality.rows import counted
from quality.sets import DATA, TRIALS, MissingDataError
from quality.systems import WHOLE, System, systems
from quality.table import as_json, breakdown, table
from quality.trial import Trial
from quality.vectors import vectors_of

from embeddings.encoder import Vector

Outcomes = dict[str, list[Outcome]]


def main() -> None:
    options = arguments()
    names = options.only or ([options.errors[0]] if options.errors else list(TRIALS))
    trials = []
    for name in names:
        try:
            trials.append(TRIALS[name](options.data).sampled(options.sample))
        except MissingDataError as error:
            print(f"{name}: skipped, {error}")
    results: dict[str, Outcomes] = {}
    with Kept(options.cache) as kept:
        vectors = vectors_of({text for trial in trials for text in trial.texts}, kept)
        for trial in trials:
            results[trial.name] = asyncio.run(outcomes_of(trial, vectors, systems(kept)))
    if options.errors:
        for name, found in results.items():
            wanted = options.system or list(found)[-1]
            print(f"{name}, {wanted}:")
            print("\n".join(errors.told(found[wanted], int(options.errors[1]))))
        return
    report(results)


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


def report(results: Mapping[str, Outcomes]) -> None:
    figures = counted(results)
    print("\n".join(table(figures, WHOLE)))
    for name, most in (("checklist", ": "), ("checklist", None), ("gsm_plus", None)):
        if name in results:
            print("", *breakdown(results[name], most=most), sep="\n")
    print(json.dumps({"benchmark": "semantic_quality", "rows": as_json(figures)}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=TRIALS, metavar="ROW", help=", ".join(TRIALS)
    )
    parser.add_argument("--sample", type=int, metavar="N", help="ask at most so many in each row")
    parser.add_argument("--data", type=Path, default=DATA, help="the evaluation data")
    parser.add_argument(
        "--cache", type=Path, default=default_directory(), help="kept vectors and scores"
    )
    parser.add_argument(
        "--errors", nargs=2, metavar=("ROW", "N"), help="print N wrong hits and misses"
    )
    parser.add_argument("--system", help="whose errors; the last column's where none is named")
    options = parser.parse_args()
    if options.errors and (options.errors[0] not in TRIALS or not options.errors[1].isdecimal()):
        parser.error(f"--errors: expected one of {', '.join(TRIALS)}, and a number")
    return options


if __name__ == "__main__":
    main()
