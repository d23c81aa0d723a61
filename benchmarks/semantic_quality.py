"""Quality of semantic hits on the evaluation data: plain cosine, the peers' way, beside ours.

    python benchmarks/semantic_quality.py [--only ROW] [--sample N] [--errors ROW N] [--ablation]

Prints the table with 95 % intervals and ends with one line of JSON. Nothing is tuned on these sets.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quality import curves, picture, table
from quality.corrected import READ, Corrections, read_corrections, to_read, with_read
from quality.kept import Kept, default_directory
from quality.kept_budget import DRAWS, promises, would_be_hits
from quality.measuring import Measured, measure
from quality.models import vectors_of
from quality.rows import counted
from quality.sets import DATA, TRIALS, MissingDataError
from quality.systems import BUDGETS, WHOLE, System, faults, system
from quality.trial import Trial

from embeddings.encoder.model_files import VERIFIER_DIRECTORY, ModelError
from embeddings.verify.calibration import CalibrationError

READ_BUDGET = 0.02
"""The budget whose wrong hits are written with --wrong-hits."""


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
        systems = found(options, kept)
        results = asyncio.run(measured(trials, systems, kept, options))
    for name, count in faults([each for result in results for each in result.all_judged]).items():
        print(f"{count} candidates have no verdict: {name}")
    if options.errors:
        for each in results:
            column = options.system or list(each.outcomes)[-1]
            told = table.errors(each.outcomes[column], options.errors)
            print(f"{each.name}, {column}:", *told, sep="\n")
        return
    last = systems[-1] if systems else None
    if options.picture and last:
        panels = [
            picture.panel(each, last.name, last.threshold())
            for each in results
            if each.name in picture.DRAWN
        ]
        options.picture.write_text(picture.drawn(panels), encoding="utf-8")
    if options.wrong_hits and last:
        write_wrong_hits(options.wrong_hits, results, last)
    report(results, last, time.monotonic() - began, options)


def found(options: argparse.Namespace, kept: Kept) -> list[System]:
    """Return the systems that are ours, in the order of the table."""
    systems = []
    for name, directory in options.verifier:
        try:
            systems.append(system(name, directory, kept, options.cache, options.threshold))
        except (ModelError, CalibrationError) as error:
            print(f"{name}: left out, {error}")
    return systems


async def measured(
    trials: Sequence[Trial], systems: Sequence[System], kept: Kept, options: argparse.Namespace
) -> list[Measured]:
    """Return what the systems make of the trials."""
    vectors = vectors_of({text for trial in trials for text in trial.texts}, kept)
    floor, all_scores = options.min_similarity, options.ablation
    return [
        await measure(each, vectors, systems, min_similarity=floor, refused_too=all_scores)
        for each in trials
    ]


def report(
    results: Sequence[Measured],
    judged: System | None,
    seconds: float,
    options: argparse.Namespace,
) -> None:
    """Print the tables; goals, thresholds and budgets are of the system judged, the last one."""
    corrections, trials = read_corrections(), [each.trial for each in results]
    outcomes = {each.name: each.outcomes for each in results}
    figures = counted(with_read(trials, outcomes, corrections))
    name = judged.name if judged else ""
    print(*(table.markdown(figures) if options.markdown else table.table(figures, name)), sep="\n")
    compared = {each.name: curves.curves(each) for each in results}
    for trial, systems in compared.items():
        print("", *curves.lines(trial, systems), sep="\n")
    for each in results:
        kinds: dict[str, tuple[str | None, ...]] = {"checklist": (": ", None)}
        kinds |= dict.fromkeys(("gsm_plus", "people", "rewordings", "verbs"), (None,))
        for most in kinds.get(each.name, ()):
            print("", *table.breakdown(each.outcomes, most=most), sep="\n")
    if judged:
        print(*other_thresholds(results, judged, corrections), sep="\n")
        print(*kept_budgets(results, judged), sep="\n")
    if judged and options.ablation:
        threshold, candidates = judged.threshold(), {e.name: e.judged[name] for e in results}
        if threshold is None:
            print(f"{name}: no ablation, no score keeps the budget (--threshold)")
        else:
            print("", *table.ablation(candidates, threshold), sep="\n")
    written: dict[str, Any] = {"benchmark": "semantic_quality", "seconds": round(seconds, 1)}
    written |= {"rows": table.as_json(figures)}
    written |= {"curves": {name: curves.as_json(systems) for name, systems in compared.items()}}
    print(json.dumps(written))


def other_thresholds(
    results: Sequence[Measured], judged: System, corrections: Corrections
) -> list[str]:
    """Return a system's figures at other budgets, or at other scores."""
    thresholds = judged.thresholds()
    shown = {
        each.name: {
            name: [outcome.at(threshold) for outcome in each.judged[judged.name]]
            for name, threshold in thresholds.items()
        }
        for each in results
    }
    figures = counted(with_read([each.trial for each in results], shown, corrections))
    values = ", ".join(f"{name} {at:.4f}" for name, at in thresholds.items())
    return ["", f"{judged.name}, by threshold: {values}", *table.table(figures, "")]


def write_wrong_hits(file: Path, results: Sequence[Measured], judged: System) -> None:
    """Write the wrong hits that are to be read, one a line."""
    threshold = judged.threshold(READ_BUDGET)
    rows = [
        row
        for each in results
        if each.name in READ
        for row in to_read(each.trial, each.judged[judged.name], threshold, each.nearest)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print(f"{file}: {len(rows)} wrong hits to read")


def kept_budgets(results: Sequence[Measured], judged: System) -> list[str]:
    """Return how often calibrations drawn from a trial's own hits broke a budget."""
    lines = []
    for each in results:
        candidates = each.judged[judged.name]
        points = would_be_hits(candidates)
        if points:
            lines += ["", f"{each.name}: {len(points)} would-be hits, {DRAWS} calibrations drawn"]
            lines += table.promised(promises(points, len(candidates), BUDGETS))
    return lines


def verifier(value: str) -> tuple[str, Path]:
    """Read `DIRECTORY` or `NAME=DIRECTORY`."""
    name, equals, directory = value.partition("=")
    return (name, Path(directory)) if equals else (WHOLE, Path(value))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    rows = ", ".join(TRIALS)
    add("--only", action="append", choices=TRIALS, metavar="ROW", help=rows)
    add("--sample", type=int, metavar="N", help="ask at most so many in each row")
    add("--data", type=Path, default=DATA, help="the evaluation data")
    add("--cache", type=Path, default=default_directory(), help="kept vectors and scores")
    add("--ablation", action="store_true", help="also hits without each guard in turn")
    add(
        "--verifier",
        action="append",
        type=verifier,
        metavar="[NAME=]DIRECTORY",
        help="weights, and their calibration; several are columns, the last is judged",
    )
    add("--threshold", type=float, help="in place of the one that follows from the budget")
    add("--min-similarity", type=float, help="the floor, in place of the default policy's")
    add("--errors", nargs=2, metavar=("ROW", "N"), help="N wrong hits and N misses of a row")
    add("--markdown", action="store_true", help="the first table for a document")
    add("--picture", type=Path, metavar="FILE", help="write the curves to an SVG file")
    add("--wrong-hits", type=Path, metavar="FILE", help=f"write those of {', '.join(READ)} to read")
    add("--system", metavar="NAME", help="whose errors; the last column's unless named")
    options = parser.parse_args()
    if options.errors:
        name, count = options.errors
        if name not in TRIALS or not count.isdecimal():
            parser.error(f"--errors: expected one of {rows}, and a number")
        options.only, options.errors = [name], int(count)
    options.only = options.only or list(TRIALS)
    options.verifier = options.verifier or [(WHOLE, VERIFIER_DIRECTORY)]
    if len(dict(options.verifier)) < len(options.verifier):
        parser.error("--verifier: several need a name each, NAME=DIRECTORY")
    return options


if __name__ == "__main__":
    main()
