"""Ready means that what the policy in force needs is there."""

import asyncio

import pytest

from embeddings.messages import AskStatus, Cancel, Done, IndexStatus
from embeddings.wire import FrameReader, decode, encode

POLICY = """
version: 1
generation: {}
default: {{exact: on, semantic: {}, compress: {}, freshness: 1h, scope: tenant, pii: bypass}}
"""


@pytest.mark.parametrize("need", [("on", "off"), ("off", "on")])
async def test_an_encoder_that_no_rule_needs_is_not_waited_for(start_gateway, tmp_path, need):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(0, "off", "off"))
    gateway = await start_gateway(policy=policy, semantic_socket=tmp_path / "nobody.sock")
    assert (await gateway.get("/readyz")).status == 200

    policy.write_text(POLICY.format(1, *need))
    while (reply := await gateway.get("/readyz")).json["policy"]["generation"] == 0:
        pass
    assert reply.status == 503
    assert reply.json["reasons"] == ["encoder: unavailable"]


class Encoder:
    """The fake at the encoder's socket: ready, silent, or gone."""

    def __init__(self, socket):
        self.socket = socket
        self.is_silent = False
        self._server = None
        self._writers = []

    async def start(self):
        self._server = await asyncio.start_unix_server(self._serve, self.socket)

    async def stop(self):
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        frames = FrameReader()
        while data := await reader.read(65536):
            for envelope in map(decode, frames.feed(data)):
                if not self.is_silent and not isinstance(envelope.message, Cancel):
                    is_look = isinstance(envelope.message, AskStatus)
                    reply = IndexStatus(ready=True) if is_look else Done()
                    writer.write(encode(envelope.request_id, reply))
        writer.close()


@pytest.mark.parametrize("way", ["stopped", "killed"])
async def test_an_encoder_that_was_ready_and_is_lost_is_a_detail(
    start_gateway, tmp_path, monkeypatch, caplog, way
):
    monkeypatch.setattr("gateway.server.open.semantic.ENCODER_WATCH_SECONDS", 0.01)
    monkeypatch.setattr("gateway.server.open.semantic.ENCODER_POLL_SECONDS", 0.01)
    caplog.set_level("INFO", "gateway")
    encoder = Encoder(tmp_path / "e.sock")
    gateway = await start_gateway(semantic_socket=encoder.socket, semantic_timeout=0.05)
    assert (await gateway.get("/readyz")).json["reasons"] == ["encoder: unavailable"]
    await encoder.start()
    await ready_with(gateway, lambda vectors: "fault" not in vectors)
    if way == "stopped":
        encoder.is_silent = True
    else:
        await encoder.stop()
    await ready_with(gateway, lambda vectors: vectors.get("fault", "").startswith("encoder: "))
    assert "fwd=miss" in (await gateway.ask()).cache
    assert "; hit" in (await gateway.ask()).cache
    encoder.is_silent = False
    if way == "killed":
        await encoder.start()
    await ready_with(gateway, lambda vectors: "fault" not in vectors)
    told = [line for line in caplog.messages if "encoder" in line and "answer" in line]
    assert len(told) == 2
    await gateway.stop()
    await encoder.stop()


async def ready_with(gateway, wanted):
    """Wait until the gateway is ready and says so of its vectors; it never loses its readiness."""
    was_ready = False
    async with asyncio.timeout(60):
        while True:
            ready = await gateway.get("/readyz")
            assert ready.status == 200 or not was_ready
            was_ready = ready.status == 200
            if was_ready and wanted(ready.json["vectors"]):
                return
