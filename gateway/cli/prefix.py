"""``refrain prefix``: what operators do about prompts whose beginnings do not repeat."""

import argparse
from collections.abc import Sequence

from gateway.cli.terminal import RECORDED_LOG, add_recorded_log

_REPORT = """\
Tell of recorded requests where their prompts part, which bytes cause it, which settings of a policy
would let a prefix cache find more, and the YAML to paste. Settings are tried on the requests
themselves, so what is told is what would have been found, in a cache without bounds.
"""
_REPORT_EPILOG = f"""\
{RECORDED_LOG}

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
    add_recorded_log(report, limit=2000, least=2, of="requests of a route that are looked at")
    report.add_argument("--json", action="store_true", help="print JSON")
    report.set_defaults(run=_report)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


def _report(options: argparse.Namespace) -> int:
    from gateway.cli.prefix_reporting import run

    return run(options.log, limit=options.limit, as_json=options.json)
