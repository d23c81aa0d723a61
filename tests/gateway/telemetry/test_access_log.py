"""The access log: one line for each request, without prompt, key or query."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from observations import observation_of

from gateway.cli.process.log_lines import JsonFormatter
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, Reason
from gateway.server.open.telemetry import AccessLog
from gateway.telemetry import request_id
from gateway.telemetry.observation import CallShare, Lookup
from running_gateway import StartGateway
from scripted_upstream import ScriptedUpstream, completion

SECRETS = ("canary prompt", "canary-key", "canary-query", "canary-path")
CHAT = "/v1/chat/completions"


class Lines(logging.Handler):
    """Lines of the access log as programs read them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(request_id.CURRENT.get))
        self.lines: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))
        self._more.set()

    async def read(self, number: int) -> list[dict[str, Any]]:
        """Return the lines once there are so many: a client may have its reply before."""
        async with asyncio.timeout(60):
            while len(self.lines) < number:
                self._more.clear()
                await self._more.wait()
        assert len(self.lines) == number
        return self.lines


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("gateway.access")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_miss_stream_hits_and_bypass_have_a_line_each(
    start_gateway: StartGateway, lines: Lines
):
    gateway = await start_gateway(access_log=True)
    told = [
        await gateway.ask(stream=True),
        await gateway.ask(stream=True),
        await gateway.ask(),
        await gateway.ask(),
        await gateway.ask(store=True),
    ]
    read = await lines.read(5)
    assert [line["request_id"] for line in read] == [
        reply.headers["x-request-id"] for reply in told
    ]
    assert [(line["outcome"], line.get("reason")) for line in read] == [
        ("miss", None),
        *[("hit", "exact")] * 3,
        ("bypass", "store-true"),
    ]
    for line in read:
        assert (line["level"], line["logger"], line["message"]) == (
            "info",
            "gateway.access",
            "request",
        )
        assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
        assert line["ms"] >= 0
    assert ["upstream" in line for line in read] == [True, False, False, False, True]
    assert read[0]["upstream"].startswith("127.0.0.1:")


async def test_errors_and_passed_paths_have_a_line_without_query(
    start_gateway: StartGateway, upstream: ScriptedUpstream, lines: Lines
):
    async def fail(_: web.Request, body: Any) -> web.Response:
        return web.json_response({"error": {"message": SECRETS[0]}}, status=503)

    gateway = await start_gateway(access_log=True)
    headers = {"Authorization": f"Bearer {SECRETS[1]}"}
    await gateway.post(CHAT, b"{", headers=headers)
    upstream.answer = fail
    await gateway.ask(SECRETS[0], headers=headers)
    await gateway.get(f"/v1/files/{SECRETS[3]}?key={SECRETS[2]}", headers=headers)
    invalid, failed, passed = await lines.read(3)
    assert (invalid["status"], invalid["outcome"]) == (400, "invalid")
    assert "upstream" not in invalid
    assert (failed["status"], failed["upstream"]) == (503, passed["upstream"])
    assert (passed["method"], passed["path"]) == ("GET", "/v1/*")
    assert (passed["status"], passed["outcome"]) == (201, "pass")
    assert [secret for secret in SECRETS if secret in json.dumps(lines.lines)] == []


@pytest.mark.parametrize("odd", [{}, {"Expect": "100-continue"}])
async def test_the_line_has_the_id_of_the_reply(
    start_gateway: StartGateway, upstream: ScriptedUpstream, lines: Lines, odd: dict[str, str]
):
    """With Expect a request goes through the server's own parser."""

    async def answer(_: web.Request, body: Any) -> web.Response:
        return web.json_response(completion("Hello."), headers={"x-request-id": "theirs-1"})

    upstream.answer = answer
    gateway = await start_gateway(access_log=True)
    reply = await gateway.ask(headers=odd)
    [line] = await lines.read(1)
    assert line["request_id"] == reply.headers["x-request-id"] == "theirs-1"


def test_a_call_of_ours_has_no_method(lines: Lines):
    log = AccessLog(logging.WARNING, "")
    model = "m\n" + "x" * 300
    client = observation_of(log.observe, clock=lambda: 0.0125, model=model)
    refresh = client.of_background("refresh")
    refresh.note_call(CallShare(0.0, upstream="gpu-1"))
    refresh.finish()
    client.lookup = Lookup(forward=ForwardStatus(Forwarded.MISS))
    tried = (("gpu-1", Reason.UPSTREAM_STATUS), ("gpu-2", Reason.UPSTREAM_STATUS))
    client.note_call(CallShare(tried=tried))
    client.end("error", Reason.CLIENT_GONE)
    client.finish()
    first, second = lines.lines
    assert "method" not in first
    assert (first["outcome"], first["upstream"]) == ("refresh", "gpu-1")
    assert (second["method"], second["ms"], second["reason"]) == ("POST", 12.5, "client-gone")
    assert "status" not in second
    assert second["upstream"] == "gpu-2"
    assert second["model"] == model[:128]


async def test_without_the_setting_there_is_no_line(start_gateway: StartGateway, lines: Lines):
    gateway = await start_gateway()
    await gateway.ask()
    await gateway.stop()
    assert lines.lines == []
