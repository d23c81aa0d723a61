"""Encoder and verifier of the gateway in this process. What they said before is kept.

Law: a pair is scored once for each set of weights, in whichever order it comes.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import pack, unpack
from typing import TypeVar

import numpy as np

from embeddings.encoder.encoder import EncoderSettings, Vector, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, locate, verified_digest
from embeddings.messages import Reason
from embeddings.verify.files import read_verifier
from embeddings.verify.verifier import Verifier, load_verifier
from gateway.semantic.ports import SemanticUnavailableError
from quality.kept import Kept

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0))
_BATCH = 32
_PERIOD = 2.0


def told(label: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items; every two seconds say on stderr how many are done."""
    began = last = time.monotonic()
    for number, item in enumerate(items):
        now = time.monotonic()
        if now - last >= _PERIOD:
            last = now
            left = (now - began) / max(1, number) * (len(items) - number)
            line = f"\r{label}: {number} of {len(items)}, {left:.0f} s left "
            print(line, end="", file=sys.stderr, flush=True)
        yield item
    if last > began:
        line = f"\r{label}: {len(items)} in {time.monotonic() - began:.0f} s"
        print(line + " " * 20, file=sys.stderr)


def vectors_of(texts: Iterable[str], kept: Kept) -> dict[str, Vector]:
    """Return the vectors of the texts that have one; what has none is never found."""
    maker = f"encoder {verified_digest(locate(DEFAULT_MODEL))}"
    wanted = set(texts)
    found = kept.find(maker, wanted)
    missing = sorted(wanted - found.keys(), key=lambda text: (len(text), text))
    if missing:
        found |= _encoded(missing, maker, kept)
    return {text: np.frombuffer(value, dtype=np.float32) for text, value in found.items() if value}


def _encoded(texts: list[str], maker: str, kept: Kept) -> dict[str, bytes]:
    """Encode in batches of like lengths, one at a time on each core, and keep the vectors."""
    settings = EncoderSettings(DEFAULT_MODEL, "auto", threads=1)
    idle = [load_encoder(settings) for _ in range(CORES)]

    def encoded(batch: list[str]) -> dict[str, bytes]:
        encoder = idle.pop()
        results = encoder.encode(batch)
        idle.append(encoder)
        return {
            text: b"" if isinstance(vector, Reason) else vector.tobytes()
            for text, vector in zip(batch, results, strict=True)
        }

    found: dict[str, bytes] = {}
    batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
    with ThreadPoolExecutor(CORES) as pool:
        results = pool.map(encoded, batches)
        for _ in told("batches encoded", batches):
            made = next(results)
            kept.keep(maker, made)
            found |= made
    return found


class Scores:
    """The trained verifier, as ``gateway.semantic.verifier.Scorer``.

    It is loaded once for each core, when a pair is new; a core scores one pair at a time.
    """

    def __init__(self, directory: Path, kept: Kept) -> None:
        files = read_verifier(directory)
        self.verifier: str | None = files.digest
        self.verifier_name, self.verifier_fault = files.name, files.fault
        self._directory = directory
        self._kept = kept
        self._free = asyncio.Semaphore(CORES)
        self._idle: list[Verifier] = []

    async def score(self, asked: str, stored: str) -> float:
        """See ``Scorer``."""
        pair = "\0".join(sorted((asked, stored)))
        maker = f"verifier {self.verifier}"
        known = self._kept.find(maker, [pair]).get(pair)
        if known is None:
            async with self._free:
                known = await asyncio.to_thread(self._scored, asked, stored)
            self._kept.keep(maker, {pair: known})
        if len(known) != 8:
            raise SemanticUnavailableError(known.decode())
        return float(unpack("<d", known)[0])

    def _scored(self, asked: str, stored: str) -> bytes:
        verifier = self._idle.pop() if self._idle else load_verifier(self._directory, threads=1)
        (score,) = verifier.score([(asked, stored)])
        self._idle.append(verifier)
        return score.value.encode() if isinstance(score, Reason) else pack("<d", score)
