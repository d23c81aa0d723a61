"""An upstream that hangs, at each point of a reply: one word for clients, the host in the log."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from faulty_upstreams import pool
from raw_upstream import EVENTS, JSON, StartRaw, raw_servers

from running_gateway import RunningGateway, StartGateway
from scripted_upstream import chunk

BOUND = 0.2
OK = b"HTTP/1.1 200 OK\r\n"
LONG = b"Content-Length: 9999\r\n\r\n"
WORD, FINISH = chunk(delta={"content": "Hi"}), chunk(finish_reason="stop")
BEFORE_HEAD = {
    "before the head": b"",
    "in the head": OK + JSON,
    "behind an interim head": b"HTTP/1.1 100 Continue\r\n\r\n",
}
PLAIN = {
    **BEFORE_HEAD,
    "before the body": OK + JSON + LONG,
    "in the body": OK + JSON + LONG + b'{"id": "chatcmpl-1", ',
}
STREAMED = {
    "before the first event": OK + EVENTS + LONG,
    "behind a comment": OK + EVENTS + LONG + b": ping\n\n",
    "behind a word": OK + EVENTS + LONG + WORD,
    "in an event": OK + EVENTS + LONG + WORD + WORD[:20],
    "behind the finish reason": OK + EVENTS + LONG + WORD + FINISH,
}


@pytest.fixture
async def raw() -> AsyncIterator[StartRaw]:
    async with raw_servers() as start:
        yield start


async def hanging(start: StartGateway, raw: StartRaw, sent: bytes, form: str) -> RunningGateway:
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await asyncio.Event().wait()

    url = (await raw(says)).url
    if form == "alone":
        return await start(upstream=url, read_timeout=BOUND)
    return await pool(start, {"url": url}, read_timeout=BOUND)


def is_told(caplog: pytest.LogCaptureFixture) -> bool:
    return "sent nothing within read_timeout; does it hang, or need longer?" in caplog.text


@pytest.mark.parametrize("form", ["alone", "pool"])
@pytest.mark.parametrize("sent", PLAIN.values(), ids=PLAIN)
async def test_a_plain_reply_that_stalls_is_a_timeout(
    start_gateway: StartGateway,
    raw: StartRaw,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    form: str,
):
    gateway = await hanging(start_gateway, raw, sent, form)
    reply = await gateway.ask()
    assert (reply.status, reply.json["error"]["code"]) == (504, "upstream-timeout")
    assert "127.0.0.1" not in reply.raw.decode()
    assert is_told(caplog)
    assert "127.0.0.1" in caplog.text


@pytest.mark.parametrize("form", ["alone", "pool"])
@pytest.mark.parametrize("sent", STREAMED.values(), ids=STREAMED)
async def test_a_stream_that_stalls_is_a_timeout(
    start_gateway: StartGateway,
    raw: StartRaw,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    form: str,
):
    gateway = await hanging(start_gateway, raw, sent, form)
    reply = await gateway.ask(stream=True)
    last = reply.raw.rstrip().rpartition(b"data: ")[2]
    error: dict[str, Any] = orjson.loads(last)["error"]
    assert (error["code"], error["message"]) == (
        "upstream-timeout",
        "The upstream did not answer in time.",
    )
    assert is_told(caplog)
    page = (await gateway.get("/metrics")).raw.decode()
    assert 'refrain_upstream_failures_total{reason="upstream-timeout"' in page
    assert 'reason="upstream-broke"' not in page


@pytest.mark.parametrize("form", ["alone", "pool"])
async def test_a_stall_is_counted_as_such_for_each_of_the_settings(
    start_gateway: StartGateway, raw: StartRaw, caplog: pytest.LogCaptureFixture, form: str
):
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAMED["behind a word"])
        await asyncio.Event().wait()

    url = (await raw(says)).url
    one = {"upstream": url} if form == "alone" else {"upstream": (), "upstreams": [{"url": url}]}
    gateway = await start_gateway(between_tokens_timeout=BOUND, **one)
    assert (await gateway.ask(stream=True)).events[-1]["error"]["code"] == "upstream-timeout"
    assert "sent nothing within between_tokens_timeout" in caplog.text


async def test_a_message_that_stalls_is_a_timeout_in_its_own_form(
    start_gateway: StartGateway, raw: StartRaw
):
    gateway = await hanging(start_gateway, raw, STREAMED["behind a word"], "alone")
    body = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    reply = await gateway.post("/v1/messages", body)
    assert reply.raw.rpartition(b"event: error")[2].count(b'"timeout_error"') == 1


@pytest.mark.parametrize("form", ["alone", "pool"])
@pytest.mark.parametrize("sent", PLAIN.values(), ids=PLAIN)
async def test_a_request_that_passes_through_names_the_stall_in_the_log(
    start_gateway: StartGateway,
    raw: StartRaw,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    form: str,
):
    gateway = await hanging(start_gateway, raw, sent, form)
    try:
        reply = await gateway.get("/v1/files")
        assert (reply.status, reply.json["error"]["code"]) == (504, "upstream-timeout")
    except Exception:  # noqa: BLE001 - the connection ends where the body does
        assert sent.startswith(OK + JSON + LONG)
    assert is_told(caplog)
