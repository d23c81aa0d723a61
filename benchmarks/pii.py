"""Recall and precision of the PII scan, kind by kind, and what it costs.

Two sources: labelled sentences (pii_spans.jsonl of the evaluation data, read in place; path by
REFRAIN_DATA) and cases generated from a seed (``personal_data/``), for kinds of
which the sentences have few: true ones in many forms, and look-alikes that must be left alone.
Both are tried in disguise, too: marks, entities, encodings.
Findings are right when they overlap a label of their kind. Times are of CPU; their floor is one
RE2 search of the same text.

Usage: python benchmarks/pii.py [--regions US,GB] [--seed 1] [--unseen] [--disagreements]
"""

import argparse
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import phonenumbers
import re2
from personal_data import disguises, lookalikes, values
from personal_data.values import Maker

from policies.pii.scan import PiiScanner

KINDS = ("email", "card", "iban", "ssn", "phone", "ip", "secret")
LABELS = {
    "EMAIL_ADDRESS": "email",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "PHONE_NUMBER": "phone",
    "IP_ADDRESS": "ip",
}


@dataclass(slots=True)
class Score:
    found: int = 0
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float | int | None]:
        positives = self.found + len(self.missed)
        claimed = self.found + len(self.wrong)
        return {
            "labels": positives,
            "recall": round(self.found / positives, 4) if positives else None,
            "precision": round(self.found / claimed, 4) if claimed else None,
        }


Labelled = tuple[str, list[tuple[str, int, int]]]


def score(
    cases: Iterator[Labelled], scanner: PiiScanner, required: Callable[[str, str], bool]
) -> dict[str, Score]:
    """Score each kind. Labels that are not ``required`` need not be found, but may be."""
    scores = {kind: Score() for kind in KINDS}
    for text, labels in cases:
        spans = scanner.spans(text)
        for kind, start, end in labels:
            hit = any(s.kind == kind and s.start < end and start < s.end for s in spans)
            if hit:
                scores[kind].found += 1
            elif required(kind, text[start:end]):
                scores[kind].missed.append(text[max(0, start - 20) : end + 10])
        for span in spans:
            if not any(
                kind == span.kind and span.start < end and start < span.end
                for kind, start, end in labels
            ):
                scores[span.kind].wrong.append(text[span.start : span.end])
    return scores


def sentences(file: Path) -> Iterator[Labelled]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield (
                row["text"],
                [
                    (LABELS[span["type"]], span["start"], span["end"])
                    for span in row["spans"]
                    if span["type"] in LABELS
                ],
            )


def of_regions(regions: list[str]) -> Callable[[str, str], bool]:
    """Require what the scan promises: phone numbers with a country code or of the regions."""

    def required(kind: str, text: str) -> bool:
        if kind != "phone" or text.startswith("+"):
            return True
        for region in regions:
            try:
                if phonenumbers.is_valid_number(phonenumbers.parse(text, region)):
                    return True
            except phonenumbers.NumberParseException:
                continue
        return False

    return required


def generated(
    regions: list[str], seed: int, *, unseen: bool, each: int = 500
) -> Iterator[Labelled]:
    """Yield ``each`` cases of every kind, and as many look-alikes as there are cases."""
    draw = random.Random(seed)
    makers = _makers(regions)
    sentences = lookalikes.UNSEEN_SENTENCES if unseen else lookalikes.SEEN_SENTENCES
    others = lookalikes.UNSEEN if unseen else lookalikes.SEEN
    for kind, make in makers.items():
        for _ in range(each):
            value = make(draw)
            before, after = draw.choice(sentences).split("{}")
            yield before + value + after, [(kind, len(before), len(before) + len(value))]
    for _ in range(each * len(makers)):
        yield draw.choice(sentences).replace("{}", draw.choice(others)(draw)), []


def _makers(regions: list[str]) -> dict[str, Maker]:
    countries = _bank_countries()
    return {
        "email": values.email,
        "card": values.card,
        "iban": lambda draw: values.bank_account(draw, countries),
        "ssn": values.social_security,
        "phone": lambda draw: values.phone(draw, regions),
        "ip": values.address,
        "secret": values.secret,
    }


def disguised(
    regions: list[str], seed: int, scanner: PiiScanner, each: int = 100
) -> dict[str, dict[str, float]]:
    """Return, of values in disguise and of look-alikes, the share in which anything is found."""

    def share(texts: list[str]) -> float:
        return sum(scanner.scan(text) is not None for text in texts) / len(texts)

    draw = random.Random(seed)
    values = [make(draw) for make in _makers(regions).values() for _ in range(each)]
    return {
        "disguises": {
            name: share([f"It is {disguise(value)} here" for value in values])
            for name, disguise in disguises.DISGUISES.items()
        },
        "look-alikes": {
            name: share([make(draw) for _ in range(10 * each)])
            for name, make in disguises.LOOKALIKES.items()
        },
    }


def _bank_countries() -> dict[str, str]:
    """Return the structure of every country's IBAN, as the registry in python-stdnum has it."""
    table = (files("stdnum") / "iban.dat").read_text(encoding="utf-8")
    return dict(re.findall(r'^([A-Z]{2}) .*bban="([^"]+)"', table, re.MULTILINE))


def microseconds(call: Callable[[], object], runs: int = 50) -> float:
    """Return the best mean of several series, microseconds of CPU a call."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(runs):
            call()
        best = min(best, time.process_time() - start)
    return round(best / runs * 1e6, 2)


def timings(scanner: PiiScanner) -> dict[str, float]:
    words = "how do i get a refund for the order that never arrived at my place "
    numbers = "Order 12 of 2024 cost $1,299.00, see page 345; open 9:00 to 17:30, part 77-4431. "
    runs = "Invoice 2025-1141 of 2025-11-10 12:30: 10 units of 4000123, total 1200 EUR. "
    rows = "2025-11-10 12:30:11,4006381333931,12.99,1,0044123,99812345\n"
    cells = "12.99\t1299.5\t0.125\t4006.38\n"
    ids = "550e8400-e29b-41d4-a716-446655440000 "
    nearly = "020 7946 09 "
    marked = "Use <b>**bold**</b> for 12_345, 1/2 of it; see &quot;a%20b&quot; and x*y. "
    floor = re2.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+")
    kilobyte = (words * 20)[:1024]
    return {
        "floor_one_re2_search_1kb_us": microseconds(lambda: floor.search(kilobyte)),
        "words_67b_us": microseconds(lambda: scanner.scan(words)),
        "words_1kb_us": microseconds(lambda: scanner.scan(kilobyte)),
        "numbers_1kb_us": microseconds(lambda: scanner.scan((numbers * 20)[:1024])),
        "long_numbers_1kb_us": microseconds(lambda: scanner.scan((runs * 20)[:1024])),
        "rows_of_numbers_1kb_us": microseconds(lambda: scanner.scan((rows * 20)[:1024])),
        "cells_of_fractions_1kb_us": microseconds(lambda: scanner.scan((cells * 40)[:1024])),
        "uuids_1kb_us": microseconds(lambda: scanner.scan((ids * 30)[:1024])),
        "nearly_phones_1kb_us": microseconds(lambda: scanner.scan((nearly * 90)[:1024]), runs=5),
        "chinese_1kb_us": microseconds(lambda: scanner.scan(("我想退款" * 90)[:341])),
        "marked_1kb_us": microseconds(lambda: scanner.scan((marked * 20)[:1024])),
        "words_100kb_us": microseconds(lambda: scanner.scan(kilobyte * 100), runs=5),
        "digits_100kb_us": microseconds(lambda: scanner.scan("4000 " * 20_000), runs=1),
    }


def report(title: str, scores: dict[str, Score], *, disagreements: bool) -> dict[str, object]:
    print(f"\n{title}\n{'kind':8}{'labels':>8}{'recall':>9}{'precision':>11}")
    figures = {kind: each.figures() for kind, each in scores.items()}
    for kind, row in figures.items():
        cells = ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("recall", "precision")]
        print(f"{kind:8}{row['labels']:>8}{cells[0]:>9}{cells[1]:>11}")
    if disagreements:
        for kind, each in scores.items():
            for missed in each.missed:
                print(f"  missed {kind}: {missed!r}")
            for wrong in each.wrong:
                print(f"  wrong {kind}: {wrong!r}")
    return dict(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", default="US,GB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unseen", action="store_true", help="the templates kept for judging")
    parser.add_argument("--disagreements", action="store_true", help="print each of them")
    arguments = parser.parse_args()
    regions = arguments.regions.split(",")
    scanner = PiiScanner(regions)
    result: dict[str, object] = {"benchmark": "pii", "regions": regions}
    file = Path(os.environ.get("REFRAIN_DATA", "../shared/data")) / "pii_spans.jsonl"
    if file.is_file():
        scores = score(sentences(file), scanner, of_regions(regions))
        shown = arguments.disagreements
        result["labelled"] = report(f"labelled: {file}", scores, disagreements=shown)
    else:
        print(f"labelled: skipped, {file} is not there (set REFRAIN_DATA)")
    scores = score(
        generated(regions, arguments.seed, unseen=arguments.unseen), scanner, lambda *_: True
    )
    title = f"generated: seed {arguments.seed}, {'un' * arguments.unseen}seen templates"
    result["generated"] = report(title, scores, disagreements=arguments.disagreements)
    shares = disguised(regions, arguments.seed, scanner)
    result["disguised"] = shares
    for title, found in shares.items():
        print(f"\n{title}: share found")
        for name, figure in found.items():
            print(f"{name:32}{figure:>12.4f}")
    figures = timings(scanner)
    result["timings"] = figures
    print()
    for name, figure in figures.items():
        print(f"{name:32}{figure:>12}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
