"""What is wrong with an upstream: the log says where and what to do, clients are told neither."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from certificates import write_certificate
from ports import closed_port
from raw_upstream import EVENTS, StartRaw, raw_servers, sends, whole

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.upstream.pool.watch.probes import log_upstreams
from gateway.upstream.wire import http_client as instance
from gateway.upstream.wire.failure_log import EVERY_SECONDS, FailureLog
from gateway.upstream.wire.http_client import HttpUpstream
from running_gateway import RunningGateway, StartGateway
from scripted_upstream import ScriptedUpstream, chunk

TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
PAGE = b"<html>Welcome</html>"
HTML = b"Content-Type: text/html; charset=utf-8\r\n"


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


def without_address(reply: Any, *names: str) -> None:
    for name in ("127.0.0.1", "localhost", *names):
        assert name not in reply.raw.decode()


async def test_a_dead_upstream_is_named_in_the_log_alone(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
):
    with closed_port() as port:
        gateway = await start_gateway(upstream=f"http://127.0.0.1:{port}/v1")
        plain = await gateway.ask()
        passed = await gateway.get("/v1/files")
    for reply in (plain, passed):
        assert "X-Refrain-Upstream" not in reply.headers
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream-unreachable")
        assert reply.json["error"]["message"] == "The upstream could not be reached."
        without_address(reply, str(port))
    [line] = [r.getMessage() for r in caplog.records if "nothing listens" in r.getMessage()]
    assert line == (
        f"upstream 127.0.0.1:{port}: nothing listens on 127.0.0.1:{port}; is the server started?"
    )


async def test_a_dead_pool_is_named_in_the_log_alone(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
):
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/v1"
        gateway = await start_gateway(
            upstream=(), upstreams=[{"name": "gpu-1", "url": url, "probe": "off"}]
        )
        for reply in (await gateway.ask(), await gateway.get("/v1/models")):
            assert reply.status == 502
            without_address(reply, str(port), "gpu-1")
    assert "upstream gpu-1: nothing listens on" in caplog.text


async def test_replicas_without_a_name_are_numbered_in_errors(start_gateway: StartGateway):
    with closed_port() as one, closed_port() as two:
        urls = [{"url": f"http://127.0.0.1:{port}/v1", "probe": "off"} for port in (one, two)]
        gateway = await start_gateway(upstream=(), upstreams=urls)
        for reply in (await gateway.ask(), await gateway.get("/v1/files")):
            assert reply.status == 502
            told = reply.headers["X-Refrain-Upstream"]
            assert "127.0.0.1" not in told
            assert {"upstream-1=upstream-unreachable", "upstream-2=upstream-unreachable"} <= set(
                told.removeprefix('tried="').removesuffix('"').split(", ")
            )


async def test_a_fault_of_the_clients_is_no_line_about_the_upstream(
    start_gateway: StartGateway, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    gateway = await start_gateway()
    reply = await gateway.post("/v1/files", b"no gzip", headers={"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_stream_that_breaks_is_named_in_the_log_alone(
    start_gateway: StartGateway, raw: StartRaw, caplog: pytest.LogCaptureFixture
):
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + EVENTS + b"Content-Length: 9999\r\n\r\n"
        writer.write(head + chunk(delta={"content": "Hello"}))
        writer.close()

    upstream = await raw(says)
    gateway = await start_gateway(upstream=upstream.url)
    reply = await gateway.ask(stream=True)
    assert reply.events[-1]["error"]["code"] == "upstream-broke"
    without_address(reply)
    assert f"upstream {upstream.url.split('/')[2]}: " in caplog.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://no-such-host.invalid/v1", "the host name no-such-host.invalid is not known"),
        ("https://{place}/v1", "speaks no TLS that is understood here; is http:// meant?"),
    ],
)
async def test_what_is_wrong_with_an_address(raw: StartRaw, url: str, said: str):
    place = (await raw(sends(whole(b"{}")), at_once=True)).url.split("/")[2]
    assert said in (await fault(url.format(place=place))).detail


async def fault(url: str, **options: Any) -> UpstreamError:
    upstream = HttpUpstream(url, connect_seconds=5, **options)
    await upstream.open()
    try:
        with pytest.raises(UpstreamError) as raised:
            async with upstream.request("GET", "/v1/models", (), None):
                pass
    finally:
        await upstream.close()
    return raised.value


async def test_a_tls_server_that_is_asked_in_plain_text(raw: StartRaw):
    upstream = await raw(sends(TLS_ALERT))
    told = await fault(upstream.url)
    assert told.detail.endswith("speaks TLS; is https:// meant?")
    assert told.reason is Reason.UPSTREAM_BROKE


@pytest.mark.parametrize(
    ("days", "trusted", "said"),
    [
        (1, False, "is not trusted; is its authority installed?"),
        (-1, True, "has expired; it has to be renewed there"),
    ],
)
async def test_a_certificate_that_is_no_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, trusted: bool, said: str
):
    file = write_certificate(tmp_path / "both.pem", "localhost", days=days)
    if trusted:
        context = ssl.create_default_context(cafile=file)
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    async with server:
        told = await fault(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1")
    assert told.detail.endswith(said)


def test_lines_are_bounded_in_number_and_none_is_forgotten(caplog: pytest.LogCaptureFixture):
    now = [0.0]
    failures = FailureLog("gpu-1", lambda: now[0])
    gone = UpstreamError(502, "gone", Reason.UPSTREAM_BROKE, detail="it left")
    slow = UpstreamError(504, "slow", Reason.UPSTREAM_TIMEOUT)
    for _ in range(5):
        failures.note(gone)
    failures.note(slow)
    now[0] = EVERY_SECONDS
    failures.note(gone)
    failures.note(gone)
    assert [record.getMessage() for record in caplog.records] == [
        "upstream gpu-1: it left",
        "upstream gpu-1: slow",
        "upstream gpu-1: it left (4 more since the last line)",
    ]


async def test_an_upstream_that_answers_with_a_page_leaves_a_line(
    start_gateway: StartGateway, raw: StartRaw, caplog: pytest.LogCaptureFixture
):
    gateway = await start_gateway(upstream=(await raw(sends(whole(PAGE, kind=HTML)))).url)
    assert (await gateway.ask()).status == 502
    assert "it answered with a web page (status 200); does its URL lead to an API?" in caplog.text


MODELS = b'{"object": "list", "data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}'
GREETINGS = {
    "three models": (whole(MODELS), "INFO", "answers, 3 models"),
    "one": (whole(b'{"data": [{"id": "a"}]}'), "INFO", "answers, 1 model"),
    "wants a key": (
        whole(b"{}", status=b"401 Unauthorized"),
        "INFO",
        "answers, and wants a key, which clients must send",
    ),
    "a page": (
        whole(PAGE, kind=HTML),
        "WARNING",
        "answers with text/html, which is no list of models; is its path right?",
    ),
    "not found": (
        whole(b"{}", status=b"404 Not Found"),
        "WARNING",
        "answers its list of models with status 404; is its path right?",
    ),
    "loading": (
        whole(b"{}", status=b"503 Service Unavailable"),
        "WARNING",
        "answers its list of models with status 503",
    ),
    "TLS": (TLS_ALERT, "WARNING", "does not answer: {place} speaks TLS; is https:// meant?"),
}


@pytest.mark.parametrize(("reply", "level", "said"), GREETINGS.values(), ids=GREETINGS.keys())
async def test_what_is_said_of_an_upstream_at_start(
    raw: StartRaw, caplog: pytest.LogCaptureFixture, reply: bytes, level: str, said: str
):
    server = await raw(sends(reply))
    await greeted(caplog, HttpUpstream(server.url))
    [record] = caplog.records
    said = said.format(place=server.url.split("/")[2])
    assert (record.levelname, record.getMessage()) == (level, f"upstream {server.url} {said}")


async def test_a_key_that_is_refused_at_start(raw: StartRaw, caplog: pytest.LogCaptureFixture):
    server = await raw(sends(whole(b"{}", status=b"401 Unauthorized")))
    await greeted(caplog, HttpUpstream(server.url, own_credential=True, api_key="sk-secret"))
    assert "refuses the key that the gateway has for it (status 401)" in caplog.text
    assert "sk-secret" not in caplog.text


async def greeted(caplog: pytest.LogCaptureFixture, upstream: HttpUpstream) -> None:
    caplog.set_level(logging.INFO)
    await upstream.open()
    await log_upstreams([upstream])
    await upstream.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/readyz"])
async def test_a_gateway_that_is_its_own_upstream_is_508(start_gateway: StartGateway, path: str):
    holder = web.Application()
    gateway: list[RunningGateway] = []

    async def back(request: web.Request) -> web.Response:
        told = await gateway[0].session.post(
            gateway[0].url + request.path, data=await request.read(), headers=request.headers
        )
        return web.Response(status=told.status, body=await told.read(), headers=told.headers)

    holder.router.add_post("/{tail:.*}", back)
    runner = web.AppRunner(holder)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    gateway.append(await start_gateway(upstream=url))
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    if path == "/readyz":
        via = {"Via": f"1.1 elsewhere, {instance.via()}"}
        reply = await gateway[0].get(path, headers=via)
    else:
        reply = await asyncio.wait_for(gateway[0].post(path, body), 30)
    assert (reply.status, reply.json["error"]["code"]) == (508, "loop_detected")
    await runner.cleanup()


async def test_the_via_of_others_stays(gateway: RunningGateway, upstream: ScriptedUpstream):
    reply = await gateway.ask(headers={"Via": "1.1 elsewhere"})
    assert reply.status == 200
    told = upstream.requests[-1].headers.getall("Via")
    assert told[0] == "1.1 elsewhere"
    assert told[1].startswith("1.1 refrain-")
