"""The export of a served installation: several workers, and a collector that holds the stop up."""

import asyncio
import re
import signal

import pytest
from aiohttp import ClientSession, web
from otlp_receiver import receiver
from processes import Process

WORKERS = 2
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def otlp():
    async with receiver() as one:
        yield one


def serve(upstream, tmp_path, otlp, **environment):
    return Process(
        *("-m", "gateway.cli", "serve", "--upstream", f"{upstream.url}/v1", "--port", "0"),
        *("--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS)),
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
        **environment,
    )


async def ask(url):
    # A connection of its own, which any worker may get.
    async with ClientSession() as session, session.post(url, json=BODY) as reply:
        assert reply.status == 200
        await reply.read()


async def url_of(process):
    line = await asyncio.to_thread(process.wait_for_line, "ready: base URL")
    return f"{re.search(r'http://[^/]+', line)[0]}/v1/chat/completions"


async def test_each_worker_sends_its_own_figures_and_spans(upstream, tmp_path, otlp):
    process = serve(upstream, tmp_path, otlp)
    try:
        url = await url_of(process)
        for _ in range(30):
            await ask(url)
    finally:
        code = await asyncio.to_thread(process.stop, signal.SIGTERM)
    assert code == 0
    processes = otlp.metrics_of_processes
    assert len(processes) == WORKERS
    requests = [
        point.as_double
        for metrics in processes.values()
        for attributes, point in metrics.get("refrain_requests_total", ())
        if attributes["endpoint"] == "/v1/chat/completions"
    ]
    assert sum(requests) == 30
    spans = otlp.named("POST /v1/chat/completions")
    assert len(spans) == 30
    assert {span.resource["service.instance.id"] for span in spans} <= set(processes)


async def test_a_collector_that_never_answers_does_not_keep_workers_alive(upstream, tmp_path, otlp):
    released = asyncio.Event()

    async def hang():
        await released.wait()
        return web.Response()

    otlp.answer = hang
    process = serve(upstream, tmp_path, otlp, OTEL_EXPORTER_OTLP_TIMEOUT="600")
    try:
        await ask(await url_of(process))
    finally:
        code = await asyncio.to_thread(process.stop, signal.SIGTERM)
        released.set()
    assert code == 0
    assert not [line for line in process.lines if "is killed" in line]
