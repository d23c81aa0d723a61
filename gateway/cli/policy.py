"""``refrain policy``: check and schema; explain and replay, which need more, are imported."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.terminal import Commands, add_command, gateway_url, run_command
from policies.format.load import PolicyError, parse_policy
from policies.format.schema import json_schema
from policies.format.yaml_document import policy_text

_EXPLAIN = """\
Tell which rule decides on a request and what it decides; with --data-dir or
--gateway also whether it would hit, and if not, what differs from the nearest entry.
"""
_EXPLAIN_EXAMPLES = """\
REQUEST is the JSON of a request's body, or {"endpoint": ..., "headers": {...}, "body": {...}}, or a
line of a decision log that has the request.

examples:
  refrain policy explain --policy policy.yaml request.json
  refrain policy explain --policy policy.yaml --data-dir .refrain request.json
  refrain policy explain --gateway http://127.0.0.1:8080 - < request.json
  head -n 1 log.jsonl | refrain policy explain --policy policy.yaml -
"""
_REPLAY = """\
Run a recorded decision log against an edited policy and print what would
change. Both the decisions of then and those of the policy are simulated on a
cache without bounds. Record with: refrain serve with decision_log set.
"""


def main(argv: Sequence[str]) -> int:
    """Run ``refrain policy`` with the arguments behind these words; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="refrain policy", description="Check policy files, and see what they do."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = add_command(
        commands,
        "check",
        _check,
        summary="tell whether files are valid policies",
        description="Tell whether files are valid policies. Exit code 2 when one is not.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", type=Path, help="policies to check")
    add_command(
        commands,
        "schema",
        _schema,
        summary="print the JSON schema of policy files, for editors",
        description="Print the JSON schema of policy files, for editors.",
    )
    _add_explain(commands)
    _add_replay(commands)
    return run_command(parser, argv)


def _add_explain(commands: Commands) -> None:
    explain = add_command(
        commands,
        "explain",
        _explain,
        summary="tell what would become of a request, and why",
        description=_EXPLAIN,
        epilog=_EXPLAIN_EXAMPLES,
    )
    explain.add_argument("request", metavar="REQUEST", help="JSON file; - is standard input")
    explain.add_argument("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    explain.add_argument("--data-dir", type=Path, metavar="D", help="look into the store there")
    explain.add_argument(
        "--config", type=Path, metavar="FILE", help="settings of the gateway whose store it is"
    )
    explain.add_argument(
        "--upstream", metavar="URL", help="the upstream of the keys (default: that of the entries)"
    )
    explain.add_argument(
        "--gateway", type=gateway_url, metavar="URL", help="ask a running gateway instead"
    )
    explain.add_argument(
        "--token", metavar="T", help="its admin token (default: REFRAIN_ADMIN_TOKEN)"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")


def _add_replay(commands: Commands) -> None:
    replay = add_command(
        commands,
        "replay",
        _replay,
        summary="tell what an edited policy would change, from a log",
        description=_REPLAY,
    )
    replay.add_argument("--policy", type=Path, required=True, metavar="FILE", help="edited policy")
    replay.add_argument(
        "--data-dir", type=Path, metavar="D", help="the gateway's, for a calibration of its own"
    )
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.add_argument("log", type=Path, metavar="LOG.jsonl", help="decision log")


def _check(options: argparse.Namespace) -> int:
    valid = [_is_valid(file) for file in options.files]
    return 0 if all(valid) else 2


def _is_valid(file: Path) -> bool:
    try:
        policy = parse_policy(policy_text(file.read_bytes(), str(file)), str(file))
    except OSError as error:
        print(f"{file}: cannot be read: {error.strerror}", file=sys.stderr)
        return False
    except PolicyError as error:
        print(error, file=sys.stderr)
        return False
    rules = "1 rule" if len(policy.rules) == 1 else f"{len(policy.rules)} rules"
    print(f"{file}: valid, {rules} and the default, generation {policy.generation}")
    return True


def _schema(_options: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _explain(options: argparse.Namespace) -> int:
    from gateway.cli.explain import explain

    return explain(options)


def _replay(options: argparse.Namespace) -> int:
    from gateway.cli.replay import replay

    return replay(
        options.log, policy=options.policy, data_dir=options.data_dir, as_json=options.json
    )
