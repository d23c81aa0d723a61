"""Compressed bodies: inflated in small pieces, and no further than they are read."""

import orjson
import pytest
from inflation import bomb, watch

pytest_plugins = ["running_backend"]

DEFLATED = {"Content-Encoding": "deflate"}
LIMIT = 4 * 2**20
PIECE = 2**20


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 413), ("/v1/nothing", 404)])
async def test_a_bomb_is_not_inflated_after_the_answer(start_server, monkeypatch, path, status):
    inflated = watch(monkeypatch)
    server = await start_server(limits={"max_body_bytes": LIMIT})
    post = server.session.post(server.url + path, data=bomb(64 * 2**20), headers=DEFLATED)
    async with post as reply:
        assert reply.status == status
    assert (await server.chat()).status == 200
    assert sum(inflated) < 2 * LIMIT
    assert max(inflated, default=0) <= PIECE


async def test_a_large_compressed_body_is_inflated_in_pieces(start_server, monkeypatch):
    inflated = watch(monkeypatch)
    server = await start_server(limits={"max_body_bytes": LIMIT})
    post = server.session.post(
        server.url + "/v1/completions", data=bomb(LIMIT - 1), headers=DEFLATED
    )
    async with post as reply:
        assert (reply.status, orjson.loads(await reply.read())["error"]["code"]) == (400, None)
    assert sum(inflated) == LIMIT - 1
    assert max(inflated, default=0) <= PIECE
