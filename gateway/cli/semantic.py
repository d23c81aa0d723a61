"""``refrain semantic``: what operators do about answers by meaning."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import PydanticCustomError

from gateway.cli.terminal import Commands, add_command, gateway_url, run_command
from policies.format.values import ERROR_BUDGET

BUDGETS = ("0.1%", "0.5%", "1%", "2%", "5%")

_CALIBRATE = """\
Work out how sure a semantic hit must be so that an error budget is kept, from would-be hits of your
own traffic. A LOG holds JSON lines: comparisons that the gateway has made in shadow mode or by
sampling (semantic-checks.jsonl in the data directory), or pairs labelled by hand, which are scored
here:
  {"asked": "how can I reset my password", "stored": "How do I reset my password?", "same": true}
What is unsure counts as wrong.
"""
_REPORT = """\
Print what the comparisons of shadow mode and sampling have shown, rule by rule: how many answers
found by meaning were those of the upstream, how many were wrong, with an interval of 95 % that has
room for the unsure ones, and the budget that this rate would meet.
"""
_CALIBRATE_EPILOG = """\
examples:
  refrain semantic calibrate                                         what the gateway has compared
  refrain semantic calibrate pairs.jsonl --budget 0.5% 1% 2%
  refrain semantic calibrate pairs.jsonl --data-dir .refrain --write
  a running gateway takes what is written without a restart

exit codes: 0 done, 1 no budget is kept or no scores are to be had, 2 bad usage or no usable line
"""


def main(argv: Sequence[str]) -> int:
    """Run ``refrain semantic`` with the arguments behind these words; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="refrain semantic",
        description="Calibrate answers by meaning, and see how often they were wrong.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_calibrate(commands)
    _add_report(commands)
    return run_command(parser, argv)


def _add_calibrate(commands: Commands) -> None:
    parser = add_command(
        commands,
        "calibrate",
        _calibrate,
        summary="work out thresholds for error budgets from your own traffic",
        description=_CALIBRATE,
        epilog=_CALIBRATE_EPILOG,
    )
    parser.add_argument(
        "log",
        type=Path,
        nargs="*",
        metavar="LOG",
        help="comparisons or labelled pairs (default: semantic-checks.jsonl in the data directory)",
    )
    _add_data_dir(parser)
    parser.add_argument(
        "--confidence",
        type=_confidence,
        default=0.95,
        metavar="C",
        help="that the budget is kept (default: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        type=_budget,
        nargs="+",
        default=[_budget(each) for each in BUDGETS],
        metavar="B",
        help="shares of hits that may be wrong (default: 0.1%% 0.5%% 1%% 2%% 5%%)",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="S",
        help="of an embeddings service to score pairs with (default: one is started for it)",
    )
    parser.add_argument(
        "--write", action="store_true", help="write semantic-calibration.json in the data directory"
    )


def _add_report(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        _report,
        summary="how often answers by meaning were wrong, by rule",
        description=_REPORT,
    )
    where = parser.add_mutually_exclusive_group()
    _add_data_dir(where)
    where.add_argument(
        "--gateway",
        "--url",
        dest="url",
        type=gateway_url,
        metavar="URL",
        help="ask a running gateway instead; its token comes from REFRAIN_ADMIN_TOKEN",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_data_dir(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("REFRAIN_DATA_DIR") or ".refrain"),
        metavar="D",
        help="the gateway's (default: %(default)s)",
    )


def _report(options: argparse.Namespace) -> int:
    from gateway.cli.operator import semantic_report

    return semantic_report(data_dir=options.data_dir, url=options.url, as_json=options.json)


def _calibrate(options: argparse.Namespace) -> int:
    from gateway.cli.calibrate import calibrate

    return calibrate(
        options.log,
        data_dir=options.data_dir,
        confidence=options.confidence,
        budgets=options.budget,
        socket=options.socket,
        write=options.write,
    )


def _budget(text: str) -> float:
    try:
        return float(ERROR_BUDGET.read(text))
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(f"expected {error.message()}, got {text!r}") from None


def _confidence(text: str) -> float:
    try:
        confidence = float(text)
    except ValueError:
        confidence = 0.0
    if not 0.5 <= confidence < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0.5 to below 1, got {text!r}")
    return confidence
