"""Compressed bodies: inflated in small pieces, and no further than they are read."""

import gzip
import sys
import zlib

import pytest
from inflation import bomb, watch

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DEFLATED = {"Content-Encoding": "deflate"}
LIMIT = 4 * 2**20
PIECE = 2**20


@pytest.fixture
async def bounded(start_gateway: StartGateway) -> RunningGateway:
    """A gateway that takes bodies of 4 MiB."""
    return await start_gateway(max_body_bytes=LIMIT)


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 413), ("/nothing", 404)])
async def test_a_bomb_is_not_inflated_after_the_answer(
    bounded: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str, status: int
):
    inflated = watch(monkeypatch)
    reply = await bounded.post(path, bomb(64 * 2**20), headers=DEFLATED)
    assert reply.status == status
    assert (await bounded.ask()).status == 200
    assert sum(inflated) < 2 * LIMIT
    assert max(inflated, default=0) <= PIECE


async def test_a_large_compressed_body_is_inflated_in_pieces(
    bounded: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    inflated = watch(monkeypatch)
    reply = await bounded.post("/v1/completions", bomb(LIMIT - 1), headers=DEFLATED)
    assert reply.status == 400
    assert sum(inflated) == LIMIT - 1
    assert max(inflated, default=0) <= PIECE


REQUEST = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


def zstd_of(data: bytes, **options: int) -> bytes:
    names = {zstd.CompressionParameter[name]: value for name, value in options.items()}
    return zstd.compress(data, options=names)


def streamed_in_window(log: int) -> bytes:
    """Compress with a window that a decoder has to hold."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: log})
    return packer.compress(REQUEST) + packer.flush()


def streamed(data: bytes) -> bytes:
    """Compress without the size of the content."""
    packer = zstd.ZstdCompressor()
    return packer.compress(data) + packer.flush()


CODED = {
    "zstd": ("zstd", zstd_of(REQUEST)),
    "zstd of unknown size": ("ZSTD", streamed(REQUEST)),
    "zstd with a checksum": ("zstd", zstd_of(REQUEST, checksum_flag=1)),
    "several frames": ("zstd", zstd_of(REQUEST[:9]) + zstd_of(b"") + zstd_of(REQUEST[9:])),
    "a frame to skip": ("zstd", b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd_of(REQUEST)),
    "gzip": ("gzip", gzip.compress(REQUEST)),
    "members": ("x-gzip", gzip.compress(REQUEST[:9]) + gzip.compress(REQUEST[9:])),
    "deflate": ("deflate", zlib.compress(REQUEST)),
    "deflate without zlib's header": ("deflate", zlib.compress(REQUEST)[2:-4]),
    "two codings": ("gzip, zstd", zstd_of(gzip.compress(REQUEST))),
    "identity": ("identity", REQUEST),
}


@pytest.mark.parametrize(("coding", "body"), CODED.values(), ids=CODED.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/elsewhere"])
async def test_every_known_coding_is_read(
    bounded: RunningGateway, upstream: ScriptedUpstream, coding: str, body: bytes, path: str
):
    reply = await bounded.post(path, body, headers={"Content-Encoding": coding})
    assert reply.status in (200, 201)
    if reply.status == 200:
        assert upstream.raw == [REQUEST]
    else:
        assert reply.json["body"] == REQUEST.decode()
    assert "Content-Encoding" not in upstream.requests[0].headers


BROKEN = {
    "no frame": ("zstd", b"no frame of zstd", 400),
    "half a frame": ("zstd", zstd_of(REQUEST)[:-5], 400),
    "a wrong checksum": ("zstd", zstd_of(REQUEST, checksum_flag=1)[:-1] + b"\0", 400),
    "something behind a frame": ("zstd", zstd_of(REQUEST) + b"junk", 400),
    "a window of 32 MiB": ("zstd", streamed_in_window(25), 400),
    "half of gzip": ("gzip", gzip.compress(REQUEST)[:-9], 400),
    "something behind deflate": ("deflate", zlib.compress(REQUEST) + b"junk", 400),
    "many empty members": ("gzip", gzip.compress(b"") * 5_000, 400),
    "an unknown coding within": ("br, zstd", zstd_of(REQUEST), 415),
    "too many codings": ("gzip, gzip, gzip, gzip", REQUEST, 415),
    "a bomb of zstd": ("zstd", zstd_of(b" " * 64 * 2**20), 413),
    "a bomb in a bomb": ("deflate, zstd", zstd_of(bomb(64 * 2**20)), 413),
}


@pytest.mark.parametrize(("coding", "body", "status"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/elsewhere"])
async def test_a_body_that_cannot_be_inflated_is_refused(
    bounded: RunningGateway, coding: str, body: bytes, status: int, path: str
):
    reply = await bounded.post(path, body, headers={"Content-Encoding": coding})
    assert (reply.status, reply.json["error"].keys()) == (
        status,
        {"message", "type", "param", "code"},
    )
    if status == 415:
        assert reply.headers["Accept-Encoding"] == "gzip, deflate, zstd"
    assert (await bounded.ask()).status == 200
