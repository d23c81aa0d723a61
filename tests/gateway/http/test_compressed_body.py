"""Compressed bodies: inflated in small pieces, and no further than they are read."""

import pytest
from inflation import bomb, watch

from running_gateway import RunningGateway, StartGateway

DEFLATED = {"Content-Encoding": "deflate"}
LIMIT = 4 * 2**20
PIECE = 2**19


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
    assert max(inflated) <= PIECE


async def test_a_large_compressed_body_is_inflated_in_pieces(
    bounded: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    inflated = watch(monkeypatch)
    reply = await bounded.post("/v1/completions", bomb(LIMIT - 1), headers=DEFLATED)
    assert reply.status == 400
    assert sum(inflated) == LIMIT - 1
    assert max(inflated) <= PIECE
