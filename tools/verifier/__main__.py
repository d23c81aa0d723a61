"""`python -m tools.verifier`: train the verifier and write its files.

Everything comes from this repository and the encoder's weights; nothing is downloaded. It takes
what --minutes says; with --checkpoint another run goes on from there.

Exit codes: 0 written; 1 cannot train, one line on stderr says why; 2 bad usage.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from tokenizers import Tokenizer

from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError, locate
from embeddings.verify.files import save_verifier
from tools.verifier.fitting import RATE, Reader, fit, joined
from tools.verifier.groups import Group, GroupError, read_groups
from tools.verifier.mixture import Labelled, mixture, neighbours
from tools.verifier.network import PairNetwork
from tools.verifier.vectors import sentence_vectors

LAYERS, INNER, MAX_TOKENS = 3, 1024, 256
_HERE = Path(__file__).parent


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, train, return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        groups = read_groups(arguments.groups)
        near = neighbours(groups, sentence_vectors)
        print(f"{len(groups)} groups, {len(near)} neighbours", flush=True)
        _train(groups, near, arguments)
    except (GroupError, ModelError, OSError) as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


def _train(groups: list[Group], near: list[Labelled], arguments: argparse.Namespace) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    task = partial(
        _process,
        port=port,
        groups=groups,
        near=near,
        arguments=arguments,
    )
    spawn: Any = getattr(processes, "start_processes")  # noqa: B009 - torch does not type it
    spawn(task, nprocs=arguments.processes, start_method="fork")


def _process(
    rank: int,
    *,
    port: int,
    groups: list[Group],
    near: list[Labelled],
    arguments: argparse.Namespace,
) -> None:
    directory = locate(DEFAULT_MODEL).directory
    joined(rank, arguments.processes, port)
    torch.manual_seed(0)
    network = PairNetwork(directory, layers=LAYERS, inner=INNER)
    checkpoint: Path | None = arguments.checkpoint
    if checkpoint is not None and checkpoint.exists():
        network.load_state_dict(torch.load(checkpoint, weights_only=True))
    seed = arguments.seed * arguments.processes + rank
    torch.manual_seed(seed)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pairs = mixture(groups, near, Random(seed))
    reader = Reader(tokenizer, MAX_TOKENS)

    def report(line: str) -> None:
        print(line, flush=True)
        if checkpoint is not None:
            torch.save(network.state_dict(), checkpoint)

    fit(network, pairs, reader, arguments.minutes, report=report, rate=arguments.rate)
    if rank == 0:
        out: Path = arguments.out
        report("done")
        config = {**network.config, "name": "refrain-verifier", "max_tokens": MAX_TOKENS}
        save_verifier(network.state_dict(), config, directory / "tokenizer.json", out)
        print(f"written: {out}", flush=True)
    dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verifier",
        description="Train the verifier of semantic hits from the groups and templates here.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=VERIFIER_DIRECTORY,
        help="folder to write (default: that of the verifier)",
    )
    parser.add_argument(
        "--groups", type=Path, default=_HERE / "groups", help="folder of hand-written groups"
    )
    parser.add_argument("--minutes", type=float, default=55.0, help="(default: %(default)s)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="(default here: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="go on from this file where it exists, and write it every minute",
    )
    parser.add_argument(
        "--rate", type=float, default=RATE, help="learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another one draws other pairs (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
