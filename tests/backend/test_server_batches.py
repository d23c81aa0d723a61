"""The real `openai` package sends files and batches to the real server."""

import asyncio
import re
import signal
import sys
from pathlib import Path

import openai
import orjson
import pytest
from aiohttp import FormData

from backend.ports import EngineError, QueueFullError
from backend.scheduler.request import FinishReason, Priority, TextDelta
from backend.server.app import BATCHES
from backend.server.batches.batch import MAX_LINE_BYTES
from backend.server.batches.runner import Batches
from backend.server.batches.store import Store

pytest_plugins = ["running_backend"]

ROOT = Path(__file__).parents[2]
LIMIT = 30.0
COMPLETIONS = "/v1/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


def client_of(server, key="anything"):
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def batches_in(directory, **options):
    clock = {"clock": options.pop("clock")} if "clock" in options else {}
    bounds = {"most_bytes": 10**9, "keep_seconds": 10**6, **clock}
    bounds |= {name: options.pop(name) for name in list(options) if name in bounds}
    return Batches(Store(directory, **bounds), **({"concurrency": 2} | options))


class Slept:
    """Pauses that end once ``gate`` is open, except the one between two removals."""

    def __init__(self):
        self.seconds, self.gate = [], asyncio.Event()

    async def __call__(self, seconds):
        if seconds == 60:
            await asyncio.Event().wait()
        self.seconds.append(seconds)
        await self.gate.wait()


def line(custom_id, url=COMPLETIONS, **body):
    asked = {"model": "scripted", "prompt": "Hi", **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(*lines):
    return b"".join(
        each if isinstance(each, bytes) else orjson.dumps(each) + b"\n" for each in lines
    )


async def upload(client, data):
    return await client.files.create(file=("in.jsonl", data), purpose="batch")


async def create(client, *lines, endpoint=COMPLETIONS, **fields):
    file = await upload(client, jsonl(*lines))
    fields = {"completion_window": "24h"} | fields
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, **fields)


async def reach(client, batch, condition=lambda batch: batch.status in ENDED):
    async with asyncio.timeout(LIMIT):
        while not condition(batch):
            batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client, file_id):
    if file_id is None:
        return {}
    told = [orjson.loads(raw) for raw in (await client.files.content(file_id)).content.splitlines()]
    assert len({each["id"] for each in told}) == len(told)
    return {each["custom_id"]: each for each in told}


async def test_a_batch_from_upload_to_deletion(start_real_server, tmp_path):
    server = await start_real_server(batches=batches_in(tmp_path / "kept"))
    async with client_of(server) as client:
        asked = {"model": "tiny", "temperature": 0, "max_tokens": 8}
        chat = asked | {"messages": [{"role": "user", "content": "Hello"}]}
        lines = [line(str(n), "/v1/chat/completions", **chat) for n in range(20)]
        for each in lines:
            del each["body"]["prompt"]
        batch = await create(
            client, *lines, endpoint="/v1/chat/completions", metadata={"job": "nightly"}
        )
        assert (batch.object, batch.status, batch.errors) == ("batch", "validating", None)
        assert batch.expires_at - batch.created_at == 86_400
        batch = await reach(client, batch)
        assert (batch.status, batch.metadata) == ("completed", {"job": "nightly"})
        assert batch.request_counts.model_dump() == {"completed": 20, "failed": 0, "total": 20}
        assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        assert (batch.error_file_id, batch.cancelled_at) == (None, None)
        plain = await client.chat.completions.create(**chat)
        told = await results(client, batch.output_file_id)
        assert set(told) == {str(n) for n in range(20)}
        for each in told.values():
            assert each["error"] is None
            assert each["response"]["status_code"] == 200
            assert each["response"]["request_id"]
            message = each["response"]["body"]["choices"][0]["message"]
            assert message["content"] == plain.choices[0].message.content
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
        name = 'refrain_engine_batch_requests_total{outcome="completed"}'
        assert await server.metric(name) == 20
        assert await server.metric('refrain_engine_batches{status="completed"}') == 1

        files = [file async for file in client.files.list()]
        assert [file.purpose for file in files] == ["batch_output", "batch"]
        output = await client.files.retrieve(batch.output_file_id)
        assert output.bytes == len((await client.files.content(output.id)).content)
        assert (await client.files.delete(output.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(output.id)
    kept = [path for path in (tmp_path / "kept").iterdir() if path.name != "lock"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert len(kept) == 3  # the input with its description, and the batch


async def test_lines_that_are_at_fault_fail_alone(start_server, tmp_path):
    server = await start_server(limits={"batches": batches_in(tmp_path)})
    no_id = line("x")
    del no_id["custom_id"]
    async with client_of(server) as client:
        batch = await create(
            client,
            b"\xef\xbb\xbf" + jsonl(line("bom")),
            line("good"),
            line("url", "/v1/embeddings"),
            {**line("method"), "method": "GET"},
            line("stream", stream=True),
            b'{"custom_id": "torn", \n\n',
            b'{"custom_id": "twice", "custom_id": "twice"}\n',
            no_id,
            line("good", prompt="again"),
            line("model", model="gpt-4o"),
            line("field", temperature=9),
            {**line("body"), "body": []},
            b'["no object"]\n',
            b'{"custom_id": "' + b"x" * MAX_LINE_BYTES + b'"}\n',
            line("last"),
        )
        batch = await reach(client, batch)
        assert batch.status == "completed"
        told = await results(client, batch.output_file_id)
        assert set(told) == {"bom", "good", "last"}
        raw = (await client.files.content(batch.error_file_id)).content
    failed = [orjson.loads(each) for each in raw.splitlines()]
    assert batch.request_counts.model_dump() == {"completed": 3, "failed": 12, "total": 15}
    codes = sorted(
        (each["custom_id"] or "", each["error"]["code"]) for each in failed if each["error"]
    )
    assert codes == [
        ("", "duplicate_key"),
        ("", "invalid_json_line"),
        ("", "invalid_type"),
        ("", "missing_required_parameter"),
        ("", "request_too_large"),
        ("body", "missing_required_parameter"),
        ("good", "duplicate_custom_id"),
        ("method", "invalid_method"),
        ("stream", "unsupported_parameter"),
        ("url", "invalid_url"),
    ]
    answered = {each["custom_id"]: each["response"] for each in failed if each["response"]}
    assert {name: each["status_code"] for name, each in answered.items()} == {
        "model": 404,
        "field": 400,
    }
    assert answered["model"]["body"]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\n \n", "empty_file"),
        (b'{"custom_id": "\xff"}\n', "invalid_encoding"),
        (b"{}\n" * 50_001, "too_many_requests"),
    ],
)
async def test_a_file_that_is_at_fault_fails_its_batch(start_server, tmp_path, data, code):
    server = await start_server(limits={"batches": batches_in(tmp_path)})
    async with client_of(server) as client:
        batch = await reach(client, await create(client, data))
        assert (batch.status, batch.errors.data[0].code) == ("failed", code)
        assert (batch.output_file_id, batch.error_file_id) == (None, None)


async def test_the_engine_is_waited_for_and_fails_a_line_at_last(start_server, tmp_path):
    """No room is waited out; a line that fails three times has its error; the others go on."""
    seen, slept = [], Slept()
    slept.gate.set()

    async def script(request):
        text = "".join(map(chr, request.prompt_tokens))
        seen.append(text)
        if text == "full" and seen.count(text) < 5:
            raise QueueFullError("too many wait", 7.0)
        if text == "poison":
            raise EngineError("the process died")
        yield TextDelta(0, "well", 1, FinishReason.STOP)

    batches = batches_in(tmp_path, concurrency=1, sleep=slept)
    server = await start_server(script=script, limits={"batches": batches})
    async with client_of(server) as client:
        prompts = ("full", "poison", "good")
        batch = await create(client, *(line(text, prompt=text) for text in prompts))
        batch = await reach(client, batch)
        told = await results(client, batch.output_file_id)
        failed = await results(client, batch.error_file_id)
    assert slept.seconds == [7, 7, 7, 7, 2, 4]
    assert seen[1:] == ["full"] * 5 + ["poison"] * 3 + ["good"]
    assert set(told) == {"full", "good"}
    assert failed["poison"]["response"]["status_code"] == 500


async def test_lines_are_of_the_lowest_priority_and_few_at_a_time(start_server, tmp_path):
    gate, running, most = asyncio.Event(), set(), []

    async def script(request):
        if request.priority is Priority.LOW:
            running.add(request.request_id)
            most.append(len(running))
            await gate.wait()
            running.discard(request.request_id)
        yield TextDelta(0, "well", 1, FinishReason.STOP)

    server = await start_server(script=script, limits={"batches": batches_in(tmp_path)})
    async with client_of(server) as client, client_of(server, "other") as other:
        lines = [line(str(n)) for n in range(8)]
        batch = await create(client, *lines)
        await create(other, *lines)
        async with asyncio.timeout(LIMIT):
            await server.generator.started.wait()
        # Others are answered while lines wait for the engine.
        assert (await server.complete("now")).status == 200
        gate.set()
        assert (await reach(client, batch)).request_counts.completed == 8
    assert max(most) == 2
    low = [each for each in server.generator.requests if each.priority is Priority.LOW]
    assert {each.queue_seconds for each in low} == {20.0}
    salts = {each.cache_salt for each in low}
    assert len(salts) == 2
    assert "" not in salts


async def test_a_batch_is_cancelled_with_what_it_has(start_server, tmp_path):
    async def script(request):
        if "".join(map(chr, request.prompt_tokens)) == "wait":
            await asyncio.Event().wait()
        yield TextDelta(0, "well", 1, FinishReason.STOP)

    server = await start_server(script=script, limits={"batches": batches_in(tmp_path)})
    async with client_of(server) as client:
        lines = [line("first"), *(line(str(n), prompt="wait") for n in range(9))]
        batch = await create(client, *lines)
        await reach(client, batch, lambda batch: batch.request_counts.completed == 1)
        with pytest.raises(openai.ConflictError) as used:
            await client.files.delete(batch.input_file_id)
        assert used.value.code == "file_in_use"
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await reach(client, batch)
        assert (batch.status, batch.error_file_id) == ("cancelled", None)
        assert set(await results(client, batch.output_file_id)) == {"first"}
        await client.files.delete(batch.input_file_id)
    await asyncio.wait_for(server.generator.cancelled.wait(), LIMIT)


async def test_what_is_left_when_the_window_ends_is_an_error(start_server, tmp_path):
    now, begun = [1_000_000.0], asyncio.Event()

    async def script(request):
        if "".join(map(chr, request.prompt_tokens)) == "wait":
            now[0] += 3600
            begun.set()
            await asyncio.Event().wait()
        yield TextDelta(0, "well", 1, FinishReason.STOP)

    def kept():
        return batches_in(tmp_path, concurrency=1, clock=lambda: now[0], keep_seconds=86_400)

    server = await start_server(script=script, limits={"batches": kept()})
    async with client_of(server) as client:
        lines = [line("first"), line("second", prompt="wait"), line("third"), b"{\n"]
        batch = await create(client, *lines, completion_window="30m")
        await reach(client, batch, lambda batch: batch.request_counts.completed == 1)
        await asyncio.wait_for(begun.wait(), LIMIT)
    await server.runner.cleanup()
    server = await start_server(script=script, limits={"batches": kept()})
    async with client_of(server) as client:
        batch = await reach(client, batch)
        assert batch.status == "expired"
        assert set(await results(client, batch.output_file_id)) == {"first"}
        failed = await results(client, batch.error_file_id)
        codes = {name: each["error"]["code"] for name, each in failed.items()}
        expired = "batch_expired"
        assert codes == {"second": expired, "third": expired, None: "invalid_json_line"}
        # Results are kept for a day.
        now[0] += 86_400
        assert [file async for file in client.files.list()] == []
        with pytest.raises(openai.NotFoundError):
            await client.files.content(batch.output_file_id)
    await server.runner.cleanup()
    server = await start_server(script=script, limits={"batches": kept()})
    async with client_of(server) as client:
        async with asyncio.timeout(LIMIT):
            while [each.name for each in tmp_path.iterdir()] != ["lock"]:
                await client.batches.list()


async def test_lists_have_pages_and_belong_to_a_tenant(start_server, tmp_path):
    server = await start_server(limits={"batches": batches_in(tmp_path)})
    async with client_of(server) as client, client_of(server, "other") as other:
        made = [(await create(client, line("1"))).id for _ in range(5)]
        page = await client.batches.list(limit=2)
        assert ([each.id for each in page.data], page.has_more) == (made[:-3:-1], True)
        assert [each.id async for each in client.batches.list(limit=2)] == made[::-1]
        oldest_first = [each.created_at async for each in client.files.list(order="asc", limit=3)]
        assert oldest_first == sorted(oldest_first)
        for refused in ({"limit": 0}, {"limit": 101}, {"after": "batch_x"}):
            with pytest.raises(openai.BadRequestError):
                await client.batches.list(**refused)
        file = (await client.batches.retrieve(made[0])).input_file_id
        assert [each async for each in other.batches.list()] == []
        assert [each async for each in other.files.list()] == []
        for asked in (
            other.batches.retrieve(made[0]),
            other.batches.cancel(made[0]),
            other.files.retrieve(file),
            other.files.content(file),
            other.files.delete(file),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
        with pytest.raises(openai.BadRequestError) as foreign:
            await other.batches.create(
                input_file_id=file, endpoint=COMPLETIONS, completion_window="24h"
            )
        assert foreign.value.param == "input_file_id"


async def test_bounds_have_clear_refusals(start_server, tmp_path):
    server = await start_server(limits={"batches": batches_in(tmp_path, most_bytes=5_000)})
    async with client_of(server) as client:
        with pytest.raises(openai.APIStatusError) as large:
            await upload(client, b"x" * 6_000)
        assert (large.value.status_code, large.value.code) == (413, "batch_storage_full")
        assert "--batch-bytes" in large.value.message
        # What a refused upload took is free again, and results count as well.
        lines = [line(str(n)) for n in range(25)]
        batch = await reach(client, await create(client, *lines))
        assert (batch.status, batch.errors.data[0].code) == ("failed", "batch_storage_full")
        told = await results(client, batch.output_file_id)
        assert 0 < len(told) == batch.request_counts.completed < 25
        await client.files.delete(batch.output_file_id)
        await client.files.delete(batch.input_file_id)
        assert (await reach(client, await create(client, line("1")))).status == "completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"completion_window": "soon"}, "completion_window"),
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"extra_body": {"shards": 2}}, "shards"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, None),
    ],
)
async def test_batches_that_are_refused(server_with_batches, fields, param):
    async with client_of(server_with_batches) as client:
        file = await upload(client, jsonl(line("1")))
        asked = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(**(asked | fields))
        assert refused.value.param == (param or "output_expires_after.seconds")


@pytest.fixture
async def server_with_batches(start_server, tmp_path):
    return await start_server(limits={"batches": batches_in(tmp_path)})


async def test_uploads_that_are_refused(server_with_batches, tmp_path):
    server = server_with_batches

    async def send(data, **headers):
        async with server.session.post(server.url + "/v1/files", data=data, headers=headers) as got:
            return got.status, (await got.json())["error"]

    def form(*fields):
        made = FormData(default_to_multipart=True)
        for name, value in fields:
            made.add_field(name, value, filename="a.jsonl" if name == "file" else None)
        return made

    file = ("file", b"{}\n")
    purpose = ("purpose", "batch")
    assert (await send(form(file)))[1]["param"] == "purpose"
    assert (await send(form(purpose)))[1]["param"] == "file"
    assert (await send(form(file, ("purpose", "vision"))))[1]["param"] == "purpose"
    assert (await send(form(file, file, purpose)))[1]["param"] == "file"
    assert (await send(form(file, purpose, ("odd", "1"))))[1]["param"] == "odd"
    assert (await send(form(file, purpose, ("expires_after[seconds]", "9"))))[0] == 400
    assert (await send(form(file, ("purpose", "x" * 2000))))[0] == 413
    assert (await send(b"{}"))[0] == 415
    kind = "multipart/form-data; boundary=x"
    for broken in (b"", b"--x\r\n\r\nwithout a name\r\n--x--\r\n", b"--x\r\nbroken"):
        assert (await send(broken, **{"Content-Type": kind}))[0] == 400
    assert (await send(b"", **{"Content-Type": "multipart/form-data"}))[0] == 400
    await server.runner.app[BATCHES].store.run(lambda: None)  # removals are done before it
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == []


async def test_ids_are_looked_up_and_never_paths(server_with_batches, tmp_path):
    (tmp_path / "lock").write_text("secret")
    for given in ("..%2f..%2fetc%2fpasswd", "lock", "%2e%2e", ".jsonl", "file-" + "0" * 32, "a%00"):
        for path in (f"/v1/files/{given}", f"/v1/files/{given}/content", f"/v1/batches/{given}"):
            reply = await server_with_batches.get(path)
            assert reply.status in (400, 404)
            assert b"secret" not in reply.raw


async def test_without_a_directory_the_setting_is_named(server):
    for path in ("/v1/files", "/v1/batches", "/v1/files/x/content"):
        reply = await server.get(path)
        assert (reply.status, reply.error["code"]) == (404, "batches_off")
        assert "--batch-dir" in reply.error["message"]


async def test_a_directory_has_one_owner(start_server, server_with_batches, tmp_path):
    with pytest.raises(OSError, match="another process uses it"):
        await start_server(limits={"batches": batches_in(tmp_path)})
    assert (await server_with_batches.get("/v1/batches")).status == 200


async def test_a_task_that_fails_is_told_and_begins_again(start_server, tmp_path):
    slept = Slept()
    batches = batches_in(tmp_path, sleep=slept)
    server = await start_server(limits={"batches": batches})
    async with client_of(server) as client:
        file = await upload(client, jsonl(line("1"), line("2")))
        path, away = tmp_path / f"{file.id}.jsonl", tmp_path / "away"
        path.rename(away)
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
        )
        async with asyncio.timeout(LIMIT):
            while "detail" not in (ready := (await server.get("/readyz")).json):
                pass
        assert ready["detail"] == [f"{batch.id} failed, and begins again: FileNotFoundError"]
        away.rename(path)
        slept.gate.set()
        batch = await reach(client, batch)
        assert set(await results(client, batch.output_file_id)) == {"1", "2"}
        assert "detail" not in (await server.get("/readyz")).json


async def test_a_killed_process_goes_on_with_each_line_once(chat_model, tmp_path):
    count = 60
    asked = {"model": "tiny-llama", "temperature": 0, "max_tokens": 20}
    lines = [line(str(n), prompt=f"number {n}", **asked, ignore_eos=True) for n in range(count)]
    arguments = ("--model", chat_model, "--port", 0, "--device", "cpu", "--batch-dir", tmp_path)

    async def start():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "backend", *map(str, arguments)),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(LIMIT):
            while raw := await process.stderr.readline():
                if match := re.search(rb"listening on (http://127.0.0.1:\d+)", raw):
                    break
        url = match[1].decode()
        return process, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a", max_retries=0)

    process, client = await start()
    try:
        async with client:
            batch = await create(client, *lines)
            batch = await reach(client, batch, lambda each: each.request_counts.completed > 4)
            assert batch.status == "in_progress"
        process.send_signal(signal.SIGKILL)
        await process.wait()
        process, client = await start()
        async with client:
            batch = await reach(client, batch)
            assert batch.request_counts.model_dump() == {
                "completed": count,
                "failed": 0,
                "total": count,
            }
            told = await results(client, batch.output_file_id)
        assert set(told) == {str(n) for n in range(count)}
    finally:
        process.kill()
        await process.wait()
