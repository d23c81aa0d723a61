"""What is inflated of compressed bodies, piece by piece."""

import zlib

import pytest

import backend.server.codings
import gateway.server.http.codings


def bomb(size: int) -> bytes:
    """Spaces, deflated."""
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(b" " * size), packer.flush()])


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the pieces that are inflated, from now on."""
    sizes: list[int] = []
    for module in (backend.server.codings, gateway.server.http.codings):
        step = module.Inflater.step

        def watched(self, data: bytes, most: int, step=step) -> bytes:
            piece = step(self, data, most)
            sizes.append(len(piece))
            return piece

        monkeypatch.setattr(module.Inflater, "step", watched)
    return sizes
