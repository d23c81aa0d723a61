"""The `refrain` command: arguments in, an exit code out (0 done, 1 failed, 2 bad usage or file)."""

import argparse
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from gateway.cli.commands import add_commands
from gateway.cli.terminal import CommandError, say

_EXAMPLES = """\
examples:
  refrain demo                                          everything on this machine, on real parts
  refrain serve --upstream https://api.openai.com/v1    the gateway alone
  refrain backend --model Qwen/Qwen3-0.6B               the engine alone
  refrain policy check policy.yaml                      is this file right?

exit codes: 0 done, 1 failed, 2 bad usage or invalid file
"""
_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)")
"""What argparse says of an unknown command or value."""


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


class _Parser(argparse.ArgumentParser):
    """A parser that names the nearest word when a command or a value is unknown."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end the process with exit code 2."""
        if found := _CHOICE.search(message):
            known = re.findall(r"[\w-]+", found["known"])
            if near := get_close_matches(found["given"], known, n=1):
                message = f"{message}; did you mean {near[0]}?"
        super().error(message)


class _Version(argparse.Action):
    """Prints the version; reading it takes as long as starting."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: Any, **_option: Any) -> None:
        """Print it, and end the process."""
        import importlib.metadata

        print(f"refrain {importlib.metadata.version('refrain-gateway')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="refrain",
        description="A caching gateway in front of LLM inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    add_commands(parser.add_subparsers(title="commands", metavar="COMMAND"))
    return parser
