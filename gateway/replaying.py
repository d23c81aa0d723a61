"""``refrain policy replay``: what an edited policy would have changed, told from a decision log.

Law: the log is read line by line, and a line that is no record is told by file and line and
passed over; only a log without any record is an error.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from gateway.calibrations import known_calibrations
from gateway.core.replay import Record, RecordError, Replay, Report, parse_record
from policies.document import policy_text
from policies.parse import PolicyError, compile_policy, parse_spec
from policies.recorded import RecordedPolicy, recorded_policy

_TOLD = 10
_INVALID = 2


def main(argv: Sequence[str]) -> int:
    """Run ``refrain policy replay``; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        policy = _policy(options.policy)
    except OSError as error:
        return _fail(f"{options.policy}: cannot be read: {error.strerror or error}")
    except PolicyError as error:
        return _fail(str(error))
    replay = Replay(policy, [each.threshold for each in known_calibrations(options.data_dir)])
    skipped = 0
    try:
        for record in _records(options.log):
            if isinstance(record, str):
                skipped += 1
                if skipped <= _TOLD:
                    print(f"refrain: {record}", file=sys.stderr)  # noqa: T201
            else:
                replay.take(record)
    except OSError as error:
        return _fail(f"{options.log}: cannot be read: {error.strerror or error}")
    report = replay.report()
    if not report.requests:
        return _fail(f"{options.log}: no record of a decision in it")
    if options.json:
        print(orjson.dumps(_plain(report, skipped)).decode())  # noqa: T201
    else:
        print("\n".join(_told(report, skipped)))  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refrain policy replay",
        description="Run a recorded decision log against an edited policy and print what would "
        "change. Both the decisions of then and those of the policy are simulated on a cache "
        "without bounds. Record with: refrain serve with decision_log set.",
    )
    parser.add_argument("--policy", type=Path, required=True, metavar="FILE", help="edited policy")
    parser.add_argument(
        "--data-dir", type=Path, metavar="D", help="the gateway's, for a calibration of its own"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("log", type=Path, metavar="LOG.jsonl", help="decision log")
    return parser


def _policy(file: Path) -> RecordedPolicy:
    spec = parse_spec(policy_text(file.read_bytes(), str(file)), str(file))
    return recorded_policy(spec, compile_policy(spec, str(file)))


def _records(file: Path) -> Iterator[Record | str]:
    """Yield records, and for lines that are none what is wrong with them."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield parse_record(orjson.loads(line))
            except orjson.JSONDecodeError:
                yield f"{file}:{number}: expected JSON"
            except RecordError as error:
                yield f"{file}:{number}: {error}"


def _plain(report: Report, skipped: int) -> dict[str, object]:
    moved = [
        {"from": was, "to": would, "requests": count}
        for (was, would), count in sorted(report.moved.items())
    ]
    return {**asdict(report), "moved": moved, "skipped_lines": skipped}


def _told(report: Report, skipped: int) -> Iterator[str]:
    before, after = report.before, report.after
    yield f"{report.requests:,} requests, {report.recorded_hits:,} of them hits when recorded"
    if report.unknown:
        yield (
            f"{report.unknown:,} cannot be told: a rule depends on what the log does not hold; "
            "decided as recorded"
        )
    if report.unjudged:
        yield (
            f"{report.unjudged:,} semantic hits cannot be told: they are of another calibration; "
            "kept as recorded"
        )
    if skipped:
        yield f"{skipped:,} lines were no records"
    yield ""
    yield f"{'simulated':<22}{'recorded':>12}{'edited':>12}{'change':>12}"
    figures = (
        ("hits", before.hits, after.hits),
        ("tokens saved", before.tokens, after.tokens),
        ("not looked up", before.bypasses, after.bypasses),
        ("distinct entries", report.entries_before, report.entries_after),
    )
    for name, then, now in figures:
        yield f"{name:<22}{then:>12,}{now:>12,}{now - then:>+12,}"
    yield ""
    yield f"hits gained: {report.gained:,}    hits lost: {report.lost:,}"
    yield ""
    yield f"{'edited rule':<22}{'requests':>12}{'hits':>12}{'tokens':>12}"
    for name, tally in sorted(report.rules.items()):
        yield f"{name:<22}{tally.requests:>12,}{tally.hits:>12,}{tally.tokens:>12,}"
    moved = [(count, was, would) for (was, would), count in report.moved.items() if was != would]
    if moved:
        yield ""
        yield "requests that another rule would decide:"
        for count, was, would in sorted(moved, reverse=True):
            yield f"  {was} -> {would}: {count:,}"


def _fail(message: str) -> int:
    for line in message.splitlines():
        print(f"refrain: {line}", file=sys.stderr)  # noqa: T201
    return _INVALID
