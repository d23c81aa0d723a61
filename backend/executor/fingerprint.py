"""What tells one model's KV from another's.

KV depends on every weight, but reading all of them again only to hash them would double the time
that a start takes. Configuration, tokenizer, the table of tensors and a sample of each shard tell
two models apart unless somebody means them to be confused, who could send false digests anyway.
"""

import hashlib
import os
from pathlib import Path

_NAMES = ("config.json", "tokenizer.json")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 8


def model_fingerprint(directory: Path, dtype: str) -> bytes:
    """Return 32 bytes for a model directory, computed with in ``dtype``. Raises OSError."""
    digest = hashlib.sha256(dtype.encode())
    for name in _NAMES:
        path = directory / name
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\0" + _sampled(path))
    return digest.digest()


def _sampled(path: Path) -> bytes:
    """Hash a file's size, its head with the table of tensors, and samples up to its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        last = max(size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
