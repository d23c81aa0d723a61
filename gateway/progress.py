"""What a command that takes long shows of how far it is."""

import sys


def show_progress(text: str) -> None:
    """Write over the last line of a terminal; to a file or a pipe nothing is written."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)  # noqa: T201
