"""The `refrain` command: arguments in, an exit code out (0 done, 1 failed, 2 bad usage or file)."""

import os
import sys
from collections.abc import Sequence

import click

from gateway.cli.commands import cli
from gateway.cli.terminal import CommandError, say


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return cli.main(argv, prog_name="refrain", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CommandError as error:
        say(str(error))
        return error.code
    except click.Abort:  # where no supervisor took over the signal
        return 130
    except BrokenPipeError:  # the reader has read enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
