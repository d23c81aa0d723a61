"""``refrain policy check`` and ``refrain policy schema``: the only file here that reads files.

The gateway adds the commands that need more than a policy.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from policies.format.load import PolicyError, parse_policy
from policies.format.schema import json_schema
from policies.format.yaml_document import policy_text

_INVALID = 2


Commands = Any
"""What argparse calls a set of subcommands, of a type without a name."""


def main(argv: Sequence[str], more: Callable[[Commands], None] | None = None) -> int:
    """Run ``refrain policy`` with the arguments behind these words; ``more`` adds commands.

    Returns 0, or 2 where a file is not a policy. Raises SystemExit on wrong usage and --help.
    """
    parser = argparse.ArgumentParser(
        prog="refrain policy",
        description="Check policy files, and see what they do.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="tell whether files are valid policies",
        description="Tell whether files are valid policies. Exit code 2 when one is not.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", type=Path, help="policies to check")
    check.set_defaults(run=_check_all)
    schema = commands.add_parser(
        "schema",
        help="print the JSON schema of policy files, for editors",
        description="Print the JSON schema of policy files, for editors.",
    )
    schema.set_defaults(run=_print_schema)
    if more is not None:
        more(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _check_all(arguments: argparse.Namespace) -> int:
    valid = [_check(file) for file in arguments.files]
    return 0 if all(valid) else _INVALID


def _print_schema(_arguments: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _check(file: Path) -> bool:
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
