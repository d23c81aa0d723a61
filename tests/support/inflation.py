"""What aiohttp inflates of compressed bodies, piece by piece."""

import zlib
from typing import Any

import pytest
from aiohttp.compression_utils import ZLibDecompressor


def bomb(size: int) -> bytes:
    """Spaces, deflated."""
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(b" " * size), packer.flush()])


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the pieces that are inflated, from now on."""
    sizes: list[int] = []
    inflate = ZLibDecompressor.decompress_sync

    def watched(self: ZLibDecompressor, *args: Any, **limits: Any) -> bytes:
        piece = inflate(self, *args, **limits)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", watched)
    return sizes
