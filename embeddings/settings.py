"""What the environment tells the embeddings service of Qdrant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FAISS: Final = "faiss"
DEFAULT_SECONDS: Final = 0.05

_KEY: Final = "REFRAIN_QDRANT_API_KEY"


@dataclass(frozen=True, slots=True)
class QdrantSettings:
    """Where Qdrant is. `seconds` is how long a caller may wait for it."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    seconds: float = DEFAULT_SECONDS


def qdrant_settings(environment: Mapping[str, str]) -> QdrantSettings | None:
    """Return where Qdrant is, None where the vectors are not to be there.

    Raises ValueError for what cannot be meant, and OSError when the key's file cannot be read.
    """
    url = environment.get("REFRAIN_VECTORS") or FAISS
    if url == FAISS:
        return None
    try:
        seconds = float(environment.get("REFRAIN_VECTORS_TIMEOUT") or DEFAULT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("REFRAIN_VECTORS_TIMEOUT: expected seconds above 0")
    return QdrantSettings(url, _api_key(environment), seconds)


def _api_key(environment: Mapping[str, str]) -> str | None:
    key, file = environment.get(_KEY, "").strip(), environment.get(f"{_KEY}_FILE")
    if key and file:
        raise ValueError(f"{_KEY} and {_KEY}_FILE are both given: give one")
    if file:
        key = Path(file).read_text(encoding="utf-8").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"{_KEY}: expected a key: one word of ASCII")
    return key
