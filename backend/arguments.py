"""Values on the command line: what they look like, and what is said of those that do not."""

import argparse
import math
import re
from typing import NoReturn

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)(b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


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
        help="of activations, KV cache and weights that are not quantised; auto is float32 on CPU, "
        "else the checkpoint's",
    )
    add(
        "--quantization",
        choices=("int8",),
        help="make weights 8 bits wide at load, which halves their memory (default: as the "
        "checkpoint has them)",
    )
    add(
        "--kv-dtype",
        choices=("auto", "int8", "fp8"),
        default="auto",
        help="of the KV cache: int8 on CPU or fp8 on CUDA hold twice the tokens; auto is --dtype",
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
    add(
        "--gpu-memory-utilization",
        type=share,
        default=0.9,
        metavar="SHARE",
        help="share of the GPU's memory that weights, steps and KV cache may take, above 0 and at "
        "most 1 (default: %(default)s)",
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


def share(text: str) -> float:
    """Read a number above 0 and of at most 1."""
    number = above_zero(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, got '{text}'")
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
    """Read a number of bytes: 512MiB and 2G are of 1024, 1GB is of 1000."""
    written = _SIZE.fullmatch(text.strip())
    if written is None or (written[3] and not written[2]) or float(written[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected bytes such as 512MiB or 8GiB, got '{text}'")
    decimal = bool(written[4]) and not written[3]
    return int(float(written[1]) * (1000 if decimal else 1024) ** _POWERS[written[2].lower()])


def seconds(text: str) -> float:
    """Read a time above 0, such as 500ms, 30s, 5m or a number of seconds."""
    return _seconds(text, "a time above 0") or _not_a_time(text, "a time above 0")


def seconds_from_zero(text: str) -> float:
    """Read a time, which may be 0."""
    return _seconds(text, "a time")


def _seconds(text: str, what: str) -> float:
    written = _TIME.fullmatch(text.strip())
    if written is None:
        _not_a_time(text, what)
    return float(written[1]) * _SECONDS[written[2] or "s"]


def _not_a_time(text: str, what: str) -> NoReturn:
    raise argparse.ArgumentTypeError(
        f"expected {what}, such as 500ms, 30s, 5m or a number of seconds, got '{text}'"
    )
