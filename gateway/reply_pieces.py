"""The pieces of an upstream's reply: read up to a bound, passed on, joined in both their forms."""

from collections.abc import AsyncIterator

from gateway.live_answer import Head, LiveAnswer


async def pass_on(
    head: Head, first: bytes, chunks: AsyncIterator[bytes], answer: LiveAnswer
) -> None:
    """Pass a plain answer on that is too large to be held."""
    answer.open(head)
    await answer.add(first, first)
    async for chunk in chunks:
        await answer.add(chunk, chunk)


async def read(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    """Read to the end, or until more than ``limit`` bytes have come."""
    parts = []
    size = 0
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(parts)


def joined(pieces: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Join pieces in both their forms; one object where the forms are the same."""
    full = b"".join([full for full, _ in pieces])
    if all(bare is full for full, bare in pieces):
        return full, full
    return full, b"".join([bare for _, bare in pieces])
