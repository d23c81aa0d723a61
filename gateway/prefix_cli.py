"""``refrain prefix``: what operators do about prompts whose beginnings do not repeat."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gateway.prefix_reporting import run

_REPORT = """\
Tell of recorded requests where their prompts part, which bytes cause it, which settings of a policy
would let a prefix cache find more, and the YAML to paste. Settings are tried on the requests
themselves, so what is told is what would have been found, in a cache without bounds.
"""
_REPORT_EPILOG = """\
A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.

examples:
  REFRAIN_DECISION_LOG=log.jsonl REFRAIN_DECISION_LOG_REQUESTS=true refrain serve --upstream URL
  refrain prefix report log.jsonl
  refrain prefix report --json log.jsonl

exit codes: 0 done, 2 bad usage or no request in the log
"""


def main(argv: Sequence[str]) -> int:
    """Run ``refrain prefix`` with the arguments behind these words; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="refrain prefix", description="See why prefix caches miss, and mend it."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    report = commands.add_parser(
        "report",
        help="tell where recorded prompts part, and what would mend it",
        description=_REPORT,
        epilog=_REPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    report.add_argument(
        "--limit",
        type=_limit,
        default=2000,
        metavar="N",
        help="requests of a route that are looked at (default: %(default)s)",
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.set_defaults(run=_report)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


def _limit(text: str) -> int:
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError("expected a number from 2 on")
    return number


def _report(options: argparse.Namespace) -> int:
    return run(options.log, limit=options.limit, as_json=options.json)
