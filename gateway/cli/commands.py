"""Commands and their arguments.

Law: nothing heavy is imported here: a command's code is imported when it runs.
"""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.cli import help_texts

_FORMATS = ("openai", "litellm", "helicone", "refrain")
_BUDGETS = (0.001, 0.005, 0.01, 0.02, 0.05)

Commands = Any
"""The type of argparse's sets of commands, which has no public name."""


def add_commands(commands: Commands) -> None:
    """Add every command with its arguments."""
    _add_processes(commands)
    _add_status(commands)
    _add_operator(commands)
    _add_estimate(commands)
    _add_usage(commands)
    commands.add_parser("backend", help="run the engine alone (refrain backend --help)")
    groups = (
        ("config", "check and show settings", _add_config),
        ("policy", "check a policy, explain a request, replay a log", _add_policy),
        ("semantic", "calibrate and watch answers by meaning", _add_semantic),
        ("keys", "make, list, revoke and rotate gateway keys", _add_keys),
        ("prefix", "see why prefix caches miss, and mend it", _add_prefix),
    )
    for name, summary, add_group in groups:
        help_text = f"{summary} (refrain {name} --help)"
        group = commands.add_parser(name, help=help_text, description=f"{summary.capitalize()}.")
        add_group(group.add_subparsers(title="commands", metavar="COMMAND", required=True))


def _add(commands: Commands, name: str, run: str, text: str) -> argparse.ArgumentParser:
    """Add a command with the function ``run``; its text begins with its line in the list."""
    summary, _, text = text.partition("\n\n")
    text, _, examples = text.partition("\nexamples:\n")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=text or f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples and f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=f"gateway.cli.{run}")
    return parser


def _add_processes(commands: Commands) -> None:
    serve = _add(commands, "serve", "launch:run_gateway", help_texts.SERVE)
    demo = _add(commands, "demo", "launch:run_demo", help_texts.DEMO)
    _add_settings(serve)
    _add_settings(demo, with_upstream=False)


def _add_settings(parser: argparse.ArgumentParser, *, with_upstream: bool = True) -> None:
    """Add the settings that have a flag."""
    add = parser.add_argument
    if with_upstream:
        upstream = "OpenAI-style base URL, mostly ending in /v1; repeated: replicas"
        add("--upstream", action="append", metavar="URL", help=upstream)
        add("--workers", type=int, metavar="N", help="gateway processes (default: 1)")
    add("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    add("--config", type=Path, metavar="FILE", help="settings (default: refrain.yaml if there)")
    add("--host", metavar="H", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, metavar="P", help="port to listen on (default: 8080)")
    add(
        "--data-dir",
        type=Path,
        metavar="D",
        help="entries, vectors, secret (default: .refrain)",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add(
        "--log-format",
        choices=("auto", "text", "json"),
        help="of log lines on stderr (default: auto, text on a terminal and else JSON)",
    )


def _add_operator(commands: Commands) -> None:
    warm = _add(commands, "warm", "operator:warm", help_texts.WARM)
    add = warm.add_argument
    add("file", type=Path, metavar="FILE", help="known questions, JSON lines")
    add("--model", metavar="M", help="model of bare questions")
    add("--system", metavar="TEXT", help="system message of bare questions")
    number = _number(int, 1, 256)
    add("--concurrency", type=number, default=4, metavar="N", help="at a time (default: 4)")
    audit = _add(commands, "audit", "operator:audit", help_texts.AUDIT)
    audit.add_argument("--purge", action="store_true", help="remove what is found")
    audit.add_argument("--json", action="store_true", help="print JSON")
    for parser in (warm, audit):
        _add_gateway(parser)


def _add_status(commands: Commands) -> None:
    status = _add(commands, "status", "status:status", help_texts.STATUS)
    _add_gateway(status)
    doctor = _add(commands, "doctor", "doctor:doctor", help_texts.DOCTOR)
    _add_settings(doctor)
    for parser in (status, doctor):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _add_estimate(commands: Commands) -> None:
    estimate = _add(commands, "estimate", "estimate.command:estimate", help_texts.ESTIMATE)
    add = estimate.add_argument
    add("log", type=Path, metavar="LOG", help="exported requests; - is standard input")
    add("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    add("--format", choices=_FORMATS, help="form of the log (default: recognised line by line)")
    risk = "share of answers by meaning that may be wrong; without it none are looked for"
    add("--risk", type=_budget, metavar="R", help=risk)
    minutes, window = _number(float, 0.1, 10_080), "minutes that a prompt stays in a prefix cache"
    add("--prefix-minutes", type=minutes, default=10.0, metavar="N", help=f"{window} (default: 10)")
    prices = "prices of your own, by model (default: the shipped table)"
    add("--prices", type=Path, metavar="FILE", help=prices)
    folder = Path(os.environ.get("REFRAIN_DATA_DIR") or ".refrain")
    own = "a gateway's, for a calibration of its own (default: %(default)s)"
    add("--data-dir", type=Path, default=folder, metavar="D", help=own)
    add("--html", type=Path, metavar="FILE", help="also write a page with plots")
    add("--json", action="store_true", help="print JSON")


def _add_usage(commands: Commands) -> None:
    usage = _add(commands, "usage", "usage:usage", help_texts.USAGE)
    add = usage.add_argument
    groups = ("model", "holder", "team", "rule", "upstream", "day")
    add("--by", choices=groups, default="model", help="what a row is (default: model)")
    add("--since", metavar="DAY", help="first day, or a number of days such as 7d (default: 30d)")
    add("--team", metavar="TEAM", help="only holders of gateway keys of this team ('': of none)")
    form = usage.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON")
    _add_source(usage)


def _add_config(commands: Commands) -> None:
    check = _add(commands, "check", "config:check", help_texts.CONFIG_CHECK)
    show = _add(commands, "show", "config:show", help_texts.CONFIG_SHOW)
    _add(commands, "schema", "config:schema", help_texts.CONFIG_SCHEMA)
    for parser in (check, show):
        _add_settings(parser)
    show.add_argument("--json", action="store_true", help="print JSON")


def _add_policy(commands: Commands) -> None:
    check = _add(commands, "check", "policy:check", help_texts.CHECK)
    check.add_argument("files", nargs="+", metavar="FILE", type=Path, help="policies to check")
    _add(commands, "schema", "policy:schema", help_texts.SCHEMA)
    explain = _add(commands, "explain", "explain:explain", help_texts.EXPLAIN)
    add = explain.add_argument
    add("request", metavar="REQUEST", help="JSON file; - is standard input")
    add("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    add("--data-dir", type=Path, metavar="D", help="look into the store there")
    add("--config", type=Path, metavar="FILE", help="settings of the gateway whose store it is")
    add("--upstream", metavar="URL", help="the upstream of the keys (default: that of the entries)")
    add("--gateway", type=_url, metavar="URL", help="ask a running gateway instead")
    add("--token", metavar="T", help="its admin token (default: REFRAIN_ADMIN_TOKEN)")
    add("--json", action="store_true", help="print JSON")
    replay = _add(commands, "replay", "policy:replay", help_texts.REPLAY)
    add = replay.add_argument
    add("--policy", type=Path, required=True, metavar="FILE", help="edited policy")
    add("--data-dir", type=Path, metavar="D", help="the gateway's, for a calibration of its own")
    add("--json", action="store_true", help="print JSON")
    add("log", type=Path, metavar="LOG.jsonl", help="decision log")


def _add_semantic(commands: Commands) -> None:
    calibrate = _add(commands, "calibrate", "calibrate:calibrate", help_texts.CALIBRATE)
    add = calibrate.add_argument
    log = "comparisons or labelled pairs (default: semantic-checks.jsonl in the data directory)"
    add("log", type=Path, nargs="*", metavar="LOG", help=log)
    confidence, sure = _number(float, 0.5, 0.999999), "that the budget is kept (default: 0.95)"
    add("--confidence", type=confidence, default=0.95, metavar="C", help=sure)
    budgets = "shares of hits that may be wrong (default: 0.1%% 0.5%% 1%% 2%% 5%%)"
    add("--budget", type=_budget, nargs="+", default=_BUDGETS, metavar="B", help=budgets)
    service = "of an embeddings service to score pairs with (default: one is started for it)"
    add("--socket", type=Path, metavar="S", help=service)
    file = "write semantic-calibration.json in the data directory"
    add("--write", action="store_true", help=file)
    report = _add(commands, "report", "operator:semantic_report", help_texts.REPORT)
    report.add_argument("--json", action="store_true", help="print JSON")
    _add_data_dir(calibrate)
    _add_source(report)


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that needs a running gateway."""
    parser.add_argument(
        "--gateway",
        dest="url",
        type=_url,
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="the gateway (default: %(default)s); its token comes from REFRAIN_ADMIN_TOKEN",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options for a command that reads a data directory, or asks a running gateway."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gateway",
        dest="url",
        type=_url,
        metavar="URL",
        help="ask a running gateway instead; its token comes from REFRAIN_ADMIN_TOKEN",
    )
    _add_data_dir(where)


def _add_data_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("REFRAIN_DATA_DIR") or ".refrain"),
        metavar="D",
        help="the gateway's (default: %(default)s)",
    )


def _add_prefix(commands: Commands) -> None:
    report = _add(commands, "report", "prefix_report:run_report", help_texts.PREFIX_REPORT)
    report.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    number, limit = _number(int, 2, 1_000_000), "requests looked at of a route (default: 2000)"
    report.add_argument("--limit", type=number, default=2000, metavar="N", help=limit)
    report.add_argument("--json", action="store_true", help="print JSON")


def _add_keys(commands: Commands) -> None:
    add = _add(commands, "add", "keys:add", help_texts.KEYS_ADD)
    listing = _add(commands, "list", "keys:list_keys", help_texts.KEYS_LIST)
    revoke = _add(commands, "revoke", "keys:revoke", help_texts.KEYS_REVOKE)
    rotate = _add(commands, "rotate", "keys:rotate", help_texts.KEYS_ROTATE)
    listing.add_argument("--json", action="store_true", help="print JSON")
    for parser in (add, revoke, rotate):
        parser.add_argument("name", metavar="NAME", help="the holder")
    for parser in (add, rotate):
        more = parser.add_argument
        more("--models", metavar="GLOBS", help="models that it may use, such as gpt-4o*,claude-*")
        more("--expires", metavar="WHEN", help="when it ends: 90d, or 2027-01-31 in UTC")
        more("--team", metavar="TEAM", help="keys of a team share answers of scope: team")
        more("--rpm", metavar="N", help="most requests a minute, such as 60")
        more("--tpm", metavar="N", help="most tokens a minute, such as 100k")
        at_a_time = "most requests under way at a time, in each worker"
        more("--concurrency", metavar="N", help=at_a_time)
        budget = "at its end requests are refused: 5Mtokens/day, 20USD/month, or both with a comma"
        more("--budget", metavar="B", help=budget)
        more("--soft-budget", metavar="B", help="at its end a warning is logged: 15USD/month")
        account = "whether it may use paths where the upstream stores: open, or closed (if new)"
        more("--account", metavar="A", help=account)
    overlap = "how long old keys stay valid, such as 1d (default: 0)"
    rotate.add_argument("--overlap", type=_duration, default=0.0, metavar="TIME", help=overlap)
    for parser in (add, listing, revoke, rotate):
        file = "the file of keys (default: gateway_keys of the settings)"
        parser.add_argument("--file", type=Path, metavar="FILE", help=file)
        settings = "settings (default: refrain.yaml if there)"
        parser.add_argument("--config", type=Path, metavar="FILE", help=settings)


def _duration(text: str) -> float:
    from policies.format.values import DURATION, UnexpectedValueError

    try:
        return float(DURATION.read(text))
    except UnexpectedValueError as refused:
        raise argparse.ArgumentTypeError(f"expected {refused}, got {text!r}") from None


def _url(text: str) -> str:
    """Return the address of a running gateway; argparse reports other texts."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"expected a URL such as http://127.0.0.1:8080, got {text!r}"
        )
    return text


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (number := kind(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(
            f"expected a number from {least:g} to {most:g}, got {text!r}"
        )

    return read


def _budget(text: str) -> float:
    from policies.format.values import ERROR_BUDGET, UnexpectedValueError

    try:
        return float(ERROR_BUDGET.read(text))
    except UnexpectedValueError as refused:
        raise argparse.ArgumentTypeError(f"expected {refused}, got {text!r}") from None
