"""Recall and precision of the PII scan, kind by kind, and what it costs.

Two sources: labelled sentences (pii_spans.jsonl of the evaluation data, read in place; path by
REFRAIN_DATA) and cases generated here from a fixed seed, for kinds of which the sentences have
few: true ones in many layouts, and look-alikes that must be left alone. Findings are right when
they overlap a label of their kind. The floor of the timing is one RE2 search of the same text.

Usage: python benchmarks/pii.py [--regions US,GB] [--disagreements]
"""

import argparse
import json
import os
import random
import string
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import phonenumbers
import re2
from stdnum import iban, luhn

from policies.pii import PiiScanner

KINDS = ("email", "card", "iban", "ssn", "phone", "ip", "secret")
LABELS = {
    "EMAIL_ADDRESS": "email",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "PHONE_NUMBER": "phone",
    "IP_ADDRESS": "ip",
}
SENTENCES = (
    "{}",
    "It is {}.",
    "Please use {} for this, thanks!",
    "I wrote ({}) on the form; what now?",
    "Name: Ada\nData: {}\nCity: London",
    "ref 12, {}, 3 items",
)


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


def generated(regions: list[str], seed: int = 7, each: int = 300) -> Iterator[Labelled]:
    draw = random.Random(seed)
    makers: dict[str, Callable[[random.Random], str]] = {
        "email": _email,
        "card": _card,
        "iban": _iban,
        "ssn": _ssn,
        "phone": lambda draw: _phone(draw, regions),
        "ip": _ip,
        "secret": _secret,
    }
    for kind, make in makers.items():
        for _ in range(each):
            value = make(draw)
            before, after = draw.choice(SENTENCES).split("{}")
            yield (
                before + value + after,
                [(kind, len(before), len(before) + len(value))],
            )
    for _ in range(each * len(KINDS)):
        yield draw.choice(SENTENCES).replace("{}", _look_alike(draw)), []


def _text(draw: random.Random, alphabet: str, length: int) -> str:
    return "".join(draw.choices(alphabet, k=length))


def _digits(draw: random.Random, length: int) -> str:
    return _text(draw, string.digits, length)


def _email(draw: random.Random) -> str:
    local = draw.choice(("ada", "ada.lovelace", "a_l+news", "O'Hara", "x-7", "анна", "josé"))
    host = draw.choice(("example.com", "mail.example.co.uk", "xn--bcher-kva.example", "bücher.de"))
    return f"{local}{draw.randrange(100)}@{host}"


def _card(draw: random.Random) -> str:
    prefix, length = draw.choice(
        (
            *(("4", 16), ("51", 16), ("2221", 16), ("34", 15), ("37", 15), ("6011", 16)),
            *(("3530", 16), ("36", 14), ("6304", 16), ("62", 19), ("4", 13)),
        )
    )
    body = prefix + _digits(draw, length - len(prefix) - 1)
    number = body + luhn.calc_check_digit(body)
    separator = draw.choice(("", "", " ", "-"))
    sizes = {15: (4, 6, 5), 14: (4, 6, 4)}.get(length, (4, 4, 4, 4, 4))
    groups, start = [], 0
    for size in sizes:
        groups.append(number[start : start + size])
        start += size
    return separator.join(group for group in groups if group)


def _iban(draw: random.Random) -> str:
    country, bban = draw.choice(
        [
            ("DE", _digits(draw, 18)),
            ("GB", _text(draw, string.ascii_uppercase, 4) + _digits(draw, 14)),
            ("NL", _text(draw, string.ascii_uppercase, 4) + _digits(draw, 10)),
            ("NO", _digits(draw, 11)),
            ("FR", _digits(draw, 10) + _text(draw, string.ascii_uppercase + "0123", 11) + "12"),
            ("CH", _digits(draw, 5) + _text(draw, string.ascii_uppercase + "0123", 12)),
        ]
    )
    compact = country + iban.calc_check_digits(country + "00" + bban) + bban
    written = draw.choice((compact, iban.format(compact), iban.format(compact, "-")))
    return draw.choice((written, written.lower()))


def _ssn(draw: random.Random) -> str:
    area = draw.choice([n for n in range(1, 900) if n != 666])
    separator = draw.choice("- .")
    parts = (f"{area:03}", f"{draw.randrange(1, 100):02}", f"{draw.randrange(1, 10_000):04}")
    return separator.join(parts)


def _phone(draw: random.Random, regions: list[str]) -> str:
    region = draw.choice(regions)
    while True:
        example = phonenumbers.example_number_for_type(
            region,
            draw.choice(
                (phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE)
            ),
        )
        national = str(example.national_number)
        changed = national[:-4] + _digits(draw, 4)
        number = phonenumbers.parse(changed, region)
        if phonenumbers.is_valid_number(number):
            style = draw.choice(
                (
                    phonenumbers.PhoneNumberFormat.E164,
                    phonenumbers.PhoneNumberFormat.INTERNATIONAL,
                    phonenumbers.PhoneNumberFormat.NATIONAL,
                )
            )
            return str(phonenumbers.format_number(number, style))


def _ip(draw: random.Random) -> str:
    if draw.random() < 0.5:
        first = draw.choice([n for n in range(1, 224) if n != 127])
        return ".".join(map(str, (first, *(draw.randrange(256) for _ in range(3)))))
    groups = [f"{draw.randrange(1, 65_536):x}" for _ in range(8)]
    groups[0] = f"2{draw.randrange(4096):03x}"
    if draw.random() < 0.5:
        return ":".join(groups)
    return ":".join(groups[: draw.randrange(2, 5)]) + "::" + groups[-1]


def _secret(draw: random.Random) -> str:
    word, upper, hexadecimal = (
        string.ascii_letters + string.digits,
        string.ascii_uppercase,
        "0123456789abcdef",
    )
    return draw.choice(
        (
            "sk-proj-" + _text(draw, word, 48),
            "sk-ant-api03-" + _text(draw, word + "-_", 90),
            "ghp_" + _text(draw, word, 36),
            "glpat-" + _text(draw, word, 20),
            "AKIA" + _text(draw, upper + "234567", 16),
            f"xoxb-{_digits(draw, 12)}-{_text(draw, word, 24)}",
            "AIza" + _text(draw, word + "-_", 35),
            "hf_" + _text(draw, string.ascii_letters, 34),
            "sk_live_" + _text(draw, word, 24),
            f"eyJ{_text(draw, word, 30)}.eyJ{_text(draw, word, 60)}.{_text(draw, word, 43)}",
            "-----BEGIN " + draw.choice(("", "RSA ", "EC ", "OPENSSH ")) + "PRIVATE KEY-----",
            "Bearer " + _text(draw, hexadecimal, 32),
            "api_key: " + _text(draw, hexadecimal, 32),
            f"postgres://app:{_text(draw, word, 12)}@db.internal/orders",
            # nothing but its randomness tells these
            _text(draw, word, 32),
            _text(draw, word, 40),
            _text(draw, word + "+/", 40),
        )
    )


def _look_alike(draw: random.Random) -> str:
    hexadecimal = "0123456789abcdef"
    number = "4" + _digits(draw, 14)
    wrong = str((int(luhn.calc_check_digit(number)) + draw.randrange(1, 10)) % 10)
    return draw.choice(
        (
            number + wrong,
            f"DE{draw.randrange(2, 98):02}" + _text(draw, string.ascii_uppercase, 18),
            f"{draw.choice(('000', '666', '987'))}-{_digits(draw, 2)}-{_digits(draw, 4)}",
            "version " + ".".join(str(draw.randrange(200)) for _ in range(4)),
            ".".join(str(draw.randrange(20)) for _ in range(5)),
            "127.0.0.1:8080",
            str(uuid.UUID(int=draw.getrandbits(128))),
            _text(draw, hexadecimal, 40),
            _text(draw, hexadecimal, 64),
            f"2025-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02} 12:30:45",
            f"{draw.randrange(1900, 2030)}-{draw.randrange(1900, 2030)}",
            f"${draw.randrange(1000)},{_digits(draw, 3)},{_digits(draw, 3)}.{_digits(draw, 2)}",
            f"0.{_digits(draw, 16)}",
            f"order #{draw.randrange(10**5, 10**6)}",
            f"{_digits(draw, 3)} x {_digits(draw, 4)} mm",
            f"call_{_text(draw, string.ascii_letters + string.digits, 24)}",
            f"create{draw.choice(('Html', 'Json'))}5DocumentFromTemplateV{draw.randrange(10)}",
            f"https://example.com/docs/{draw.randrange(2000, 2030)}/getting-started-with-python-3",
            "std::vector<int> x{1, 2, 3};",
            f"@user{draw.randrange(100)} and pkg@{draw.randrange(10)}.{draw.randrange(10)}.0",
            "password: required, token: expired",
            f"ISBN 978-{_digits(draw, 1)}-{_digits(draw, 2)}-{_digits(draw, 6)}-{_digits(draw, 1)}",
        )
    )


def microseconds(call: Callable[[], object], runs: int = 100) -> float:
    """Return the best mean of several series, microseconds a call."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(runs):
            call()
        best = min(best, time.perf_counter() - start)
    return round(best / runs * 1e6, 2)


def timings(scanner: PiiScanner) -> dict[str, float]:
    words = "how do i get a refund for the order that never arrived at my place "
    numbers = "Order 12 of 2024 cost $1,299.00, see page 345; open 9:00 to 17:30, part 77-4431. "
    runs = "Invoice 2025-1141 of 2025-11-10 12:30: 10 units of 4000123, total 1200 EUR. "
    floor = re2.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+")
    kilobyte = (words * 20)[:1024]
    return {
        "floor_one_re2_search_1kb_us": microseconds(lambda: floor.search(kilobyte)),
        "words_67b_us": microseconds(lambda: scanner.scan(words)),
        "words_1kb_us": microseconds(lambda: scanner.scan(kilobyte)),
        "numbers_1kb_us": microseconds(lambda: scanner.scan((numbers * 20)[:1024])),
        "long_numbers_1kb_us": microseconds(lambda: scanner.scan((runs * 20)[:1024])),
        "chinese_1kb_us": microseconds(lambda: scanner.scan(("我想退款" * 90)[:341])),
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
    scores = score(generated(regions), scanner, lambda *_: True)
    result["generated"] = report("generated", scores, disagreements=arguments.disagreements)
    figures = timings(scanner)
    result["timings"] = figures
    print()
    for name, figure in figures.items():
        print(f"{name:32}{figure:>12}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
