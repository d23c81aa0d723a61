"""`python -m embeddings.training`: train the verifier and write its files.

Everything comes from this repository and the encoder's weights; nothing is downloaded. On two cores
it takes what --minutes says, and the same again buys little.

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

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from numpy.typing import NDArray
from tokenizers import Tokenizer

from embeddings.encoder import EncoderSettings, load_encoder
from embeddings.model_files import DEFAULT_MODEL, ModelError, locate
from embeddings.training.fitting import Reader, fit, joined
from embeddings.training.groups import Group, GroupError, read_groups
from embeddings.training.mixture import Labelled, mixture, neighbours
from embeddings.training.network import PairNetwork
from embeddings.verifier_files import save_verifier

LAYERS, INNER, MAX_TOKENS = 3, 1024, 256
_HERE = Path(__file__).parent


def main(argv: Sequence[str]) -> int:
    """Parse `argv`, train, return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        groups = read_groups(arguments.groups)
        near = neighbours(groups, _encode)
        print(f"{len(groups)} groups, {len(near)} neighbours", flush=True)
        _train(groups, near, arguments)
    except (GroupError, ModelError, OSError) as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


def _encode(texts: Sequence[str]) -> NDArray[np.float32]:
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=os.cpu_count() or 1))
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    vectors = np.zeros((len(texts), encoder.dimensions), dtype=np.float32)
    for start in range(0, len(order), 64):
        places = order[start : start + 64]
        for place, vector in zip(places, encoder.encode([texts[x] for x in places]), strict=True):
            if not isinstance(vector, str):
                vectors[place] = vector
    return vectors


def _train(groups: list[Group], near: list[Labelled], arguments: argparse.Namespace) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    task = partial(
        _process,
        count=arguments.processes,
        port=port,
        groups=groups,
        near=near,
        minutes=arguments.minutes,
        out=arguments.out,
    )
    spawn: Any = getattr(processes, "start_processes")  # noqa: B009 - torch does not type it
    spawn(task, nprocs=arguments.processes, start_method="fork")


def _process(
    rank: int,
    *,
    count: int,
    port: int,
    groups: list[Group],
    near: list[Labelled],
    minutes: float,
    out: Path,
) -> None:
    directory = locate(DEFAULT_MODEL).directory
    joined(rank, count, port)
    torch.manual_seed(0)
    network = PairNetwork(directory, layers=LAYERS, inner=INNER)
    torch.manual_seed(1 + rank)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pairs = mixture(groups, near, Random(1 + rank))
    fit(network, pairs, Reader(tokenizer, MAX_TOKENS), minutes, partial(print, flush=True))
    if rank == 0:
        config = {**network.config, "name": "refrain-verifier", "max_tokens": MAX_TOKENS}
        save_verifier(network.state_dict(), config, directory / "tokenizer.json", out)
        print(f"written: {out}", flush=True)
    dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m embeddings.training",
        description="Train the verifier of semantic hits from the groups and templates here.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, default=_HERE.parent / "verify" / "model")
    parser.add_argument("--groups", type=Path, default=_HERE / "groups")
    parser.add_argument("--minutes", type=float, default=55.0, help="(default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
