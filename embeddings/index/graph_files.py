"""Graphs on disk: DATA_DIR/vectors.graphs/, so that a restart need not build them again.

Laws: a file holds links and no vector (those come from the vector store; a row whose vector is not
there any more only guides searches); a file that is damaged, or made by another encoder or build,
is removed and never trusted; a file is replaced as a whole; without files all is built anew.

A row is known by a digest of partition, key and vector. If one of them has changed since, the row
is not found, and the vector is built in as a new one.
"""

import json
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from embeddings.index.flat_block import Half
from embeddings.index.graph import LINKS, Graph

DIRECTORY: Final = "vectors.graphs"

_SUFFIX: Final = ".graph"
_DIGEST_BYTES: Final = 32
_faiss: Any = faiss  # its types lack what is used here

_log = logging.getLogger(__name__)

Digests = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A graph read back: FAISS's index without vectors, and the digest of each of its rows."""

    name: str
    index: Any
    rows: Digests


def row_digest(partition: bytes, key: bytes, half: Half) -> bytes:
    """Return the eight bytes that a row is known by."""
    content = (len(partition).to_bytes(4), partition, key, half.tobytes())
    return blake2b(b"".join(content), digest_size=8).digest()


class GraphFiles:
    """The files of one installation. One thread at a time may use it."""

    def __init__(self, data_dir: Path, *, encoder_digest: str, dimensions: int) -> None:
        self._directory = data_dir / DIRECTORY
        self._dimensions = dimensions
        self._made_by = {
            "format": 1,
            "encoder": encoder_digest,
            "dimensions": dimensions,
            "links": LINKS,
        }

    def load(self) -> list[SavedGraph]:
        """Return the usable graphs; remove all other files."""
        saved: list[SavedGraph] = []
        for path in sorted(self._directory.glob("*")):
            try:
                saved.append(self._read(path))
            except (OSError, ValueError, RuntimeError) as error:
                _log.warning("graph %s is not used, and built anew: %s", path.name, error)
                self._remove(path)
        return saved

    def save(self, graph: Graph) -> None:
        """Write a graph as it is; only whoever appends to it may call this."""
        rows = len(graph.places)
        head = json.dumps({**self._made_by, "rows": rows}).encode() + b"\n"
        links = _faiss.serialize_index(graph.index, _faiss.IO_FLAG_SKIP_STORAGE).tobytes()
        parts = (head, _digests(graph, rows), links)
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for part in parts:
            digest.update(part)
        name = graph.name or secrets.token_hex(8)
        aside = self._directory / f"{name}.new"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with open(aside, "wb", opener=_for_the_owner) as file:
                file.writelines((*parts, digest.digest()))
            aside.replace(self._directory / (name + _SUFFIX))
        except OSError as error:
            _log.warning("a graph was not saved, a restart will build it anew: %s", error)
            return
        graph.name, graph.saved = name, rows

    def keep_only(self, graphs: Sequence[Graph]) -> None:
        """Remove the files of all other graphs."""
        kept = {f"{graph.name}{_SUFFIX}" for graph in graphs}
        for path in self._directory.glob("*"):
            if path.name not in kept:
                self._remove(path)

    def _read(self, path: Path) -> SavedGraph:
        content = memoryview(path.read_bytes())
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if path.suffix != _SUFFIX or blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            raise ValueError("it is damaged")
        end = bytes(body[:4096]).index(b"\n") + 1
        head = json.loads(bytes(body[:end]))
        rows = head.pop("rows")
        if head != self._made_by:
            raise ValueError("it was made for other vectors")
        digests = np.frombuffer(body[end : end + 8 * rows], dtype="<u8")
        links = np.frombuffer(body[end + 8 * rows :], dtype=np.uint8)
        index = _faiss.deserialize_index(links, _faiss.IO_FLAG_SKIP_STORAGE)
        if index.ntotal != rows or index.d != self._dimensions:
            raise ValueError("its parts do not fit together")
        return SavedGraph(path.stem, index, digests)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s could not be removed: %s", path, error)


def _digests(graph: Graph, rows: int) -> bytes:
    """Return the digests of the first rows; zero where there is no vector."""
    halves = graph.halves()
    return b"".join(
        bytes(8) if place is None else row_digest(place.partition, place.key, halves[row])
        for row, place in enumerate(graph.places[:rows])
    )


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
