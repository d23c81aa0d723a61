"""Quality of semantic hits on the evaluation data: plain cosine, the peers' way, beside ours.

    python benchmarks/semantic_quality.py [--only ROW] [--sample N] [--errors ROW N] [--guards]

Prints the table with 95 % intervals and ends with one line of JSON. Nothing is tuned on these sets.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quality import errors
from quality.kept import Kept, default_directory
from quality.kept_budget import DRAWS, promises, would_be_hits
from quality.measuring import Measured, measure
from quality.panels import DRAWN, panel
from quality.picture import drawn
from quality.rows import counted
from quality.sets import DATA, TRIALS, MissingDataError
from quality.systems import BUDGETS, WHOLE, System, guards, whole
from quality.table import as_json, breakdown, markdown, promised, table
from quality.vectors import vectors_of

from embeddings.encoder.model_files import VERIFIER_DIRECTORY


def main() -> None:
    options = arguments()
    began = time.monotonic()
    trials = []
    for name in options.only:
        try:
            trials.append(TRIALS[name](options.data).sampled(options.sample))
        except MissingDataError as error:
            print(f"{name}: skipped, {error}")
    with Kept(options.cache) as kept:
        measured = systems(options, kept)
        vectors = vectors_of({text for trial in trials for text in trial.texts}, kept)
        results = [asyncio.run(measure(trial, vectors, measured)) for trial in trials]
    if options.errors:
        for each in results:
            system = options.system or measured[-1].name
            told = errors.told(each.outcomes[system], options.errors)
            print(f"{each.name}, {system}:", *told, sep="\n")
        return
    if options.picture:
        panels = [panel(each) for each in results if each.name in DRAWN]
        options.picture.write_text(drawn(panels), encoding="utf-8")
    report(results, time.monotonic() - began, as_markdown=options.markdown)


def systems(options: argparse.Namespace, kept: Kept) -> list[System]:
    """Return the systems that are ours, in the order of the table."""
    found = [guards(kept)] if options.guards else []
    all_of_it = whole(options.verifier, kept, options.cache, options.threshold)
    if isinstance(all_of_it, str):
        print(f"{WHOLE}: left out, {all_of_it}")
    else:
        found.append(all_of_it)
    return [replace(system, min_similarity=options.min_similarity) for system in found]


def report(results: Sequence[Measured], seconds: float, *, as_markdown: bool) -> None:
    figures = counted({each.name: each.outcomes for each in results})
    print(*(markdown(figures) if as_markdown else table(figures, WHOLE)), sep="\n")
    print(*other_thresholds(results), sep="\n")
    for each in results:
        for most in {"checklist": (": ", None), "gsm_plus": (None,)}.get(each.name, ()):
            print("", *breakdown(each.outcomes, most=most), sep="\n")
    print(*kept_budgets(results), sep="\n")
    print(
        json.dumps(
            {
                "benchmark": "semantic_quality",
                "seconds": round(seconds, 1),
                "rows": as_json(figures),
            }
        )
    )


def other_thresholds(results: Sequence[Measured]) -> list[str]:
    """Return the whole's figures at other budgets, or at other scores."""
    shown = {
        each.name: {
            name: [outcome.at(threshold) for outcome in each.candidates]
            for name, threshold in each.thresholds.items()
        }
        for each in results
        if each.candidates
    }
    if not shown:
        return []
    told = {name: at for each in results for name, at in each.thresholds.items()}
    values = ", ".join(f"{name} {at:.4f}" for name, at in told.items())
    return ["", f"{WHOLE}, by threshold: {values}", *table(counted(shown), "")]


def kept_budgets(results: Sequence[Measured]) -> list[str]:
    """Return how often calibrations drawn from a trial's own hits broke a budget."""
    lines = []
    for each in results:
        points = would_be_hits(each.candidates)
        if points:
            lines += ["", f"{each.name}: {len(points)} would-be hits, {DRAWS} calibrations drawn"]
            lines += promised(promises(points, len(each.candidates), BUDGETS))
    return lines


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
    add("--min-similarity", type=float, help="the floor, in place of the default policy's")
    add("--errors", nargs=2, metavar=("ROW", "N"), help="N wrong hits and N misses of a row")
    add("--markdown", action="store_true", help="the first table for a document")
    add("--picture", type=Path, metavar="FILE", help="write the curves to an SVG file")
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
