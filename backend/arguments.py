"""Values on the command line: what they look like, and what is said of those that do not."""

import argparse
import math
import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an engine is made of, whoever runs it."""
    add = parser.add_argument
    add("--model", required=True, metavar="DIR_OR_HUB_ID", help="what to serve")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to compute; auto takes CUDA where there is a device (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of weights and KV cache; auto is float32 on CPU, else the checkpoint's",
    )
    add(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's context)",
    )
    add(
        "--kv-bytes",
        type=size,
        metavar="BYTES",
        help="memory of the KV cache, such as 512MiB or 8GiB (default: a share of what is there)",
    )
    add("--threads", type=positive, metavar="N", help="CPU threads (default: torch's choice)")


def name(text: str) -> str:
    """Read a name that people and logs can show."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected a name, got {text!a}")
    return text


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return int(text)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return number


def numbers(text: str) -> tuple[int, ...]:
    """Read different whole numbers, set apart by commas, in ascending order."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def port(text: str) -> int:
    """Read a port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes."""
    match = re.fullmatch(r"([0-9]+)(?:([KMG])(?:iB)?)?", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected bytes such as 512MiB or 8GiB, got '{text}'")
    return int(match[1]) * _UNITS[match[2] or ""]
