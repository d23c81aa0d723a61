"""The way to an upstream through an HTTP proxy, and an authority of one's own."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from certificates import write_certificate

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.server.open.secrets import log_proxies, outbound_proxy, secret_faults
from gateway.settings import Settings
from gateway.upstream.request import Outgoing
from gateway.upstream.wire.http_client import HttpUpstream
from scripted_upstream import ScriptedUpstream

OUTGOING = Outgoing("/v1/chat/completions", (), b'{"model":"m","messages":[{"content":"Hi"}]}', "m")
HOST = "upstream.test"


@dataclass
class Proxy:
    """A proxy that connects everything to one port, or answers as it is told."""

    to_port: int = 0
    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    heads: list[bytes] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if head.startswith(b"CONNECT") and b" 200 " not in self.answer:
            writer.write(self.answer)
            writer.close()
            return
        there, onward = await asyncio.open_connection("127.0.0.1", self.to_port)
        if head.startswith(b"CONNECT"):
            writer.write(self.answer)
        else:
            method, target, rest = head.split(b" ", 2)
            path = b"/" + target.split(b"/", 3)[3]
            onward.write(b" ".join((method, path, rest)))
        await asyncio.gather(_copy(reader, onward), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


@asynccontextmanager
async def opened(upstream: HttpUpstream) -> AsyncIterator[HttpUpstream]:
    await upstream.open()
    try:
        yield upstream
    finally:
        await upstream.close()


async def answer_of(upstream: HttpUpstream) -> bytes:
    async with upstream.send(OUTGOING) as reply:
        assert reply.status == 200
        return await reply.read()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, which is its only certificate too, and its key in one file."""
    return write_certificate(tmp_path_factory.mktemp("authority") / "ca.pem", HOST, "localhost")


@pytest.fixture
async def tls_port(authority: Path) -> AsyncIterator[int]:
    """An upstream that speaks TLS with the authority's certificate."""
    scripted = ScriptedUpstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture
def trusting(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the authority in this process, which has read the variable already."""
    context = ssl.create_default_context(cafile=authority)
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)


async def test_tls_goes_through_a_tunnel(proxy: Proxy, tls_port: int, trusting: None):
    proxy.to_port = tls_port
    url = proxy.url.replace("//", "//me:pass%20word@")
    async with opened(HttpUpstream(f"https://{HOST}/v1", proxy=url)) as upstream:
        for _ in range(2):
            assert b"You asked: Hi" in await answer_of(upstream)
    [head] = proxy.heads  # the second request takes the same connection
    assert (
        head
        == (
            f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n"
            "Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk\r\n\r\n"
        ).encode()
    )


async def test_an_old_proxy_may_answer_in_http_1_0(proxy: Proxy, tls_port: int, trusting: None):
    proxy.to_port, proxy.answer = tls_port, b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n"
    async with opened(HttpUpstream(f"https://{HOST}/v1", proxy=proxy.url)) as upstream:
        assert b"You asked: Hi" in await answer_of(upstream)


async def test_plain_http_is_sent_to_the_proxy_with_its_whole_url(
    proxy: Proxy, upstream: ScriptedUpstream
):
    proxy.to_port = int(upstream.url.rpartition(":")[2])
    url = proxy.url.replace("//", "//me:word@")
    through = HttpUpstream(f"http://{HOST}:8000/api/v1", proxy=url)
    async with opened(through), through.send(OUTGOING) as reply:
        assert reply.status == 201
    assert upstream.requests[-1].path == "/api/v1/chat/completions"
    [head] = proxy.heads
    assert head.startswith(f"POST http://{HOST}:8000/api/v1/chat/completions HTTP/1.1".encode())
    assert b"Proxy-Authorization: Basic bWU6d29yZA==\r\n" in head


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answered with status 407"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", "it answered with status 503"),
        (b"", "it broke the connection off"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "it broke the connection off"),
    ],
)
async def test_a_proxy_that_refuses_is_an_upstream_that_cannot_be_reached(
    proxy: Proxy, answer: bytes, told: str
):
    proxy.answer = answer
    url = proxy.url.replace("//", "//me:secret@")
    async with opened(HttpUpstream(f"https://{HOST}/v1", proxy=url)) as upstream:
        with pytest.raises(UpstreamError) as error:
            await answer_of(upstream)
    assert (error.value.reason, error.value.sent) == (Reason.UPSTREAM_UNREACHABLE, False)
    assert error.value.detail == f"no connection to the proxy {proxy.url[7:]}: {told}"
    assert "proxy" not in error.value.message


async def test_a_proxy_that_is_not_there_is_named_in_the_log():
    upstream = HttpUpstream(f"https://{HOST}/v1", proxy="http://me:secret@127.0.0.1:9")
    async with opened(upstream):
        with pytest.raises(UpstreamError) as error:
            await answer_of(upstream)
    told = "nothing listens on the proxy 127.0.0.1:9; is the server started?"
    assert (error.value.reason, error.value.detail) == (Reason.UPSTREAM_UNREACHABLE, told)


async def test_a_certificate_behind_a_proxy_is_checked(proxy: Proxy, tls_port: int):
    proxy.to_port = tls_port
    async with opened(HttpUpstream(f"https://{HOST}/v1", proxy=proxy.url)) as upstream:
        with pytest.raises(UpstreamError) as error:
            await answer_of(upstream)
    assert error.value.detail.startswith(f"the certificate of {HOST}:443 is not trusted")


PROXY = "http://p:3128"


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("https://a.example/v1", {}, None),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://q"}, PROXY),
        ("https://a.example/v1", {"HTTPS_PROXY": "p:3128"}, PROXY),
        ("https://a.example/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://a.example/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://a.example/v1", {"ALL_PROXY": PROXY}, PROXY),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "b.example,.example"}, None),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY, "no_proxy": "a.example"}, None),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "b.example"}, PROXY),
        ("http://127.0.0.1:8000/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://localhost:8000/v1", {"ALL_PROXY": PROXY}, None),
        ("http://[::1]:8000/v1", {"HTTP_PROXY": PROXY}, None),
    ],
)
def test_the_usual_variables_name_the_proxy(url, environment, expected):
    [one] = Settings(upstreams=({"url": url},)).all_upstreams
    assert outbound_proxy(one, environment) == expected


@pytest.mark.parametrize(
    "value",
    ["socks5://me:secret@p", "https://p:1", "http://me:secret@p:0", "http://p:x", "http://"],
)
def test_a_proxy_that_cannot_be_used_is_told_without_its_password(value: str):
    upstreams = Settings(upstreams=({"url": "https://a.example/v1"},)).all_upstreams
    [fault] = secret_faults(upstreams, {"HTTPS_PROXY": value}, own_keys=False)
    assert fault.text.startswith("HTTPS_PROXY: expected a proxy such as")
    assert "secret" not in fault.text
    environment = {"HTTPS_PROXY": value, "NO_PROXY": "a.example"}
    assert secret_faults(upstreams, environment, own_keys=False) == []


def test_one_line_says_which_upstreams_are_reached_through_which_proxy(
    caplog: pytest.LogCaptureFixture,
):
    urls = {"far": "https://a.example/v1", "near": "http://10.0.0.1:8000/v1"}
    urls |= {"also": "https://b.example/v1", "own": "http://127.0.0.1:8000/v1"}
    given = tuple({"url": url, "name": name} for name, url in urls.items())
    secret = "http://me:secret@proxy.example:3128"
    environment = {"HTTPS_PROXY": secret, "HTTP_PROXY": "http://other:80"}
    caplog.set_level("INFO")
    log_proxies(Settings(upstreams=given).all_upstreams, environment)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "reached through the proxy proxy.example:3128 of the environment: far, also",
        "reached through the proxy other:80 of the environment: near",
    ]
    assert "me:secret" not in caplog.text
    caplog.clear()
    log_proxies(Settings(upstreams=given).all_upstreams, {})
    assert not caplog.records


async def test_an_address_in_place_of_the_hosts_keeps_its_name_for_tls_and_host(
    tls_port: int, trusting: None
):
    at = HttpUpstream(f"https://{HOST}:{tls_port}/v1", connect_to="127.0.0.1")
    async with opened(at) as upstream:
        assert b"Hi" in await answer_of(upstream)
        assert (upstream.url.host, upstream.in_use) == ("127.0.0.1", 0)
    other = HttpUpstream(f"https://other.test:{tls_port}/v1", connect_to="127.0.0.1")
    async with opened(other) as upstream:
        with pytest.raises(UpstreamError) as error:
            await answer_of(upstream)
    assert "certificate" in (error.value.detail or "")


ASK = """
import asyncio, sys
from gateway.upstream.wire.http_client import HttpUpstream
from gateway.upstream.request import Outgoing

async def main():
    upstream = HttpUpstream(sys.argv[1])
    await upstream.open()
    body = b'{"messages":[{"content":"Hi"}]}'
    async with upstream.send(Outgoing("/v1/chat/completions", (), body)) as reply:
        print(reply.status)
    await upstream.close()

asyncio.run(main())
"""


async def test_an_authority_of_ones_own_is_named_by_the_usual_variable(
    tls_port: int, authority: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ASK,
        f"https://localhost:{tls_port}/v1",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out == b"200\n"
