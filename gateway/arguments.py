"""What several commands take on their command lines."""

import argparse
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

RECORDED_LOG = """\
A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.\
"""


def gateway_url(text: str) -> str:
    """Return the address of a running gateway; argparse tells what is wrong with another text."""
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


def number_from(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that is not less; argparse tells what is wrong with it."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a number from {least} on, got {text!r}")
        return number

    return read


def add_recorded_log(parser: argparse.ArgumentParser, *, limit: int, least: int, of: str) -> None:
    """Let a command take a log of recorded requests, and how many of them it looks at."""
    parser.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    parser.add_argument(
        "--limit",
        type=number_from(least),
        default=limit,
        metavar="N",
        help=f"{of} (default: %(default)s)",
    )
