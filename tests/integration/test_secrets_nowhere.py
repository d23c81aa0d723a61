"""Keys, prompts and answers are in no log line, metric, span, or file but the entries' own.

Every way a request can go is gone, with words that occur nowhere else; then all that an operator
may see is searched for them.
"""

import asyncio
import gzip
import io
import logging
import re
import signal
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from aiohttp import ClientSession, ClientTimeout, web
from processes import Process

from gateway.cli.process.log_lines import JsonFormatter, TextFormatter
from gateway.cli.terminal import log_stray
from gateway.server.pipeline import Pipeline
from policies.pii.scan import PiiScanner
from running_gateway import RunningGateway, start_app
from scripted_upstream import answer_by_default, chunk, completion

PROMPT = "canary-prompt"
ANSWER = "canary-answer"
KEYS = {
    "gateway": "canary-gateway-key",
    "unknown": "canary-unknown-key",
    "denied": "canary-denied-key",
    "upstream": "canary-upstream-key",
}
MASTER = "2026a:Y2FuYXJ5LW1hc3Rlci1rZXktb2YtMzItYnl0ZXMhISE="
CANARIES = [word.encode() for word in (PROMPT, ANSWER, *KEYS.values(), MASTER[6:20])]


def found_in(text):
    """Return the canaries in what an operator may see, in whatever case."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return [word for word in CANARIES if word.lower() in data.lower()]


async def answer(request, body):
    """Answer with the canary, or fail in the way that the prompt names, quoting it."""
    asked = str(body.get("messages", body.get("prompt")))
    if "fail-500" in asked:
        return web.json_response({"error": {"message": f"no: {asked}"}}, status=500)
    if "fail-garbage" in asked:
        return web.Response(body=asked.encode(), content_type="application/json")
    if "fail-close" in asked:
        request.transport.abort()
        return web.Response()
    if "fail-stream" in asked:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"content": ANSWER}) + b"data: {" + asked.encode())
        request.transport.abort()
        return response
    if body.get("stream"):
        return await answer_by_default(request, body)
    return web.json_response(completion(f"{ANSWER}: {asked}"))


@pytest.fixture
async def collector(monkeypatch):
    bodies = []

    async def receive(request):
        raw = await request.read()
        bodies.append(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", receive)
    runner, url = await start_app(app)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    yield bodies
    await runner.cleanup()


def bearing(kind):
    return {"Authorization": f"Bearer {KEYS[kind]}"}


async def go_every_way(gateway, kind):
    """Send what hits, misses, fails and is refused; return the reasons that were told."""
    own = bearing(kind)

    def ask(prompt, **more):
        return gateway.ask(f"{PROMPT} {prompt}", headers=own | more.pop("headers", {}), **more)

    told = [
        *[await gateway.ask(f"How do I reset my {PROMPT}?", headers=own) for _ in range(2)],
        await gateway.ask(f"How do I reset my {PROMPT}?", headers=own, stream=True),
        await gateway.ask(f"How can I reset my {PROMPT}?", headers=own),
        await ask("streamed", stream=True, max_tokens=9),
        await ask("not stored", headers={"Cache-Control": "no-store"}),
        await ask("refused", headers={"Cache-Control": "only-if-cached"}),
        await ask("store", store=True),
        await ask("tools", tools=[{"type": "web_search"}]),
        await ask("mail to canary-prompt@example.com, card 4111 1111 1111 1111"),
        *[await ask(fault) for fault in ("fail-500", "fail-garbage", "fail-close")],
        await ask("fail-stream", stream=True),
        await ask("wrong", temperature=PROMPT),
        await ask("wrong", messages=[{"role": PROMPT, "content": PROMPT}]),
        await gateway.post(
            "/v1/completions", f'{{"model":"m","prompt":"{PROMPT} \\ud800"}}'.encode(), headers=own
        ),
        await ask({"type": PROMPT}),
        await gateway.post("/v1/chat/completions", f'{{"{PROMPT}": '.encode(), headers=own),
        await gateway.post(
            "/v1/chat/completions", f'{{"{PROMPT}":1,"{PROMPT}":2}}'.encode(), headers=own
        ),
        await gateway.post("/v1/chat/completions", PROMPT.encode() + b"\xff", headers=own),
        await gateway.post(
            "/v1/completions", orjson.dumps({"model": "m", "prompt": PROMPT}), headers=own
        ),
        await gateway.post(
            "/v1/embeddings", orjson.dumps({"model": "m", "input": PROMPT}), headers=own
        ),
        await gateway.post("/v1/other", PROMPT.encode(), headers=own),
        await gateway.get(f"/v1/files/{PROMPT}?key={KEYS[kind]}", headers=own),
        await gateway.get(f"/v1/a/../{PROMPT}", headers=own),
        await gateway.get(f"/elsewhere/{PROMPT}", headers=own),
        *[await gateway.ask(PROMPT, headers=bearing(kind)) for kind in ("unknown", "denied")],
        await gateway.ask(PROMPT, headers={"x-api-key": KEYS["denied"]}),
    ]
    leaving = ClientTimeout(total=0.05)
    with pytest.raises(asyncio.TimeoutError):
        async with gateway.session.post(
            f"{gateway.url}/v1/chat/completions",
            data=PROMPT.encode() * 10,
            headers={**own, "Content-Length": "1000000"},
            timeout=leaving,
        ):
            pass
    return told


async def malformed_head(url, key):
    """Send what no HTTP library would: a head that cannot be parsed, with a key in it."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization {key}\r\n\r\n".encode())
    await reader.read()
    writer.close()


def other_files(data_dir):
    """Return names of all files, and what is in those that hold no entries and no vectors."""
    paths = [path for path in data_dir.rglob("*") if path.is_file()]
    names = "\n".join(str(path.relative_to(data_dir)) for path in paths)
    plain = [p for p in paths if not p.name.startswith(("entries.sqlite3", "vectors.sqlite3"))]
    return names.encode() + b"".join(path.read_bytes() for path in plain)


def command_lines(process):
    return b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process.children())


@pytest.mark.parametrize("form", ["text", "json"])
async def test_a_served_installation_tells_nothing(tmp_path, upstream, collector, form):
    upstream.answer = answer
    data = tmp_path / "data"
    keys, denied = tmp_path / "keys", tmp_path / "denied"
    keys.write_text(f"shop {sha256(KEYS['gateway'].encode()).hexdigest()}\n")
    denied.write_text(f"left {sha256(KEYS['denied'].encode()).hexdigest()}\n")
    process = Process(
        *("-m", "gateway.cli", "serve", "--upstream", f"{upstream.url}/v1", "--port", "0"),
        *("--data-dir", str(data), "--log-level", "debug", "--log-format", form),
        REFRAIN_GATEWAY_KEYS=str(keys),
        REFRAIN_DENIED_KEYS=str(denied),
        REFRAIN_UPSTREAM_API_KEY=KEYS["upstream"],
        REFRAIN_ENCRYPTION_KEYS=MASTER,
        REFRAIN_DECISION_LOG=str(tmp_path / "decisions.jsonl"),
    )
    try:
        line = await asyncio.to_thread(process.wait_for_line, "ready: base URL")
        url = re.search(r"http://[^/]+", line)[0]
        async with ClientSession() as session:
            gateway = RunningGateway(url, session, data, None)
            told = await go_every_way(gateway, "gateway")
            await malformed_head(url, KEYS["gateway"])
            metrics = (await gateway.get("/metrics")).raw
            ready = (await gateway.get("/readyz")).raw
            entry = (await gateway.get("/admin/entries")).raw
            wrong = orjson.dumps({"key": "0" * 64, "question": PROMPT})
            await gateway.post("/admin/purge", wrong)
            commands = command_lines(process)
    finally:
        code = await asyncio.to_thread(process.stop, signal.SIGTERM)
    assert code == 0
    statuses = {reply.status for reply in told}
    assert statuses >= {200, 201, 400, 401, 404, 500, 502, 504}
    caches = " ".join(reply.cache for reply in told)
    for word in ("hit", "semantic", "stored", "pii", "no-store", "unauthorized", "only-if-cached"):
        assert word in caches, word
    assert PROMPT in str(upstream.bodies)
    assert any("Bearer canary-upstream-key" in str(each.headers) for each in upstream.requests)
    if form == "json":
        logged = [orjson.loads(line) for line in process.lines]
        assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, logged))
    assert any("debug" in each.lower() and "outcome" in each for each in process.lines)
    assert len(collector) > 0
    seen = {
        "log": "\n".join(process.lines),
        "metrics": metrics,
        "readiness": ready,
        "the list of entries": entry,
        "spans": b"".join(collector),
        "the decision log": (tmp_path / "decisions.jsonl").read_bytes(),
        "files": other_files(data),
        "command lines": commands,
        "encrypted entries": b"".join(p.read_bytes() for p in data.glob("entries.sqlite3*")),
    }
    assert {place: found for place, text in seen.items() if (found := found_in(text))} == {}


async def test_faults_of_our_own_tell_nothing_they_tripped_over(
    start_gateway, upstream, monkeypatch
):
    """Scanner, store and a defect raise errors that quote what they were given."""
    upstream.answer = answer
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    monkeypatch.setattr(root, "level", logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("aiohttp.access"), "disabled", True)
    try:
        gateway = await start_gateway()
        own = bearing("gateway")
        with monkeypatch.context() as patched:
            patched.setattr(PiiScanner, "is_clean", tripping)
            reply = await gateway.ask(f"{PROMPT} scan", headers=own)
            assert "scan-fault" in reply.cache
        await gateway.ask(PROMPT, headers=own)
        with monkeypatch.context() as patched:
            patched.setattr(Pipeline, "answer", tripping)
            reply = await gateway.ask(PROMPT, headers=own)
            assert reply.status == 500
            assert found_in(reply.raw) == []
        # The entries' file breaks while it is in use.
        for path in gateway.data_dir.glob("entries.sqlite3*"):
            path.write_bytes(f"{PROMPT}{ANSWER}".encode() * 1000)
        assert (await gateway.ask(f"{PROMPT} after", headers=own)).status == 200
        await gateway.stop()
    finally:
        root.removeHandler(handler)
    text = said.getvalue()
    assert "ValueError" in text
    assert "PII scan failed" in text
    assert found_in(text) == []


def tripping(*given):
    raise ValueError(f"cannot make sense of {given!r} {PROMPT}")


def test_a_traceback_is_told_without_what_its_exceptions_say(caplog):
    words = (PROMPT, ANSWER)
    try:
        try:
            tripping(words[0])
        except ValueError as error:
            raise RuntimeError(words[1]) from error
    except RuntimeError:
        logging.exception("failed")  # noqa: LOG015 - any logger
    assert found_in(JsonFormatter().format(caplog.records[0])) == []
    text = TextFormatter().format(caplog.records[0])
    assert "RuntimeError\nwhile handling\n" in text
    assert "ValueError" in text
    assert found_in(text) == []


def test_what_nobody_awaited_is_told_without_values(caplog):
    context = {
        "message": f"Exception in callback f('{PROMPT}')",
        "exception": ValueError(PROMPT),
        "future": PROMPT,
    }
    log_stray(None, context)
    [record] = caplog.records
    assert record.getMessage() == "event loop: Exception in"
    assert found_in(TextFormatter().format(record)) == []
