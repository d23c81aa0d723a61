"""The `refrain` command: arguments in, an exit code out (0 done, 1 failed, 2 bad usage or file)."""

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.cli.terminal import CommandError, say

_EXAMPLES = """\
examples:
  refrain demo                                          everything on this machine, on real parts
  refrain serve --upstream https://api.openai.com/v1    the gateway alone
  refrain backend --model Qwen/Qwen3-0.6B               the engine alone
  refrain policy check policy.yaml                      is this file right?

exit codes: 0 done, 1 failed, 2 bad usage or invalid file
"""
_SERVE = """\
run the gateway in front of an upstream

Run the gateway. No file is needed: --upstream alone gives the defaults.

examples:
  refrain serve --upstream http://127.0.0.1:8000/v1
  refrain serve --upstream https://api.openai.com/v1 --policy policy.yaml --port 9000
  REFRAIN_PORT=9000 refrain serve --config refrain.yaml
"""
_DEMO = """\
run the gateway with the bundled engine and model

Run the whole product on this machine: gateway, encoder, bundled engine and
its small demo model. Ctrl-C stops everything.
"""
_WARM = """\
load or generate answers to known questions

Fill a running gateway's cache from a file of known questions, a JSON object
a line: {"question": ..., "answer": ...} or {"request": {...}}. Without an answer the
upstream is asked.

The entries belong to the tenant whose key OPENAI_API_KEY holds (without one: to clients that send
none). Loading answers needs the operator's token in REFRAIN_ADMIN_TOKEN, if the gateway has one.

examples:
  refrain warm faq.jsonl --model gpt-4o
  refrain warm faq.jsonl --model gpt-4o --system "You help customers of Acme." --url http://gw:8080
"""
_AUDIT = """\
scan what is stored with today's detectors of personal data

Scan every stored answer of a running gateway again. Exit code 1 when personal
data is found and stays.
"""
_USAGE = """\
show what was used and what was saved, in tokens, money and time

Show requests, tokens, dollars and seconds: what upstreams were paid for, and
what exact and semantic hits, shared calls, prefix caches and compression
saved. Dollars are of models whose price is known.

examples:
  refrain usage
  refrain usage --by team --since 7d
  refrain usage --by holder --team search
  refrain usage --gateway http://127.0.0.1:8080 --by day --csv > usage.csv
"""
_CHECK = "tell whether files are valid policies; exit code 2 when one is not"
_SCHEMA = "print the JSON schema of policy files, for editors"
_EXPLAIN = """\
tell what would become of a request, and why

Tell which rule decides on a request and what it decides; with --data-dir or
--gateway also whether it would hit, and if not, what differs from the nearest entry.

REQUEST is the JSON of a request's body, or {"endpoint": ..., "headers": {...}, "body": {...}}, or a
line of a decision log that has the request.

examples:
  refrain policy explain --policy policy.yaml request.json
  refrain policy explain --policy policy.yaml --data-dir .refrain request.json
  refrain policy explain --gateway http://127.0.0.1:8080 - < request.json
  head -n 1 log.jsonl | refrain policy explain --policy policy.yaml -
"""
_REPLAY = """\
tell what an edited policy would change, from a log

Run a recorded decision log against an edited policy and print what would
change. Both the decisions of then and those of the policy are simulated on a
cache without bounds. Record with: refrain serve with decision_log set.
"""
_CALIBRATE = """\
work out thresholds for error budgets from your own traffic

Work out how sure a semantic hit must be so that an error budget is kept, from would-be hits of your
own traffic. A LOG holds JSON lines: comparisons that the gateway has made in shadow mode or by
sampling (semantic-checks.jsonl in the data directory), or pairs labelled by hand, which are scored
here:
  {"asked": "how can I reset my password", "stored": "How do I reset my password?", "same": true}
What is unsure counts as wrong.

examples:
  refrain semantic calibrate                                         what the gateway has compared
  refrain semantic calibrate pairs.jsonl --budget 0.5% 1% 2%
  refrain semantic calibrate pairs.jsonl --data-dir .refrain --write
  a running gateway takes what is written without a restart

exit codes: 0 done, 1 no budget is kept or no scores are to be had, 2 bad usage or no usable line
"""
_REPORT = """\
how often answers by meaning were wrong, by rule

Print what the comparisons of shadow mode and sampling have shown, rule by rule: how many answers
found by meaning were those of the upstream, how many were wrong, with an interval of 95 % that has
room for the unsure ones, and the budget that this rate would meet.
"""
_PREFIX_REPORT = """\
tell where recorded prompts part, and what would mend it

Tell of recorded requests where their prompts part, which settings of a policy would let a prefix
cache find more, which bytes these change, and the YAML to paste. Settings are tried on the requests
themselves, so what is told is what would have been found, in a cache without bounds.

A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.

examples:
  REFRAIN_DECISION_LOG=log.jsonl REFRAIN_DECISION_LOG_REQUESTS=true refrain serve --upstream URL
  refrain prefix report log.jsonl
  refrain prefix report --json log.jsonl

exit codes: 0 done, 2 bad usage or no request in the log
"""
_KEYS_ADD = """\
make a key for a new holder, and show it once

Make a key and add its line to the file of gateway keys. Standard output has the key alone.

examples:
  refrain keys add shop --file keys
  refrain keys add shop --models 'gpt-4o*,text-embedding-*' --expires 90d
"""
_KEYS_LIST = "list the keys of the file, without their secrets"
_KEYS_REVOKE = "remove every key of a holder; a running gateway takes it within a second"
_KEYS_ROTATE = """\
make a new key for a holder; the old one ends

Make a new key with the attributes of the holder's newest one. The old keys end at once, or
after --overlap.

examples:
  refrain keys rotate shop
  refrain keys rotate shop --overlap 1d
"""
_ESTIMATE = """\
tell from a log what the cache would have saved

Tell what would have been saved of the requests of an exported log, before anything is installed in
front of traffic: exact hits, hits by meaning, calls that others would have joined, and what a
prefix cache could find. The gateway's own code decides on each request, in the order of their
start.

A LOG holds JSON lines, and may be gzip (.gz). Its form is recognised: requests beside their answers
or alone, and OpenAI's batch files (openai); LiteLLM's standard logging (litellm); Helicone's export
with bodies (helicone); a gateway's decision log with requests (refrain). - is standard input.

examples:
  refrain estimate log.jsonl
  refrain estimate --policy policy.yaml --html savings.html log.jsonl.gz
  refrain estimate --risk 1% log.jsonl         also answers by meaning, at most 1 % of them wrong

exit codes: 0 done, 1 failed, 2 bad usage, invalid file or no request in the log
"""
_FORMATS = ("openai", "litellm", "helicone", "refrain")
_BUDGETS = (0.001, 0.005, 0.01, 0.02, 0.05)

Commands = Any
"""The type of argparse's sets of commands, which has no public name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        match arguments:
            case ["backend", *rest]:
                from backend.__main__ import main as backend

                return backend(rest)
        parser = _parser()
        options = parser.parse_args(arguments)
        if "run" not in options:
            parser.print_help(sys.stderr)
            return 2
        # Imported when it runs, so that --help is quick.
        return int(pkgutil.resolve_name(options.run)(options))
    except CommandError as error:
        say(str(error))
        return error.code
    except KeyboardInterrupt:  # where no supervisor took over the signal
        return 130
    except BrokenPipeError:  # the reader has read enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Version(argparse.Action):
    """Prints the version; reading it takes as long as starting."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: Any, **_option: Any) -> None:
        """Print it, and end the process."""
        import importlib.metadata

        print(f"refrain {importlib.metadata.version('refrain')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refrain",
        description="A caching gateway in front of LLM inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_processes(commands)
    _add_operator(commands)
    _add_estimate(commands)
    _add_usage(commands)
    commands.add_parser("backend", help="run the engine alone (refrain backend --help)")
    groups = (
        ("policy", "check a policy, explain a request, replay a log", _add_policy),
        ("semantic", "calibrate and watch answers by meaning", _add_semantic),
        ("keys", "make, list, revoke and rotate gateway keys", _add_keys),
        ("prefix", "see why prefix caches miss, and mend it", _add_prefix),
    )
    for name, summary, add_commands in groups:
        help_text = f"{summary} (refrain {name} --help)"
        group = commands.add_parser(name, help=help_text, description=f"{summary.capitalize()}.")
        add_commands(group.add_subparsers(title="commands", metavar="COMMAND", required=True))
    return parser


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
    serve = _add(commands, "serve", "launch:run_gateway", _SERVE)
    serve.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="OpenAI-style base URL, mostly ending in /v1; repeated: replicas",
    )
    serve.add_argument("--workers", type=int, metavar="N", help="gateway processes (default: 1)")
    demo = _add(commands, "demo", "launch:run_demo", _DEMO)
    for parser in (serve, demo):
        add = parser.add_argument
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
    warm = _add(commands, "warm", "operator:warm", _WARM)
    add = warm.add_argument
    add("file", type=Path, metavar="FILE", help="known questions, JSON lines")
    add("--model", metavar="M", help="model of bare questions")
    add("--system", metavar="TEXT", help="system message of bare questions")
    number = _number(int, 1, 256)
    add("--concurrency", type=number, default=4, metavar="N", help="at a time (default: 4)")
    audit = _add(commands, "audit", "operator:audit", _AUDIT)
    audit.add_argument("--purge", action="store_true", help="remove what is found")
    audit.add_argument("--json", action="store_true", help="print JSON")
    for parser in (warm, audit):
        parser.add_argument(
            "--url",
            type=_url,
            default="http://127.0.0.1:8080",
            metavar="URL",
            help="the gateway (default: %(default)s); its token comes from REFRAIN_ADMIN_TOKEN",
        )


def _add_estimate(commands: Commands) -> None:
    estimate = _add(commands, "estimate", "estimate.command:estimate", _ESTIMATE)
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
    usage = _add(commands, "usage", "usage:usage", _USAGE)
    add = usage.add_argument
    groups = ("model", "holder", "team", "rule", "upstream", "day")
    add("--by", choices=groups, default="model", help="what a row is (default: model)")
    add("--since", metavar="DAY", help="first day, or a number of days such as 7d (default: 30d)")
    add("--team", metavar="TEAM", help="only holders of gateway keys of this team ('': of none)")
    form = usage.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON")
    _add_source(usage)


def _add_policy(commands: Commands) -> None:
    check = _add(commands, "check", "policy:check", _CHECK)
    check.add_argument("files", nargs="+", metavar="FILE", type=Path, help="policies to check")
    _add(commands, "schema", "policy:schema", _SCHEMA)
    explain = _add(commands, "explain", "explain:explain", _EXPLAIN)
    add = explain.add_argument
    add("request", metavar="REQUEST", help="JSON file; - is standard input")
    add("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    add("--data-dir", type=Path, metavar="D", help="look into the store there")
    add("--config", type=Path, metavar="FILE", help="settings of the gateway whose store it is")
    add("--upstream", metavar="URL", help="the upstream of the keys (default: that of the entries)")
    add("--gateway", type=_url, metavar="URL", help="ask a running gateway instead")
    add("--token", metavar="T", help="its admin token (default: REFRAIN_ADMIN_TOKEN)")
    add("--json", action="store_true", help="print JSON")
    replay = _add(commands, "replay", "policy:replay", _REPLAY)
    add = replay.add_argument
    add("--policy", type=Path, required=True, metavar="FILE", help="edited policy")
    add("--data-dir", type=Path, metavar="D", help="the gateway's, for a calibration of its own")
    add("--json", action="store_true", help="print JSON")
    add("log", type=Path, metavar="LOG.jsonl", help="decision log")


def _add_semantic(commands: Commands) -> None:
    calibrate = _add(commands, "calibrate", "calibrate:calibrate", _CALIBRATE)
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
    report = _add(commands, "report", "operator:semantic_report", _REPORT)
    report.add_argument("--json", action="store_true", help="print JSON")
    _add_data_dir(calibrate)
    _add_source(report)


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options for a command that reads a data directory, or asks a running gateway."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gateway",
        "--url",
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
    report = _add(commands, "report", "prefix_report:run_report", _PREFIX_REPORT)
    report.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    number, limit = _number(int, 2, 1_000_000), "requests looked at of a route (default: 2000)"
    report.add_argument("--limit", type=number, default=2000, metavar="N", help=limit)
    report.add_argument("--json", action="store_true", help="print JSON")


def _add_keys(commands: Commands) -> None:
    add = _add(commands, "add", "keys:add", _KEYS_ADD)
    listing = _add(commands, "list", "keys:list_keys", _KEYS_LIST)
    revoke = _add(commands, "revoke", "keys:revoke", _KEYS_REVOKE)
    rotate = _add(commands, "rotate", "keys:rotate", _KEYS_ROTATE)
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
