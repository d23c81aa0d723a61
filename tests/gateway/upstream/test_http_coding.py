"""Compressed replies are inflated to their very end, a little at a time."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.protocol.errors import UpstreamError
from gateway.upstream.wire.coding import PIECE, inflate, is_coded

TEXT = b"".join(b"event %d\n" % number for number in range(60))


async def cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(data: bytes, size: int) -> bytes:
    return b"".join([piece async for piece in inflate(cut(data, size))])


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(TEXT),
        gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
        zlib.compress(TEXT),
    ],
    ids=["gzip", "two members", "zlib"],
)
async def test_however_it_is_cut_it_is_the_same(packed: bytes, size: int):
    assert await read(packed, size) == TEXT


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_a_body_of_whole_pieces_ends_with_the_last(pack: Callable[[bytes], bytes]):
    for size in (PIECE, 2 * PIECE):
        assert await read(pack(bytes(size)), 2**20) == bytes(size)


async def test_wherever_it_ends_too_early_that_is_found():
    packed = gzip.compress(TEXT)
    for end in range(1, len(packed)):
        with pytest.raises(UpstreamError):
            await read(packed[:end], 50)
    assert await read(b"", 50) == b""


async def test_a_bomb_is_inflated_no_further_than_it_is_read_and_others_come_between():
    packed = gzip.compress(bytes(2**22))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    body = inflate(cut(packed, 2**20))
    pieces = [await anext(body) for _ in range(10)]
    counting.cancel()
    assert {len(piece) for piece in pieces} == {PIECE}
    assert turns >= 9


@pytest.mark.parametrize(
    ("written", "coded"),
    [("", False), ("identity", False), ("GZip", True), (" x-gzip ", True), (",deflate", True)],
)
def test_a_coding_by_its_name(written: str, coded: bool):
    assert is_coded(written) is coded


@pytest.mark.parametrize("written", ["br", "zstd", "gzip, gzip", "gzip, br", "nonsense"])
def test_a_coding_that_was_not_asked_for_and_is_not_known(written: str):
    with pytest.raises(UpstreamError, match=written.partition(",")[0]):
        is_coded(written)
