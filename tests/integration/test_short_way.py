"""The way of a request stays short: how many functions and files of ours it goes through."""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from aiohttp import web
from hops import traced_way

from scripted_upstream import ScriptedUpstream

QUESTION = "How do I reset my password?"
OTHER = "Where can I download my latest invoice?"

MOST = {"repeated hit": (8, 8), "exact hit": (33, 25), "streamed miss": (149, 68)}
"""Functions and files, at most. A lower number may replace one of these, a higher one has a reason.

A miss had 116 and 55 while a lone upstream had no health, no limits and no table of tries. It had
127 and 59 while the entry was written after the reply, and what requests share stood in two files.
A hit had one less while a single worker did not look for the changes of others.
A miss had one function and one file less while two files listed the headers that change on the way,
and two and one while searches had no limit.
"""


@pytest.fixture(scope="module")
def embeddings_socket():
    """The socket of a real embeddings service with the bundled encoder."""
    with tempfile.TemporaryDirectory(prefix="refrain-") as folder:
        socket = Path(folder) / "e.sock"
        argv = ["-m", "embeddings", "--socket", socket, "--data-dir", folder]
        process = subprocess.Popen([sys.executable, *argv])
        while not socket.exists():
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield socket
        process.kill()
        process.wait()


@pytest.fixture
async def upstream():
    """A scripted upstream behind a server that is not ours, so that none of it is counted."""
    scripted = ScriptedUpstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    app.router.add_route("*", "/{tail:.*}", scripted.other)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()


@pytest.fixture(autouse=True)
def nothing_beside_the_request(caplog, patient, monkeypatch):
    """Log as by default, and let no watcher of a file run while a request is traced."""
    caplog.set_level(logging.INFO)
    for watcher in (
        "gateway.app.POLICY_POLL_SECONDS",
        "gateway.server.keys.auth.POLL_SECONDS",
        "gateway.server.open.semantic.ENCODER_WATCH_SECONDS",
    ):
        monkeypatch.setattr(watcher, 3600.0)


async def way_of(start_gateway, socket, kind):
    """Return the functions that each of five requests of a kind enters in a warm gateway."""
    with traced_way() as way:
        gateway = await start_gateway(semantic_socket=socket)
        while (await gateway.get("/readyz")).status != 200:
            pass
        await gateway.ask(QUESTION)
        assert "; hit" in (await gateway.ask(QUESTION)).cache
        ways = []
        for number in range(5):
            other = f"{OTHER} It is number {number}."
            way.restart()
            if kind == "repeated hit":
                assert "; hit" in (await gateway.ask(QUESTION)).cache
            elif kind == "exact hit":
                headers = {"User-Agent": f"another client {number}"}  # other bytes, the same key
                assert "; hit" in (await gateway.ask(QUESTION, headers=headers)).cache
            else:
                reply = await gateway.ask(other, stream=True)
                assert "fwd=miss" in reply.cache
                assert reply.text
            way.open = False
            ways.append(way.hops)
            if kind == "streamed miss":
                assert "; hit" in (await gateway.ask(other)).cache
    # What runs in the background meanwhile is not in all of them.
    return [hop for hop in ways[0] if all(hop in way for way in ways)]


@pytest.mark.parametrize("kind", MOST)
async def test_the_way_is_short(kind, start_gateway, embeddings_socket, upstream):
    hops = await way_of(start_gateway, embeddings_socket, kind)
    files = {hop.partition(":")[0] for hop in hops}
    most_hops, most_files = MOST[kind]
    told = "\n".join(hops)
    assert len(hops) <= most_hops, f"{len(hops)} functions:\n{told}"
    assert len(files) <= most_files, f"{len(files)} files"
