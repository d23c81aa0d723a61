"""`python -m embeddings`: run the embeddings service.

Where the vectors are comes from the environment, as the key does: REFRAIN_VECTORS (`faiss` or the
URL of a Qdrant server), REFRAIN_VECTORS_TIMEOUT, REFRAIN_QDRANT_API_KEY (or …_FILE, that names a
file with it).

Exit codes: 0 stopped by a signal or with its parent; 1 cannot run, one line on stderr says why;
2 bad usage.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError
from embeddings.log_lines import FORMATS, log_to_stderr

FAISS_DISTRIBUTIONS = ("faiss-cpu", "faiss-gpu-cu12")
DEFAULT_MAX_VECTORS = 1_000_000
# A sentence is too little work for two threads, which wait for each other: on two cores that others
# kept busy, one sentence took 270 ms on two threads and 20 ms on one. So more cores read more
# sentences at a time.
_CORES_AN_ENCODER = 4
_MOST_AUTOMATIC = 4
MOST_ENCODERS = 16
"""Each takes up to 280 MB for a batch of long texts."""
# Behind the gateway when both want a core: an exact hit takes less than a millisecond of one, and
# waited for the encoder's turn to end.
_NICENESS = 5


class FaissBuildError(Exception):
    """No build of FAISS is installed, or two. One line, for people."""


def main(argv: Sequence[str]) -> int:
    """Parse `argv` (without the program's name), serve, return the exit code."""
    arguments = _parser().parse_args(argv)
    log_to_stderr(arguments.log_format, logging.getLevelNamesMapping()[arguments.log_level.upper()])
    for chatty in ("sentence_transformers", "transformers", "httpx", "faiss"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        require_one_faiss()
    except FaissBuildError as error:
        print(f"embeddings: {error}", file=sys.stderr)
        return 1
    return _serve(arguments)


def require_one_faiss() -> str:
    """Return the name of the one installed build of FAISS. Raises FaissBuildError.

    Both are the package `faiss`, and together they break it.
    """
    installed = [name for name in FAISS_DISTRIBUTIONS if _is_installed(name)]
    if len(installed) == 1:
        return installed[0]
    found = " and ".join(installed) if installed else "neither"
    raise FaissBuildError(
        f"exactly one of {' and '.join(FAISS_DISTRIBUTIONS)} must be installed, found {found}"
    )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _serve(arguments: argparse.Namespace) -> int:
    # numpy and faiss come with these: `--help` and bad usage need not wait for them.
    import uvloop

    from embeddings.encoder.encoder import EncoderSettings
    from embeddings.index.store import StoreError
    from embeddings.index.text_index import TextIndexSettings
    from embeddings.service import SocketError, give_large_blocks_back, serve
    from embeddings.settings import qdrant_settings

    try:
        qdrant = qdrant_settings(os.environ)
    except (OSError, ValueError) as error:
        print(f"embeddings: {error}", file=sys.stderr)
        return 1
    settings = TextIndexSettings(
        data_dir=arguments.data_dir,
        encoder=EncoderSettings(
            arguments.model, arguments.device, threads=1, lanes=arguments.encoders
        ),
        max_vectors=arguments.max_vectors,
        qdrant=qdrant,
    )
    give_large_blocks_back()
    leave_with_parent = os.environ.get("REFRAIN_PARENT_PIPE") == "1"
    os.nice(_NICENESS)
    try:
        uvloop.run(
            serve(
                arguments.socket,
                settings,
                arguments.verifier,
                leave_with_parent=leave_with_parent,
            )
        )
    except (ModelError, SocketError, StoreError) as error:
        print(f"embeddings: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embeddings",
        description="Refrain's embeddings service: sentence vectors and nearest-neighbour search.",
        allow_abbrev=False,
    )
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to listen on")
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of vectors.sqlite3")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="DIR_OR_ID",
        help="sentence-transformers model: a directory or a hub id (default: %(default)s)",
    )
    parser.add_argument(
        "--verifier",
        type=Path,
        default=VERIFIER_DIRECTORY,
        metavar="DIR",
        help="trained verifier: a directory (default: the one that is shipped)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, default="info", help="least severe lines")
    parser.add_argument("--log-format", choices=FORMATS, default="auto", help="of lines on stderr")
    parser.add_argument(
        "--max-vectors",
        type=_positive,
        default=DEFAULT_MAX_VECTORS,
        metavar="N",
        help="vectors to keep, the oldest leave first (default: %(default)s)",
    )
    parser.add_argument(
        "--encoders",
        type=_encoders,
        default=_automatic(),
        metavar="N",
        help="passes of the encoder that run side by side, each on a core, and as many of the "
        "verifier; auto: one for every four cores (default here: %(default)s)",
    )
    return parser


def _encoders(text: str) -> int:
    value = _automatic() if text == "auto" else _positive(text)
    if value > MOST_ENCODERS:
        raise argparse.ArgumentTypeError(f"expected {MOST_ENCODERS} at most, got {text}")
    return value


def _automatic() -> int:
    cores = len(os.sched_getaffinity(0))
    return max(1, min(_MOST_AUTOMATIC, cores // _CORES_AN_ENCODER))


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return value


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. A regular exit would wait for an import of torch still under way.
    os._exit(code)
