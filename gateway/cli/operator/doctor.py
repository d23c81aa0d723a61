"""``refrain doctor``: try what ``refrain serve`` would use, and say what to do about each fault.

Law: every wait has a bound, and a check that fails does not stop the others. Nothing is changed: no
data directory is made, no entry is read or written.
"""

import asyncio
import importlib.util
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.cache.ports import StoreError
from gateway.cli.offline.calibrate import scoring_service
from gateway.cli.process.child_process import PYTHON
from gateway.cli.process.launch import listen, lock_holder
from gateway.cli.process.plan import (
    find_faults,
    missing_libraries,
    read_settings,
    settings_file,
    unpriced_budgets,
)
from gateway.cli.terminal import CommandError, FailedError, printable, show_json
from gateway.server.open.secrets import (
    SecretSettingError,
    outbound_proxies,
    outbound_proxy,
    secret_setting,
    upstream_headers,
    upstream_keys,
)
from gateway.server.open.upstreams import make_upstream, replica_of, source_of
from gateway.settings import Settings
from gateway.upstream.pool.watch.discovery import DiscoveryError
from gateway.upstream.pool.watch.probes import ModelsAnswer, models_answer
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.wire.http_client import HttpUpstream

_REDIS_SECONDS = 5.0
_QDRANT_SECONDS = 5.0
_TORCH_SECONDS = 60.0
_LEAST_FREE = 256 * 2**20
"""Less is a fault: SQLite and its log need room."""
_REDIS_OVERHEAD = 1.25
"""Redis needs about a quarter more than its entries."""
_REDIS_PORT = 6379
_CLOCK_SECONDS = 60.0
_MOST_REPLICAS = 16
"""Of one upstream, so many are tried."""
_DRIVER = Path("/proc/driver/nvidia/version")
_GPU = """
import torch
print([torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())])
"""


class Level(StrEnum):
    """What a finding means for ``refrain serve``."""

    OK = "ok"
    WARNING = "warning"
    """It serves, with less than it could."""
    FAULT = "fault"
    """It does not start, or a part of it does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found; the text says what to do, too."""

    check: str
    level: Level
    text: str


def doctor(*, as_json: bool, **flags: Any) -> int:
    """Print a line for each check; return 1 if there is a fault, else 0."""
    # Each line of a check tells what is wrong; the log would tell it again.
    logging.getLogger().addHandler(logging.NullHandler())
    return asyncio.run(_print(flags, as_json=as_json))


async def _print(flags: dict[str, Any], *, as_json: bool) -> int:
    findings = []
    async for found in examine(flags):
        findings.append(found)
        if not as_json:
            print(printable(f"{found.level:<9}{found.check:<11}{found.text}"), flush=True)
    faults = sum(found.level is Level.FAULT for found in findings)
    if as_json:
        show_json({"faults": faults, "findings": [*map(asdict, findings)]})
    return 1 if faults else 0


async def examine(flags: dict[str, Any]) -> AsyncIterator[Finding]:
    """Yield what each check finds; ``flags`` come from the command line."""
    try:
        settings = read_settings(flags)
    except CommandError as error:
        for line in str(error).splitlines():
            yield Finding("config", Level.FAULT, line)
        return
    faults = find_faults(settings, settings_file(flags))
    for line in faults:
        yield Finding("config", Level.FAULT, line)
    if not faults:
        yield Finding("config", Level.OK, "refrain serve would take the settings")
    holder = lock_holder(settings.data_dir)
    for found in (*check_data_dir(settings, holder), check_port(settings, holder)):
        yield found
    # What needs a secret that is missing, one of the faults above, is not tried.
    with suppress(SecretSettingError):
        yield await check_store(settings, holder)
    with suppress(SecretSettingError):
        yield await check_vectors(settings)
    listed: set[str] = set()
    async for found in check_upstreams(settings, listed):
        yield found
    for line in () if faults else unpriced_budgets(settings, listed):
        yield Finding("budgets", Level.WARNING, line)
    yield await check_encoder(settings)
    yield await check_gpu(settings)


def check_data_dir(settings: Settings, holder: str | None) -> Iterator[Finding]:
    """Check whether the data directory can be written, has room, and belongs to a gateway."""
    folder = settings.data_dir
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        why = error.strerror or error
        text = f"{there} cannot be written: {why}; give the user of the gateway write access"
        yield Finding("data", Level.FAULT, text)
        return
    state = "can be written" if folder.exists() else "is not there; refrain serve makes it"
    yield Finding("data", Level.OK, f"{folder} {state}")
    stored = settings.store_bytes if settings.store == "disk" else 0
    entries = folder / "entries.sqlite3"
    room = max(stored - (entries.stat().st_size if entries.exists() else 0), 0)
    if free < _LEAST_FREE:
        text = f"{_size(free)} free: make room, or give another folder with --data-dir"
        yield Finding("disk", Level.FAULT, text)
    elif free < room:
        text = f"{_size(free)} free, and entries may take {_size(room)} more: lower store_bytes"
        yield Finding("disk", Level.WARNING, text)
    else:
        yield Finding("disk", Level.OK, f"{_size(free)} free")
    if holder is not None:
        yield Finding("lock", Level.OK, f"a gateway (pid {holder}) runs on {folder}")


def check_port(settings: Settings, holder: str | None) -> Finding:
    """Check whether the port is free, or a gateway has it."""
    try:
        listen(settings.host, settings.port).close()
    except FailedError as error:
        if holder is not None:
            return Finding("port", Level.OK, f"{settings.port} is in use; a gateway runs")
        text = f"{error}; end the program that has the port, or give another with --port"
        return Finding("port", Level.FAULT, text)
    return Finding("port", Level.OK, f"{settings.host}:{settings.port} is free")


async def check_store(settings: Settings, holder: str | None) -> Finding:
    """Check whether the store answers, and keeps what it is given."""
    if settings.store == "memory":
        return Finding("store", Level.OK, "memory: entries are lost at each stop")
    if settings.store == "disk":
        return _check_disk(settings.data_dir / "entries.sqlite3", holder)
    try:
        return await _check_redis(settings)
    except (ValueError, ModuleNotFoundError) as error:
        return Finding("store", Level.FAULT, f"{error} (store: in the settings)")


def _check_disk(file: Path, holder: str | None) -> Finding:
    if holder is not None or not file.exists():
        state = "in use by the gateway" if holder is not None else "empty"
        return Finding("store", Level.OK, f"disk, {state}")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            opened.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        text = f"{file}: {error}; stop the gateway, move the file away, and entries begin anew"
        return Finding("store", Level.FAULT, text)
    return Finding("store", Level.OK, f"disk, {file} can be read")


async def _check_redis(settings: Settings) -> Finding:
    """Return what Redis says of itself."""
    # Costs half a second to import.
    from gateway.cache.stores.redis.link import SILENCE, RedisLink

    password = secret_setting(os.environ, "STORE_PASSWORD")
    link = RedisLink(settings.store, seconds=_REDIS_SECONDS, password=password)
    try:
        begin = time.monotonic()
        await link.command(0, "PING")
        took = time.monotonic() - begin
        try:
            info = await link.command(0, "INFO")
        except StoreError as error:
            text = f"answers a PING, but not INFO: {error}"
            return Finding("store", Level.WARNING, text)
    except StoreError as error:
        advice = "; start it, or correct store in the settings" if str(error) in SILENCE else ""
        return Finding("store", Level.FAULT, f"{_place(settings.store)}: {error}{advice}")
    finally:
        await link.close()
    version = info.get("redis_version", "of unknown version")
    most, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))
    text = f"Redis {version} answers in {took * 1000:.1f} ms, maxmemory-policy {policy}"
    needed = int(settings.store_bytes * _REDIS_OVERHEAD)
    if most and most < needed:
        advice = f"set maxmemory above {_size(needed)}, or lower store_bytes"
        return Finding("store", Level.WARNING, f"{text}; maxmemory is {_size(most)}: {advice}")
    if most and not policy.startswith("allkeys-"):
        advice = "a full Redis refuses entries: set maxmemory-policy allkeys-lru"
        return Finding("store", Level.WARNING, f"{text}; {advice}")
    return Finding("store", Level.OK, text)


def _place(store: str) -> str:
    """Return host and port of a Redis, and nothing else: its URL may hold a password."""
    parts = urlsplit(store)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname}:{parts.port or _REDIS_PORT}"


async def check_vectors(settings: Settings) -> Finding:
    """Check whether the vector index answers, if it is a server."""
    url = settings.vectors
    if url == "faiss":
        return Finding("vectors", Level.OK, "FAISS, in the data directory")
    key = secret_setting(os.environ, "QDRANT_API_KEY")
    headers = {} if key is None else {"api-key": key}
    timeout = ClientTimeout(total=_QDRANT_SECONDS)
    try:
        async with (
            ClientSession(timeout=timeout, headers=headers) as session,
            session.get(f"{url}/collections") as reply,
        ):
            code = reply.status
    except (ClientError, TimeoutError, OSError) as error:
        why = str(error) or "no answer in time"
        return Finding("vectors", Level.FAULT, f"{url} cannot be asked: {why}; is Qdrant running?")
    if code in (401, 403):
        text = f"Qdrant at {url} refuses the key: set REFRAIN_QDRANT_API_KEY"
        return Finding("vectors", Level.FAULT, text)
    if code != 200:
        text = f"{url} answers {code} and not as Qdrant does: correct vectors: in the settings"
        return Finding("vectors", Level.FAULT, text)
    return Finding("vectors", Level.OK, f"Qdrant at {url} answers")


async def check_upstreams(settings: Settings, listed: set[str]) -> AsyncIterator[Finding]:
    """Check each upstream, the proxies on the way, and this clock against theirs.

    The models that they list go to ``listed``.
    """
    own_keys = settings.gateway_keys is not None
    upstreams = [one for one in settings.all_upstreams if _has_its_secrets(one, own_keys=own_keys)]
    keys = upstream_keys(upstreams, os.environ, own_keys=own_keys)
    proxies = outbound_proxies(upstreams, os.environ)
    fixed = [upstream_headers(one, os.environ, own_keys=own_keys) for one in upstreams]
    for place, names in proxies.items():
        text = f"{', '.join(names)} through {place} of the environment; NO_PROXY excludes hosts"
        yield Finding("proxy", Level.OK, text)
    if not proxies:
        yield Finding("proxy", Level.OK, "none on the way to upstreams")

    async def ask(one: UpstreamSettings, headers: Any) -> list[tuple[Finding, float | None]]:
        if _is_itself(one.url, settings):
            text = f"{one.url} is this gateway itself; give it the URL of a model server"
            return [(Finding("upstream", Level.FAULT, text), None)]
        make = partial(
            make_upstream,
            settings=settings,
            api_key=keys[one.label],
            headers=headers,
            environment=os.environ,
            own_keys=own_keys,
        )
        if one.discover is None:
            return [await _ask(one.url, make(one, one.label), listed)]
        try:
            source = source_of(one, settings.dns_server)
            addresses, _ = await source.look()
        except (DiscoveryError, OSError):  # one of the faults of the settings
            return []
        if source.problem is not None:
            text = f"{one.url}: {source.problem}; correct url or discover in the settings"
            return [(Finding("upstream", Level.FAULT, text), None)]
        tried = [
            (f"{one.url} ({each.text})", replica_of(one, make, one.label, each))
            for each in addresses[:_MOST_REPLICAS]
        ]
        found = list(await asyncio.gather(*(_ask(*replica, listed) for replica in tried)))
        if more := len(addresses) - len(tried):
            text = f"{one.url}: {more:,} more replicas are not tried"
            found.append((Finding("upstream", Level.OK, text), None))
        return found

    answers = await asyncio.gather(*map(ask, upstreams, fixed))
    every = [found for each in answers for found in each]
    for found, _ in every:
        yield found
    yield check_clock([ahead for _, ahead in every if ahead is not None])


def _has_its_secrets(one: UpstreamSettings, *, own_keys: bool) -> bool:
    try:
        upstream_keys([one], os.environ, own_keys=own_keys)
        upstream_headers(one, os.environ, own_keys=own_keys)
        outbound_proxy(one, os.environ)
    except SecretSettingError:  # told by the settings' own check
        return False
    return True


async def _ask(name: str, upstream: HttpUpstream, listed: set[str]) -> tuple[Finding, float | None]:
    """Return what an upstream answers, and by how much this clock is ahead of the upstream's."""
    await upstream.open()
    try:
        answer = await models_answer(upstream)
    finally:
        await upstream.close()
    listed |= answer.models
    level = Level.OK if answer.is_healthy else Level.FAULT
    return Finding("upstream", level, f"{name} {answer.text}"), _ahead(answer, time.time())


def _is_itself(url: str, settings: Settings) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return port == settings.port and parts.hostname in ("localhost", "127.0.0.1", "::1")


def _ahead(answer: ModelsAnswer, now: float) -> float | None:
    """Return by how many seconds this clock is before the upstream's."""
    try:
        return None if answer.date is None else now - parsedate_to_datetime(answer.date).timestamp()
    except ValueError:
        return None


def check_clock(ahead: list[float]) -> Finding:
    """Compare this clock with the upstreams' clocks, by the median."""
    if not ahead:
        return Finding("clock", Level.OK, "not compared: no upstream tells the time")
    by = sorted(ahead)[len(ahead) // 2]
    if abs(by) > _CLOCK_SECONDS:
        way = "ahead of" if by > 0 else "behind"
        text = (
            f"{abs(by):,.0f} s {way} the upstream's: set it by NTP, for TLS and freshness need it"
        )
        return Finding("clock", Level.WARNING, text)
    return Finding("clock", Level.OK, "agrees with the upstream's")


async def check_encoder(settings: Settings) -> Finding:
    """Check whether encoder and verifier load, in their own service."""
    if missing := missing_libraries():
        what = f"{' and '.join(missing)} not installed, so there are no semantic hits"
        text = f"{what}: pip install 'refrain-gateway[semantic]'"
        return Finding("encoder", Level.WARNING, text)
    arguments = ["--device", settings.embeddings_device]
    if settings.embeddings_model is not None:
        arguments += ["--model", settings.embeddings_model]
    try:
        async with scoring_service(None, *arguments) as service:
            if not service.verifier:
                fault = service.verifier_fault or "its files are not there"
                what = f"{service.name} loads, but not the verifier: {fault}"
                text = f"{what}; reinstall refrain-gateway"
                return Finding("encoder", Level.FAULT, text)
            text = f"{service.name} and the verifier load"
            if fault := service.verifier_fault:
                text = f"{text}, but not its large network: {fault}; reinstall refrain-verifier "
                text += "in the version of refrain-gateway"
                return Finding("encoder", Level.WARNING, text)
            return Finding("encoder", Level.OK, text)
    except FailedError as error:
        text = f"{error}; check embeddings_model, and that its files are there"
        return Finding("encoder", Level.FAULT, text)


async def check_gpu(settings: Settings) -> Finding:
    """Check whether the engine, and the encoder if it is to use one, would find a GPU."""
    if not importlib.util.find_spec("torch"):
        install = "pip install 'refrain-gateway[cpu]', or [gpu]"
        text = f"torch is not installed, as refrain backend and demo need it: {install}"
        return Finding("gpu", Level.OK, text)
    process = await asyncio.create_subprocess_exec(
        *PYTHON,
        "-c",
        _GPU,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_TORCH_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        text = f"torch was not loaded in {_TORCH_SECONDS:.0f} s: try nvidia-smi"
        return Finding("gpu", Level.WARNING, text)
    names = out.decode().strip()
    if process.returncode:
        return Finding("gpu", Level.WARNING, "torch cannot be loaded: reinstall it")
    return gpu_finding(names, settings.embeddings_device, has_driver=_has_driver())


def _has_driver() -> bool:
    return _DRIVER.exists()


def gpu_finding(names: str, device: str, *, has_driver: bool) -> Finding:
    """Return what the GPUs that torch sees mean; ``device`` is the encoder's."""
    if names != "[]":
        return Finding("gpu", Level.OK, names.strip("[]").replace("'", ""))
    if device == "cuda":
        text = "none, but embeddings_device is cuda: set it to cpu or auto"
        return Finding("gpu", Level.FAULT, text)
    if has_driver:
        text = "there is a driver, but torch sees no GPU: pip install 'refrain-gateway[gpu]'"
        return Finding("gpu", Level.WARNING, text)
    return Finding("gpu", Level.OK, "none: refrain backend runs on the CPU")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
