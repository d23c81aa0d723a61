"""`refrain doctor`: each check against the real thing, and what it says when that is broken."""

import asyncio
import fcntl
import os
import socket
from contextlib import asynccontextmanager
from email.utils import formatdate
from types import SimpleNamespace
from urllib.parse import urlsplit

import orjson
import pytest
from aiohttp import web
from dns_server import dns_server

from gateway.cli.main import main
from gateway.cli.operator import doctor
from gateway.cli.operator.doctor import Level, gpu_finding
from gateway.settings import Settings
from running_gateway import start_app

OK, WARNING, FAULT = Level


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def settings(tmp_path):
    """Make settings with a data directory and a free port."""

    def make(**changes):
        (tmp_path / "data").mkdir(exist_ok=True)
        return Settings(**{"data_dir": tmp_path / "data", "port": 0, **changes})

    return make


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Leave out what takes seconds: encoder and torch."""

    async def found(_settings):
        return doctor.Finding("encoder", OK, "loads")

    monkeypatch.setattr(doctor, "check_encoder", found)
    monkeypatch.setattr(doctor, "check_gpu", found)
    monkeypatch.chdir(tmp_path)


async def run(capsys, *arguments):
    code = await asyncio.to_thread(main, ["doctor", "--port", "0", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@asynccontextmanager
async def serving(handle):
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner, url = await start_app(app)
    try:
        yield url
    finally:
        await runner.cleanup()


def answering(status=200, body='{"object": "list", "data": [{"id": "m"}]}', **headers):
    async def handle(_request):
        return web.Response(
            status=status, text=body, content_type="application/json", headers=headers
        )

    return serving(handle)


async def of_upstreams(settings):
    return [
        (each.check, each.level, each.text)
        async for each in doctor.check_upstreams(settings, set())
    ]


async def test_a_healthy_installation(quick, capsys, tmp_path):
    async with answering() as url:
        code, out, _ = await run(capsys, "--upstream", f"{url}/v1")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 11
    assert "ok       data       .refrain is not there; refrain serve makes it\n" in out
    assert f"ok       upstream   {url}/v1 answers, 1 model\n" in out
    assert "ok       clock      agrees with the upstream's\n" in out
    assert not (tmp_path / ".refrain").exists()


async def test_a_listed_model_without_a_price_and_a_budget_in_dollars(quick, capsys, tmp_path):
    (tmp_path / "keys").write_text(f"ann {'0' * 64} budget=1USD/day\n")
    (tmp_path / "key").write_text("sk-upstream")
    async with answering() as url:
        (tmp_path / "refrain.yaml").write_text(
            f"gateway_keys: keys\nupstreams: [{{url: '{url}/v1', api_key_file: key}}]\n"
        )
        code, out, _ = await run(capsys)
    assert code == 0
    [line] = [line for line in out.splitlines() if line.startswith("warning  budgets")]
    assert "ann has a budget in dollars, and no price is known of m: requests" in line


async def test_a_fault_is_exit_code_1_and_the_others_are_tried(quick, capsys):
    code, out, _ = await run(capsys, "--upstream", "http://127.0.0.1:1/v1", "--policy", "no.yaml")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("fault    config     policy: no.yaml: cannot be read")
    assert [line.split()[1] for line in lines if line.startswith("fault")] == ["config", "upstream"]


async def test_json(quick, capsys):
    code, out, _ = await run(capsys, "--upstream", "http://127.0.0.1:1/v1", "--json")
    assert code == 1
    found = orjson.loads(out)
    assert found["faults"] == 1
    [fault] = [each for each in found["findings"] if each["level"] == "fault"]
    assert fault["check"] == "upstream"


async def test_settings_that_cannot_be_read_end_it(quick, capsys, tmp_path):
    (tmp_path / "refrain.yaml").write_text("prot: 1\n")
    code, out, _ = await run(capsys)
    assert code == 1
    assert out.startswith("fault    config     refrain.yaml:1: prot: ")
    assert out.count("\n") == 1


async def test_all_secrets_that_are_missing_are_named_and_the_rest_is_tried(
    quick, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("REFRAIN_SECRET", "guess-me")
    (tmp_path / "refrain.yaml").write_text(
        """gateway_keys: keys
upstreams:
  - {name: a, url: 'http://127.0.0.1:1/v1', api_key_env: A_KEY}
  - name: b
    url: http://127.0.0.1:1/v1
    api_key_file: b.key
    headers: {X-One: {env: ONE}, X-Two: {env: TWO}}
  - {name: c, url: 'http://127.0.0.1:1/v1', auth: none}
"""
    )
    (tmp_path / "keys").write_text("")
    code, out, _ = await run(capsys)
    assert code == 1
    faults = [line.split(maxsplit=2)[1:] for line in out.splitlines() if "fault" in line[:5]]
    config = [text for check, text in faults if check == "config"]
    assert [text.partition(": ")[0] for text in config] == [
        "REFRAIN_SECRET",
        "refrain.yaml:3",
        "refrain.yaml:6",
        "refrain.yaml:7",
        "refrain.yaml:7",
    ]
    for name in ("A_KEY", "b.key", "ONE", "TWO"):
        assert any(name in text for text in config)
    assert [text.split()[0] for check, text in faults if check == "upstream"] == [
        "http://127.0.0.1:1/v1"
    ]
    assert {"store", "vectors"} <= {line.split()[1] for line in out.splitlines()}
    assert "guess-me" not in out


def test_a_data_directory_that_cannot_be_written(settings, monkeypatch):
    def refuse(**_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    [found] = doctor.check_data_dir(settings(), None)
    assert (found.check, found.level) == ("data", FAULT)
    assert "cannot be written: Permission denied; give the user of the gateway" in found.text


@pytest.mark.parametrize(
    ("free", "level", "text"),
    [
        (2**20, FAULT, "1 MiB free: make room, or give another folder with --data-dir"),
        (2**29, WARNING, "512 MiB free, and entries may take 1.0 GiB more: lower store_bytes"),
        (2**34, OK, "16.0 GiB free"),
    ],
)
def test_space_on_the_disk(settings, monkeypatch, free, level, text):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    _, disk = doctor.check_data_dir(settings(), None)
    assert (disk.check, disk.level, disk.text) == ("disk", level, text)


async def test_a_running_gateway_has_lock_and_port(quick, capsys, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"4711\n")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--data-dir", data, "--upstream", "http://127.0.0.1:1/v1", "--port", port)
        _, out, _ = await run(capsys, *arguments)
        os.close(descriptor)
        _, alone, _ = await run(capsys, *arguments)
    assert f"ok       lock       a gateway (pid 4711) runs on {data}\n" in out
    assert f"ok       port       {port} is in use; a gateway runs\n" in out
    assert "ok       store      disk, in use by the gateway\n" in out
    assert "runs on" not in alone
    assert f"fault    port       cannot listen on 127.0.0.1:{port}: Address already in use" in alone
    assert "end the program that has the port, or give another with --port" in alone


async def test_a_damaged_file_of_entries(settings):
    given = settings()
    file = given.data_dir / "entries.sqlite3"
    assert (await doctor.check_store(given, None)).text == "disk, empty"
    file.write_bytes(b"this is no database" * 100)
    found = await doctor.check_store(given, None)
    assert found.level is FAULT
    assert "file is not a database; stop the gateway, move the file away" in found.text


async def test_the_store_in_memory(settings):
    assert (await doctor.check_store(settings(store="memory"), None)).level is OK


async def test_redis(settings, server, redis):
    await redis.config_set("maxmemory", 0)
    found = await doctor.check_store(settings(store=server.url), None)
    assert found.level is OK
    assert found.text.startswith("Redis ")
    assert found.text.endswith("maxmemory-policy noeviction")
    await redis.config_set("maxmemory", 2**30)
    found = await doctor.check_store(settings(store=server.url), None)
    assert found.level is WARNING
    assert found.text.endswith("set maxmemory above 1.2 GiB, or lower store_bytes")
    small = settings(store=server.url, store_bytes=2**20)
    found = await doctor.check_store(small, None)
    assert found.level is WARNING
    assert found.text.endswith("set maxmemory-policy allkeys-lru")
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    assert (await doctor.check_store(small, None)).level is OK
    await redis.config_set("maxmemory-policy", "noeviction")
    await redis.config_set("maxmemory", 0)


async def test_a_redis_that_is_gone(settings):
    found = await doctor.check_store(settings(store="redis://user:secret@127.0.0.1:1/0"), None)
    assert (found.level, found.text) == (
        FAULT,
        "127.0.0.1:1: Redis cannot be reached; start it, or correct store in the settings",
    )
    found = await doctor.check_store(settings(store="unix:///nowhere/redis.sock"), None)
    assert found.text.startswith("/nowhere/redis.sock: Redis cannot be reached; start it")


async def test_a_redis_that_answers_needs_no_start(settings, server, redis):
    await redis.config_set("requirepass", "secret")
    try:
        found = await doctor.check_store(settings(store=server.url), None)
    finally:
        await redis.config_set("requirepass", "")
    assert found.level is FAULT
    assert found.text == (
        f"{urlsplit(server.url).netloc}: "
        "Redis wants a password, or refused the one in the store's URL (WRONGPASS)"
    )


async def test_vectors(settings):
    assert (await doctor.check_vectors(settings())).level is OK
    async with answering() as url:
        found = await doctor.check_vectors(settings(vectors=url))
        assert (found.level, found.text) == (OK, f"Qdrant at {url} answers")
    async with answering(401) as url:
        found = await doctor.check_vectors(settings(vectors=url))
        assert found.level is FAULT
        assert found.text.endswith("refuses the key: set REFRAIN_QDRANT_API_KEY")
    async with answering(404) as url:
        found = await doctor.check_vectors(settings(vectors=url))
        assert "answers 404 and not as Qdrant does" in found.text
    found = await doctor.check_vectors(settings(vectors="http://127.0.0.1:1"))
    assert found.level is FAULT
    assert found.text.endswith("is Qdrant running?")


@pytest.mark.parametrize(
    ("status", "body", "level", "text"),
    [
        (404, "{}", FAULT, "answers its list of models with status 404; is its path right?"),
        (401, "{}", OK, "answers, and wants a key, which clients must send"),
        (200, "<html>", FAULT, "which is no list of models; is its path right?"),
    ],
)
async def test_upstreams(settings, status, body, level, text):
    async with answering(status, body) as url:
        found = await of_upstreams(settings(upstream=(f"{url}/v1",)))
    [(_, seen, told)] = [each for each in found if each[0] == "upstream"]
    assert seen is level
    assert text in told


async def test_an_upstream_that_refuses_the_gateway_s_key(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("REFRAIN_UPSTREAM_API_KEY", "guess-me")
    async with answering(403, "{}") as url:
        found = await of_upstreams(
            settings(upstream=(f"{url}/v1",), gateway_keys=tmp_path / "keys")
        )
    [(_, level, text)] = [each for each in found if each[0] == "upstream"]
    assert level is FAULT
    assert "refuses the key that the gateway has for it (status 403)" in text
    assert "guess-me" not in text


async def test_an_upstream_that_is_the_gateway_itself(settings):
    found = await of_upstreams(settings(upstream=("http://localhost:9123/v1",), port=9123))
    text = "http://localhost:9123/v1 is this gateway itself; give it the URL of a model server"
    assert ("upstream", FAULT, text) in found


HOST = "replicas.example"


async def test_replicas_in_srv_records_are_tried(settings):
    async with dns_server() as dns, answering() as url, answering(503, "{}") as other:
        ports = [urlsplit(each).port for each in (url, other)]
        dns.set(HOST, "SRV", *(f"0 0 {port} localhost." for port in ports))
        one = {"url": f"http://{HOST}/v1", "discover": "srv"}
        found = await of_upstreams(settings(upstreams=(one,), dns_server=dns.address))
    told = {text: level for check, level, text in found if check == "upstream"}
    assert told[f"http://{HOST}/v1 (localhost:{ports[0]}) answers, 1 model"] is OK
    assert [level for text, level in told.items() if f"localhost:{ports[1]}" in text] == [FAULT]


async def test_replicas_of_a_name_are_tried_at_their_addresses(settings):
    async with dns_server() as dns, answering() as url:
        port = urlsplit(url).port
        dns.set(HOST, "A", "127.0.0.1")
        one = {"url": f"http://{HOST}:{port}/v1", "discover": "dns"}
        found = await of_upstreams(settings(upstreams=(one,), dns_server=dns.address))
    assert ("upstream", OK, f"http://{HOST}:{port}/v1 (127.0.0.1:{port}) answers, 1 model") in found


async def test_a_name_without_replicas_is_told_once(quick, capsys, tmp_path):
    async with dns_server() as dns:
        one = f"{{url: 'http://{HOST}/v1', discover: srv}}"
        text = f"upstreams: [{one}]\ndns_server: {dns.address}\n"
        (tmp_path / "refrain.yaml").write_text(text)
        code, out, err = await run(capsys)
    assert (code, err) == (1, "")
    [line] = [line for line in out.splitlines() if line.startswith("fault")]
    assert line.startswith(f"fault    upstream   http://{HOST}/v1: the name {HOST} does not exist")
    assert line.endswith("correct url or discover in the settings")


async def test_replicas_in_a_file_are_tried_up_to_a_bound(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_MOST_REPLICAS", 1)
    file = tmp_path / "replicas.txt"
    one = {"url": "http://gpu/v1", "discover": {"file": file}}
    async with answering() as url:
        file.write_text(f"{url.removeprefix('http://')}\n127.0.0.2:1\n")
        found = await of_upstreams(settings(upstreams=(one,)))
    told = [text for check, _, text in found if check == "upstream"]
    assert told == [
        f"http://gpu/v1 ({url.removeprefix('http://')}) answers, 1 model",
        "http://gpu/v1: 1 more replicas are not tried",
    ]
    file.unlink()
    assert [
        each for each in await of_upstreams(settings(upstreams=(one,))) if each[1] is FAULT
    ] == []


async def test_proxies_are_told_without_their_password(settings, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://ann:guess-me@127.0.0.1:1")
    found = await of_upstreams(settings(upstream=("http://models.example/v1",)))
    [(_, _, text)] = [each for each in found if each[0] == "proxy"]
    assert text == "models.example through 127.0.0.1:1 of the environment; NO_PROXY excludes hosts"


@pytest.mark.parametrize(
    ("behind", "level", "text"),
    [
        (0, OK, "agrees with the upstream's"),
        (7200, WARNING, "ahead of the upstream's: set it by NTP"),
        (-7200, WARNING, "behind the upstream's: set it by NTP"),
    ],
)
async def test_the_clock(settings, behind, level, text):
    async def handle(request):
        date = formatdate(doctor.time.time() - behind, usegmt=True)
        return web.json_response({"data": []}, headers={"Date": date})

    async with serving(handle) as url:
        found = await of_upstreams(settings(upstream=(f"{url}/v1",)))
    [(_, seen, told)] = [each for each in found if each[0] == "clock"]
    assert seen is level
    assert text in told


@pytest.mark.parametrize("date", [None, "yesterday"])
async def test_a_clock_that_nobody_tells(date):
    answer = doctor.ModelsAnswer("answers", is_healthy=True, date=date)
    assert doctor._ahead(answer, 1.0) is None
    assert doctor.check_clock([]).text == "not compared: no upstream tells the time"


async def test_the_encoder_and_the_verifier_load(settings):
    found = await doctor.check_encoder(settings())
    assert (found.level, found.text) == (OK, "all-MiniLM-L6-v2 and the verifier load")


async def test_a_large_network_of_the_verifier_that_is_not_used(settings, monkeypatch):
    @asynccontextmanager
    async def service(*_arguments):
        yield SimpleNamespace(name="mini", verifier="digest", verifier_fault="no file")

    monkeypatch.setattr(doctor, "scoring_service", service)
    found = await doctor.check_encoder(settings())
    assert found.level is WARNING
    assert found.text == (
        "mini and the verifier load, but not its large network: no file; "
        "reinstall refrain-verifier in the version of refrain-gateway"
    )


async def test_an_encoder_that_does_not_load(settings, tmp_path):
    found = await doctor.check_encoder(settings(embeddings_model=str(tmp_path / "none")))
    assert found.level is FAULT
    assert found.text.endswith("check embeddings_model, and that its files are there")


async def test_an_encoder_without_its_libraries_and_verifier(settings, monkeypatch):
    @asynccontextmanager
    async def service(*_arguments):
        yield SimpleNamespace(name="mini", verifier="", verifier_fault="no file")

    monkeypatch.setattr(doctor, "scoring_service", service)
    found = await doctor.check_encoder(settings())
    assert found.level is FAULT
    assert found.text == "mini loads, but not the verifier: no file; reinstall refrain-gateway"
    monkeypatch.setattr(doctor, "missing_libraries", lambda: ["faiss"])
    found = await doctor.check_encoder(settings())
    assert found.level is WARNING
    assert found.text.startswith("faiss not installed, so there are no semantic hits")


@pytest.mark.parametrize(
    ("names", "device", "has_driver", "level", "text"),
    [
        ("['H100', 'H100']", "cpu", True, OK, "H100, H100"),
        ("[]", "cpu", False, OK, "none: refrain backend runs on the CPU"),
        ("[]", "cuda", False, FAULT, "none, but embeddings_device is cuda: set it to cpu or auto"),
        ("[]", "cpu", True, WARNING, "there is a driver, but torch sees no GPU: pip install"),
    ],
)
def test_gpus(names, device, has_driver, level, text):
    found = gpu_finding(names, device, has_driver=has_driver)
    assert found.level is level
    assert found.text.startswith(text)


async def test_torch_is_loaded_and_may_fail(settings, monkeypatch):
    assert (await doctor.check_gpu(settings())).level is not FAULT
    monkeypatch.setattr(doctor, "_GPU", "raise SystemExit(3)")
    found = await doctor.check_gpu(settings())
    assert (found.level, found.text) == (WARNING, "torch cannot be loaded: reinstall it")
    monkeypatch.setattr(doctor, "_GPU", "input = __import__('threading').Event().wait()")
    monkeypatch.setattr(doctor, "_TORCH_SECONDS", 0.1)
    found = await doctor.check_gpu(settings())
    assert found.level is WARNING
    assert found.text.startswith("torch was not loaded in 0 s")
